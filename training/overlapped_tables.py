"""Sharded tables for somebody else's training loop, their traffic under that loop's compute.

    tables = OverlappedTables([TableConfig(name="item", num_rows=n, width=64)])
    for batch, rows in tables.over(loader, lambda batch: {"item": batch.ids}):
        loss = model(rows["item"], batch)     # rows in the order of the ids, repeats included
        loss.backward()
        tables.step()

The model, its optimiser and its all-reduce stay as they are. While a batch computes, the rows of
the next one that this one does not touch arrive, and the gradients that the next one does not need
leave; the result equals fetching and updating in the plain order to the bit.

The gradients of all ranks are summed, not averaged: divide the loss by the global number of targets
(or of samples), as for any loss that must not depend on who holds a sample.

Before: a loader.   After: trained rows on their owners.
Price: two process groups, two threads, one batch of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from analytics.errors import ConfigError
from training.config import TableConfig
from training.embeddings.exchange import Exchange
from training.embeddings.ids import checked_ids, distinct
from training.engine import (
    CHUNK_BYTES,
    TransportFactory,
    made_lanes,
    made_tables,
    synchronized,
    together,
)
from training.jagged import moved
from training.pipeline.rows_ahead import Coming, Ready, RowsAhead
from training.recorder import StepRecorder
from training.step_recording import StepRecording

BatchT = TypeVar("BatchT")
Ids = Mapping[str, Tensor]


class _Fed(Generic[BatchT]):
    """A batch of the user's, and its distinct ids by table."""

    def __init__(self, batch: BatchT | None, row_ids: list[Tensor], inverse: list[Tensor]) -> None:
        self.batch = batch
        self.row_ids = row_ids
        self.inverse = inverse  # where each id of the batch stands among the distinct ones


