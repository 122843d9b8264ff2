"""Fetches the rows that the running batch does not touch while it computes; exact, never stale.

While batch N computes, a thread with its own process group agrees on the ids of batch N+1. Each
owner marks which of the rows asked of it batch N (over all ranks) also touches. The others,
*exclusive* rows, cannot change in step N, so they travel at once. The *colliding* rows travel after
the gradients of N have been applied. The result equals the plain synchronous step bit for bit: the
same rows reach the same arithmetic, only earlier.

    main    | forward N, backward N | gradients N -> apply | dense N | join | colliding rows N+1 |
    thread  | ids N+1 -> marks -> exclusive rows N+1 |

Definition: exact overlap, docs/definitions.md. The idea: FreeScale's prioritised embedding
communication. One thread issues all collectives of its group, in program order: two issuers in one
group silently swap data of equal size.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time

import torch
import torch.distributed as dist
from torch import Tensor

from training.embeddings.exchange import Exchange, Request
from training.embeddings.table import ShardedTable
from training.feed import RankBatch
from training.pipeline.step import DenseSide, StepResult
from training.recorder import Interval, StepRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ahead:
    """What is known of the next batch while the running one computes."""

    request: Request
    exclusive_U: Tensor  # bool, in grouped order: this row is already here
    exclusive_Q: Tensor  # bool: this requested row is already sent
    rows_UD: Tensor  # grouped order; filled where exclusive_U
    in_flight: list[Interval]
    arrival_ns: int  # when this rank was ready for the last of the thread's collectives
    cpu_ns: int  # CPU time of the thread
    sent_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ready:
    """A batch whose rows are all here."""

    request: Request
    rows_UD: Tensor
    num_rows_ahead: int


class ExclusiveAhead:
    """Exclusive rows one batch early, colliding rows after the update."""

    def __init__(
        self,
        table: ShardedTable,
        dense: DenseSide,
        group: dist.ProcessGroup,
        ahead_group: dist.ProcessGroup,
        recorder: StepRecorder,
    ) -> None:
        self._table = table
        self._dense = dense
        self._exchange = Exchange(group)
        self._ahead_exchange = Exchange(ahead_group, clock=time.monotonic_ns)
        self._recorder = recorder
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._ready: Ready | None = None

    def step(self, batch: RankBatch, following: RankBatch | None) -> StepResult:
        """One step, during which the rows of `following` are fetched."""
        recorder, exchange = self._recorder, self._exchange
        sent_before = exchange.sent_bytes
        ready = self._ready or self._fetch_all(batch)
        fetching = None
        if following is not None:
            fetching = self._thread.submit(self._fetch_ahead, following, ready.request.places_Q)
        with recorder.work():
            loss_sum, gradient_UD = self._dense.forward_backward(ready.rows_UD, batch)
            grouped_UD = gradient_UD[ready.request.order_U]
        with recorder.wait():
            gradient_QD = exchange.send_gradients(grouped_UD, ready.request)
        with recorder.work():
            self._table.apply(ready.request.places_Q, gradient_QD)
        loss, dense_bytes = self._dense.reduce_and_update(loss_sum, batch)
        self._ready = None
        ahead_bytes = 0
        if fetching is not None:
            ahead = self._join(fetching)
            ahead_bytes = ahead.sent_bytes
            self._ready = self._fetch_colliding(ahead)
        return StepResult(
            batch=batch,
            local_loss_sum=loss_sum,
            global_loss=loss,
            num_rows_ahead=ready.num_rows_ahead,
            sent_bytes=exchange.sent_bytes - sent_before + ahead_bytes + dense_bytes,
        )

    def close(self) -> None:
        """End the thread; whatever it still had to do is not needed any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fetch_ahead(self, batch: RankBatch, touched_Q: Tensor) -> Ahead:
        """In the thread: ids, marks and exclusive rows of the next batch.

        touched_Q: places in this rank's table that the running batch touches, over all ranks.
        """
        exchange, cpu_begin = self._ahead_exchange, time.thread_time_ns()
        sent_before = exchange.sent_bytes
        request = exchange.exchange_ids(exchange.group_by_owner(batch.row_ids_U))
        exclusive_Q = ~torch.isin(request.places_Q, touched_Q)
        exclusive_U = exchange.send_flags(exclusive_Q, request)
        # rows outside touched_Q: the update of the running batch writes none of them
        rows_QD = self._table.lookup(request.places_Q[exclusive_Q])
        arrival = time.monotonic_ns()
        rows_UD = torch.empty(len(exclusive_U), self._table.width)
        rows_UD[exclusive_U] = exchange.send_rows(
            rows_QD, request.split_wanted(exclusive_Q), request.split_asked(exclusive_U)
        )
        return Ahead(
            request=request,
            exclusive_U=exclusive_U,
            exclusive_Q=exclusive_Q,
            rows_UD=rows_UD,
            in_flight=exchange.take_in_flight(),
            arrival_ns=arrival,
            cpu_ns=time.thread_time_ns() - cpu_begin,
            sent_bytes=exchange.sent_bytes - sent_before,
        )

    def _join(self, fetching: concurrent.futures.Future[Ahead]) -> Ahead:
        """Wait for the thread; its own collectives carry the time-out."""
        with self._recorder.wait() as wait:
            ahead = fetching.result()
            wait.arrival_ns = ahead.arrival_ns
        self._recorder.in_background(ahead.in_flight, ahead.cpu_ns)
        return ahead

    def _fetch_colliding(self, ahead: Ahead) -> Ready:
        """After the update: the rows that the thread had to leave, then the whole in id order."""
        request, recorder = ahead.request, self._recorder
        colliding_U, colliding_Q = ~ahead.exclusive_U, ~ahead.exclusive_Q
        with recorder.work():
            rows_QD = self._table.lookup(request.places_Q[colliding_Q])
            wanted_R = request.split_wanted(colliding_Q)
            asked_R = request.split_asked(colliding_U)
        with recorder.wait():
            colliding_UD = self._exchange.send_rows(rows_QD, wanted_R, asked_R)
        with recorder.work():
            ahead.rows_UD[colliding_U] = colliding_UD
            rows_UD = request.ungrouped(ahead.rows_UD)
            num_ahead = int(ahead.exclusive_U.sum())
        return Ready(request=request, rows_UD=rows_UD, num_rows_ahead=num_ahead)

    def _fetch_all(self, batch: RankBatch) -> Ready:
        """The very first batch: nothing runs before it, so nothing hides its exchange."""
        with self._recorder.work():
            grouped = self._exchange.group_by_owner(batch.row_ids_U)
        with self._recorder.wait():
            request = self._exchange.exchange_ids(grouped)
        with self._recorder.work():
            rows_QD = self._table.lookup(request.places_Q)
        with self._recorder.wait():
            grouped_UD = self._exchange.send_rows(rows_QD, request.wanted_R, request.asked_R)
        with self._recorder.work():
            rows_UD = request.ungrouped(grouped_UD)
        return Ready(request=request, rows_UD=rows_UD, num_rows_ahead=0)
