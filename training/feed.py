"""One rank's batches, built ahead in a thread so that the step loop does not wait for them.

The plan's numbers are those of training windows (planning/windows.py): a window is a whole training
history, or a part of a giant's, whose first events may be context without a target. Its events keep
the positions they have in the history, which are those that evaluation asks for. Negatives and
dropout are drawn by window.

Before: the plan says which windows; the store maps their events.   After: training/pipeline/.
Price: `depth` batches of host memory; order is kept, so a run is repeatable.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from analytics.errors import PlanError
from analytics.store import SequenceStore
from training.config import RunConfig
from training.model import JaggedBatch
from training.planning.plan import ArmPlan, WindowIds
from training.planning.windows import Windows
from training.randomness import dropout_keep, negatives

Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankBatch:
    """What one rank needs for one step."""

    step: int
    row_ids_U: Tensor  # int64, distinct item ids, ascending
    batch: JaggedBatch
    num_targets: int  # on this rank
    global_targets: int  # over all ranks: what every gradient is divided by


class BatchBuilder:
    """Builds the batch of one rank and step from plan and store; pure but for reading the store.

    windows: the plan's.
    Raises PlanError when the windows are not of this store and max_length.
    """

    def __init__(self, store: SequenceStore, config: RunConfig, windows: Windows) -> None:
        self._store = store
        self._model = config.model
        self._train = config.train
        self._num_sites = 1 + 2 * config.model.num_blocks
        self._trained_length_N = np.minimum(
            store.training_lengths(), config.model.max_trained_events
        )
        self._check(windows)
        self._windows = windows
        self._num_targets_W = windows.num_targets
        self.lengths_W = windows.lengths  # events of each window, the last target included

    def num_targets(self, windows: WindowIds) -> int:
        """Positions with a next item to train on over these windows."""
        return int(self._num_targets_W[windows].sum())

    def build(self, *, step: int, epoch: int, arm: ArmPlan, rank: int) -> RankBatch:
        """The batch of one rank in one step; a rank may hold no window at all."""
        mine = self._with_targets(arm.of_rank(step, rank))
        events = [self._events(window) for window in mine]
        drawn = [self._negatives(epoch, window) for window in mine]
        num_targets = tuple(int(self._num_targets_W[window]) for window in mine)
        begins = tuple(int(self._windows.begin[window]) for window in mine)
        inputs = _concatenated([e[:-1] for e in events])
        targets = _concatenated([e[len(e) - n :] for e, n in zip(events, num_targets, strict=True)])
        negatives_K = _concatenated(drawn)
        row_ids, place = np.unique(
            np.concatenate([inputs, targets, negatives_K]), return_inverse=True
        )
        place_T = torch.from_numpy(place.astype(np.int64))
        parts = torch.split(place_T, [len(inputs), len(targets), len(negatives_K)])
        lengths = tuple(len(e) - 1 for e in events)
        return RankBatch(
            step=step,
            row_ids_U=torch.from_numpy(row_ids),
            batch=JaggedBatch(
                lengths=lengths,
                inputs_N=parts[0],
                targets_N=parts[1],
                negatives_BK=parts[2].view(len(mine), self._train.num_negatives),
                keep_SND=self._keep(epoch, mine, lengths),
                num_targets=None if num_targets == lengths else num_targets,
                begins=begins if any(begins) else None,
            ),
            num_targets=len(targets),
            global_targets=self.num_targets(arm.of_step(step)),
        )

    def row_ids(self, *, step: int, epoch: int, arm: ArmPlan, rank: int) -> Ids:
        """Distinct rows that one rank needs in one step, without building its batch; ascending."""
        mine = self._with_targets(arm.of_rank(step, rank))
        parts = [self._events(window) for window in mine]
        return np.unique(_concatenated(parts + [self._negatives(epoch, w) for w in mine]))

    def _check(self, windows: Windows) -> None:
        """Raise PlanError unless the windows end where the training histories do."""
        end_N = np.zeros(len(self._trained_length_N), dtype=np.int64)
        if windows.num_sequences == len(end_N):
            np.maximum.at(end_N, windows.sequence, windows.end)
        if windows.num_sequences != len(end_N) or (end_N != self._trained_length_N).any():
            raise PlanError(
                f"The plan deals {windows.num_sequences} sequences of {int(end_N.sum()):,} events, "
                f"the store has {len(end_N)} of {int(self._trained_length_N.sum()):,} to train on. "
                "The plan was made for another store or max_length; delete its folder and run "
                "'seqscale run' again."
            )

    def _with_targets(self, windows: WindowIds) -> list[int]:
        """Those of the windows that have at least one position to train on."""
        return [int(window) for window in windows if self._num_targets_W[window] > 0]

    def _events(self, window: int) -> Ids:
        """Events of a window with a target; inputs are all but the last, targets the newest."""
        sequence = int(self._windows.sequence[window])
        longest = int(self._trained_length_N[sequence])
        trained = self._store.training_items(sequence)[-longest:]
        part = slice(int(self._windows.begin[window]), int(self._windows.end[window]))
        return trained[part].astype(np.int64)

    def _negatives(self, epoch: int, window: int) -> Ids:
        return negatives(
            seed=self._train.seed,
            epoch=epoch,
            sequence=window,
            num_items=self._store.header.num_items,
            count=self._train.num_negatives,
        )

    def _keep(self, epoch: int, mine: list[int], lengths: tuple[int, ...]) -> Tensor | None:
        if self._model.dropout == 0 or not mine:
            return None
        keep = [
            dropout_keep(
                seed=self._train.seed,
                epoch=epoch,
                sequence=window,
                num_sites=self._num_sites,
                length=length,
                width=self._model.embedding_dim,
                share=self._model.dropout,
            )
            for window, length in zip(mine, lengths, strict=True)
        ]
        return torch.from_numpy(np.concatenate(keep, axis=1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """One batch to build: which arm's plan, which step."""

    arm: str
    step: int


def feed(
    builder: BatchBuilder,
    arms: dict[str, ArmPlan],
    epochs: Ids,
    orders: Sequence[Order],
    *,
    rank: int,
    depth: int = 3,
) -> Iterator[RankBatch]:
    """Yield the batches of `orders`, in order, built up to `depth` ahead by one thread.

    An error of the thread is raised in the loop that reads, at the batch it belongs to.
    """
    ready: queue.Queue[RankBatch | BaseException] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: RankBatch | BaseException) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for order in orders:
                if stop.is_set():
                    return
                epoch = int(epochs[order.step])
                put(builder.build(step=order.step, epoch=epoch, arm=arms[order.arm], rank=rank))
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name="feed", daemon=True)
    thread.start()
    try:
        for _ in orders:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join(timeout=10)


def _concatenated(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