class OverlappedTables:
    """Row-wise sharded tables, each trained by its own optimiser. Made by all ranks together."""

    def __init__(
        self,
        tables: Sequence[TableConfig],
        *,
        seed: int = 1,
        overlap: bool = True,
        average: bool = False,
        transport: TransportFactory | None = None,
        device: torch.device | None = None,
        recording: StepRecording | None = None,
        recorder: StepRecorder | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        timeout_s: int = 45,
    ) -> None:
        """overlap: False exchanges everything in the plain order, for comparison.

        average: divide the rows' gradients by the number of ranks, as DistributedDataParallel does
        with those of a model, instead of summing them.
        recording: the loop's; it then has the tables' waits, rows and bytes in its steps.
        recorder: that of a loop which opens the steps of a recorder itself.
        Raises ConfigError for two tables of one name, and on every rank when one lacks the memory.
        """
        device = device or torch.device("cpu")
        self._configs = list(tables)
        names = [config.name for config in tables]
        if len(set(names)) < len(names):
            raise ConfigError(f"Tables need names of their own, given are {', '.join(names)}.")
        self._lanes = made_lanes(transport, device, chunk_bytes=chunk_bytes, timeout_s=timeout_s)
        shares = made_tables(tables, self._lanes, seed=seed)
        self.tables = dict(zip(names, shares, strict=True))
        self._overlap = overlap
        self._average = average
        self._device = device
        ranks = self._lanes.urgent.transport
        self._exchange = Exchange(shares, rank=ranks.rank, world_size=ranks.world_size)
        self._recording = recording
        if recording is not None:
            recorder = recording.recorder
        self._owns_recorder = recorder is None  # else the loop that gave it opens its steps
        self._recorder = recorder or StepRecorder(synchronized(device))
        self._rows = RowsAhead(self._exchange, self._lanes, self._recorder)
        self._num_steps = 0
        self._held: tuple[Ready, Coming | None, list[Tensor]] | None = None

    def over(
        self, batches: Iterable[BatchT], ids: Callable[[BatchT], Ids]
    ) -> Iterator[tuple[BatchT | None, dict[str, Tensor]]]:
        """(batch, its rows by table) until no rank has a batch any more; call `step` after each.

        ids: the int64 ids of a batch by table name, any shape, repeats allowed; tables left out
        are not needed. The rows have the shape of the ids and D behind it, and carry gradients.
        A rank that runs out before others gets (None, {}) and calls `step` all the same.
        A loop may be left early, on all ranks at the same batch, and begun anew.
        Raises IdError for an id that its table does not have; the other ranks end with InputError.
        """
        self.settle()  # of a loop that was left early
        self._drop()
        source = (self._fed(number, batch, ids(batch)) for number, batch in enumerate(batches))
        nothing: _Fed[BatchT] = self._fed(0, None, {})
        for fed, following in together(source, self._lanes.deferred, nothing):
            if self._held is not None:
                raise ConfigError("Call step() after every batch, also when it has no loss.")
            if self._owns_recorder:
                self._recorder.end_block()
                self._recorder.begin_step()
            next_T = following.row_ids if following is not None and self._overlap else None
            ready, coming = self._rows.begin(fed.row_ids, next_T)
            leaves = [rows.detach().requires_grad_() for rows in ready.rows_T]
            self._held = (ready, coming, leaves)
            yield fed.batch, self._shaped(fed, leaves)
        if self._held is not None:
            raise ConfigError("Call step() after every batch, also after the last one.")
        self.settle()

    def step(self) -> None:
        """Update the rows with the gradients that `backward` has left; a collective."""
        if self._held is None:
            raise ConfigError("step() was called twice for one batch, or before the first one.")
        (ready, coming, leaves), self._held = self._held, None
        exchange, transport = self._exchange, self._lanes.urgent.transport
        gradient_T = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        if self._average:
            gradient_T = [gradient / transport.world_size for gradient in gradient_T]
        split = self._rows.compared(coming)
        part = self._rows.first_part(ready.request, split)
        with self._recorder.wait("gradients"):
            applied_T = exchange.send_gradients(transport, part, ready.request, gradient_T)
        with self._recorder.work():
            exchange.apply(part, applied_T, self._num_steps)
        if coming is not None and split is not None:
            with self._recorder.wait("rows", label="colliding"):
                colliding_T = exchange.send_rows(transport, split.colliding_rows)
            self._rows.defer(ready.request, split, gradient_T, self._num_steps)
            self._rows.keep(coming, colliding_T)
        sent_bytes = self._lanes.tell(self._recorder)
        if self._recording is not None:
            self._recording.add(
                sent_bytes=sent_bytes,
                num_rows=sum(ready.request.num_rows_T),
                num_rows_ahead=ready.num_rows_ahead,
            )
        self._num_steps += 1

    def settle(self) -> None:
        """Finish what was deferred: before reading the tables, saving or evaluating."""
        self._rows.settle()

    def close(self) -> None:
        """End the threads; does not wait for other ranks longer than seconds."""
        self._lanes.close()

    def _drop(self) -> None:
        """Forget the batch in hands and what was fetched for the next one."""
        self._held = None
        self._rows.forget()

    def _fed(self, number: int, batch: BatchT | None, ids: Ids) -> _Fed[BatchT]:
        unknown = sorted(set(ids) - set(self.tables))
        if unknown:
            raise ConfigError(
                f"There is no table '{unknown[0]}'; known are {', '.join(self.tables)}."
            )
        none = torch.zeros(0, dtype=torch.int64)
        found = []
        for config in self._configs:
            given = ids.get(config.name, none)
            checked = checked_ids(
                given,
                table=config.name,
                num_rows=config.num_rows,
                step=number,
                column=config.name,
            )
            found.append(distinct(checked))
        return _Fed(
            batch,
            [moved(ids_U, self._device) for ids_U, _ in found],
            [moved(inverse, self._device) for _, inverse in found],
        )

    def _shaped(self, fed: _Fed[BatchT], leaves: list[Tensor]) -> dict[str, Tensor]:
        if fed.batch is None:
            return {}
        return {
            config.name: _rows(leaf, inverse)
            for config, leaf, inverse in zip(self._configs, leaves, fed.inverse, strict=True)
        }


def _rows(rows_UD: Tensor, inverse: Tensor) -> Tensor:
    """The row of every id; its backward pass adds repeats in one order, on any number of threads.

    Indexing by a tensor would add them in parallel, another sum every time.
    """
    rows = rows_UD.index_select(0, inverse.flatten())
    return rows.view(*inverse.shape, rows_UD.shape[1])
