"""The table side of an overlapped step: rows of the next batch early, gradients of this one late.

Rows of batch N+1 that batch N (over all ranks) does not touch are *exclusive*: they cannot change
in step N, so they travel while N computes. Gradients of N for rows that N+1 does not touch are
exclusive too: nobody reads those rows before N+2, so they travel while N+1 computes. What both
batches touch *collides* and goes first: its gradients, the update, its rows as they are then.

    begin     announce N+1: its ids, what collides, its exclusive rows   (deferred lane)
              ... the caller computes on the rows of N ...
    collide   gradients N, apply, rows N+1                              (where the caller wants it)
    finish    exclusive gradients N, apply                              (deferred lane)

The deferred lane is first in, first out, so the exclusive gradients of N-1 are applied before the
exclusive rows of N+1 are looked up, and one row's gradients all lie in one of the two parts: each
row gets one optimiser step per batch, from the same sum as in the plain order.

Definition: exact overlap, docs/definitions.md. The idea: FreeScale's prioritised embedding
communication.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Sequence

from torch import Tensor

from training.comm.transport import Transport
from training.embeddings.exchange import Exchange, Part, Request, Split
from training.pipeline.lanes import Lanes
from training.recorder import StepRecorder

Future = concurrent.futures.Future


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ready:
    """A batch whose rows are all here."""

    request: Request
    rows_T: list[Tensor]  # of each table, (U, D), in the order of the batch's ids
    num_rows_ahead: int  # of these, fetched while the batch before computed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coming:
    """The next batch: announced, compared with the running one, its exclusive rows on their way."""

    ids_T: Sequence[Tensor]
    arrival_ns: int  # when this rank announced it
    compared: Future[tuple[Request, Split]]
    exclusive: Future[list[Tensor]]


class RowsAhead:
    """The rows of one batch after the other, each as the update of the one before left it."""

    def __init__(self, exchange: Exchange, lanes: Lanes, recorder: StepRecorder) -> None:
        self._exchange = exchange
        self._lanes = lanes
        self._recorder = recorder
        self._ready: Ready | None = None

    def begin(
        self, ids_T: Sequence[Tensor], following_T: Sequence[Tensor] | None
    ) -> tuple[Ready, Coming | None]:
        """The rows of this batch, and the next one announced; None: there is no next one."""
        ready, self._ready = self._ready or self._fetch(ids_T), None
        if following_T is None:
            return ready, None
        return ready, self._announce(following_T, ready.request)

    def compared(self, coming: Coming | None) -> Split | None:
        """What collides; known by now unless the network is slower than the compute."""
        if coming is None:
            return None
        with self._recorder.wait("ids", arrival_ns=coming.arrival_ns):
            return coming.compared.result()[1]

    def first_part(self, running: Request, split: Split | None) -> Part:
        """The gradients that must be applied before the next batch's rows are read."""
        return self._exchange.whole(running) if split is None else split.colliding_gradients

    def defer(
        self, running: Request, split: Split, gradient_T: Sequence[Tensor], update: int
    ) -> None:
        """Send and apply the exclusive gradients while the next batch computes."""
        exchange = self._exchange

        def send(transport: Transport) -> None:
            applied_T = exchange.send_gradients(
                transport, split.exclusive_gradients, running, gradient_T
            )
            exchange.apply(split.exclusive_gradients, applied_T, update)

        self._lanes.deferred.submit(send)

    def keep(self, coming: Coming, colliding_T: Sequence[Tensor]) -> None:
        """Put the next batch's rows together: those that came early and those that could not."""
        exchange = self._exchange
        with self._recorder.wait("rows", arrival_ns=coming.arrival_ns, label="exclusive"):
            exclusive_T = coming.exclusive.result()
        request, split = coming.compared.result()
        with self._recorder.work():
            rows_T = exchange.empty_rows(request)
            exchange.fill(rows_T, request, split.exclusive_rows, exclusive_T)
            exchange.fill(rows_T, request, split.colliding_rows, colliding_T)
            exchange.fill_replicated(rows_T, coming.ids_T)
            num_ahead = sum(len(at_A) for at_A in split.exclusive_rows.asked_at_T)
        self._ready = Ready(request=request, rows_T=rows_T, num_rows_ahead=num_ahead)

    def settle(self) -> None:
        """Wait until the exclusive gradients are applied."""
        with self._recorder.wait("gradients", label="settle"):
            self._lanes.deferred.settle()

    def forget(self) -> None:
        """Drop the next batch's rows."""
        self._ready = None

    def _fetch(self, ids_T: Sequence[Tensor]) -> Ready:
        """The very first batch, or the first after another schedule: nothing is here yet."""
        exchange, transport = self._exchange, self._lanes.urgent.transport
        with self._recorder.work():
            grouped = exchange.group_by_owner(ids_T)
        with self._recorder.wait("ids", label="first"):
            request = exchange.exchange_ids(transport, grouped)
        part = exchange.whole(request)
        with self._recorder.wait("rows", label="first"):
            received_T = exchange.send_rows(transport, part)
        with self._recorder.work():
            rows_T = exchange.empty_rows(request)
            exchange.fill(rows_T, request, part, received_T)
            exchange.fill_replicated(rows_T, ids_T)
        return Ready(request=request, rows_T=rows_T, num_rows_ahead=0)

    def _announce(self, following_T: Sequence[Tensor], running: Request) -> Coming:
        """Hand the next batch's ids and exclusive rows to the deferred lane."""
        exchange, chunk_bytes = self._exchange, self._lanes.chunk_bytes
        with self._recorder.work():
            grouped = exchange.group_by_owner(following_T)

        def compare(transport: Transport) -> tuple[Request, Split]:
            request = exchange.exchange_ids(transport, grouped)
            split = exchange.compare(transport, running, request, chunk_bytes=chunk_bytes)
            return request, split

        arrival_ns = time.monotonic_ns()
        compared = self._lanes.deferred.submit(compare)
        exclusive = self._lanes.deferred.submit(
            lambda transport: exchange.send_rows(transport, compared.result()[1].exclusive_rows)
        )
        return Coming(
            ids_T=following_T, arrival_ns=arrival_ns, compared=compared, exclusive=exclusive
        )
