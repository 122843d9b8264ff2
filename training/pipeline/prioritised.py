"""Colliding traffic first, exclusive traffic under compute (rows_ahead.py says which is which).

    loop      forward N, backward N | colliding gradients N, apply | dense N | colliding rows N+1
    deferred  exclusive gradients N-1, apply | ids N+1, marks | exclusive rows N+1

What stays exposed are the colliding rows and gradients and the dense sum.
"""

from __future__ import annotations

from training.embeddings.exchange import Exchange
from training.pipeline.dense import DenseSide
from training.pipeline.lanes import Lanes
from training.pipeline.rows_ahead import RowsAhead
from training.pipeline.step import Schedule, StepResult
from training.pipeline.workload import Batch
from training.recorder import StepRecorder


class Prioritised(Schedule):
    """Colliding traffic on the critical path, everything else of the tables off it."""

    name = "prioritised"

    def __init__(
        self, exchange: Exchange, dense: DenseSide, lanes: Lanes, recorder: StepRecorder
    ) -> None:
        super().__init__(exchange, dense, lanes, recorder)
        self._rows = RowsAhead(exchange, lanes, recorder)

    def step(self, batch: Batch, following: Batch | None) -> StepResult:
        """One step, during which what can of `following` is fetched."""
        recorder, exchange, dense = self._recorder, self._exchange, self._dense
        transport = self._lanes.urgent.transport
        next_T = None if following is None else following.row_ids
        ready, coming = self._rows.begin(batch.row_ids, next_T)
        with recorder.work():
            loss_sum, gradient_T = dense.forward_backward(ready.rows_T, batch)
        split = self._rows.compared(coming)
        part = self._rows.first_part(ready.request, split)
        with recorder.wait("gradients"):
            applied_T = exchange.send_gradients(transport, part, ready.request, gradient_T)
        with recorder.work():
            exchange.apply(part, applied_T, dense.num_updates)
        with recorder.wait("dense"):
            dense_B = dense.sum_over_ranks(transport)
        with recorder.work():
            norms = dense.norms(dense_B, batch)
            dense.update(dense_B, batch)
        if coming is not None and split is not None:
            with recorder.wait("rows", label="colliding"):
                colliding_T = exchange.send_rows(transport, split.colliding_rows)
            self._rows.defer(ready.request, split, gradient_T, dense.num_updates)
            self._rows.keep(coming, colliding_T)
        dense.num_updates += 1
        return StepResult(
            batch=batch,
            local_loss_sum=loss_sum,
            num_rows_ahead=ready.num_rows_ahead,
            sent_bytes=self._lanes.tell(recorder),
            norms=norms,
        )

    def settle(self) -> None:
        """Wait until the exclusive gradients are applied."""
        self._rows.settle()
        super().settle()

    def forget(self) -> None:
        """Drop the coming batch's rows."""
        self._rows.forget()
