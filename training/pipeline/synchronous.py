"""The plain order: agree on ids, fetch rows, compute, send gradients, update; nothing overlaps.

What a training loop without a pipeline does, and the reference that every other order must equal.
"""

from __future__ import annotations

import torch.distributed as dist

from training.embeddings.exchange import Exchange
from training.embeddings.table import ShardedTable
from training.feed import RankBatch
from training.pipeline.step import DenseSide, StepResult
from training.recorder import StepRecorder


class Synchronous:
    """Every exchange on the critical path."""

    def __init__(
        self,
        table: ShardedTable,
        dense: DenseSide,
        group: dist.ProcessGroup,
        recorder: StepRecorder,
    ) -> None:
        self._table = table
        self._dense = dense
        self._exchange = Exchange(group)
        self._recorder = recorder

    def step(self, batch: RankBatch, following: RankBatch | None) -> StepResult:
        """One step; `following` is not looked at."""
        recorder, exchange = self._recorder, self._exchange
        sent_before = exchange.sent_bytes
        with recorder.work():
            grouped = exchange.group_by_owner(batch.row_ids_U)
        with recorder.wait():
            request = exchange.exchange_ids(grouped)
        with recorder.work():
            rows_QD = self._table.lookup(request.places_Q)
        with recorder.wait():
            grouped_UD = exchange.send_rows(rows_QD, request.wanted_R, request.asked_R)
        with recorder.work():
            rows_UD = request.ungrouped(grouped_UD)
            loss_sum, gradient_UD = self._dense.forward_backward(rows_UD, batch)
            grouped_gradient_UD = gradient_UD[request.order_U]
        with recorder.wait():
            gradient_QD = exchange.send_gradients(grouped_gradient_UD, request)
        with recorder.work():
            self._table.apply(request.places_Q, gradient_QD)
        loss, dense_bytes = self._dense.reduce_and_update(loss_sum, batch)
        return StepResult(
            batch=batch,
            local_loss_sum=loss_sum,
            global_loss=loss,
            num_rows_ahead=0,
            sent_bytes=exchange.sent_bytes - sent_before + dense_bytes,
        )

    def close(self) -> None:
        """Nothing was started."""
