"""The plain order, and the same with ids exchanged one batch early.

    synchronous   ids, rows, compute, gradients, update; nothing overlaps
    ids_ahead     the next batch's ids travel while this one computes: what TorchRec's SparseDist
                  pipeline hides

The first is what a training loop without a pipeline does, and the reference that every other order
must equal. Both have the whole gradient in hand before anything is updated, so the gradient may be
clipped by its global norm, and a step whose gradient is not finite may be left out.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import time

import torch
from torch import Tensor

from training.comm.transport import Transport
from training.embeddings.exchange import Exchange, Part, Request
from training.pipeline.dense import DenseSide
from training.pipeline.lanes import Lanes
from training.pipeline.step import Schedule, StepResult
from training.pipeline.workload import Batch
from training.recorder import StepRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeGradient:
    """What may be asked of a gradient before it is applied."""

    clip_norm: float | None = None  # greatest norm of tables' and dense gradients together
    skip_non_finite: bool = False

    @property
    def is_asked(self) -> bool:
        """Whether any of it is."""
        return self.clip_norm is not None or self.skip_non_finite


class Synchronous(Schedule):
    """Every exchange on the critical path."""

    name = "synchronous"

    def __init__(
        self,
        exchange: Exchange,
        dense: DenseSide,
        lanes: Lanes,
        recorder: StepRecorder,
        whole: WholeGradient = WholeGradient(),
    ) -> None:
        super().__init__(exchange, dense, lanes, recorder)
        self._whole = whole

    def step(self, batch: Batch, following: Batch | None) -> StepResult:
        """One step; `following` is not looked at."""
        recorder, exchange, transport = self._recorder, self._exchange, self._transport
        request = self._request(batch)
        part = exchange.whole(request)
        with recorder.wait("rows"):
            received_T = exchange.send_rows(transport, part)
        self._announce(following)  # not before the rows, whose link the ids would share
        with recorder.work():
            rows_T = exchange.empty_rows(request)
            exchange.fill(rows_T, request, part, received_T)
            exchange.fill_replicated(rows_T, batch.row_ids)
            loss_sum, gradient_T = self._dense.forward_backward(rows_T, batch)
        with recorder.wait("gradients"):
            applied_T = exchange.send_gradients(transport, part, request, gradient_T)
        with recorder.wait("dense"):
            dense_B = self._dense.sum_over_ranks(transport)
        with recorder.work():
            scale = 1.0
            if self._whole.is_asked:
                scale = self._scale(part, applied_T, dense_B, batch)
            norms = self._dense.norms(dense_B, batch)
            if scale:
                scaled_T = applied_T if scale == 1.0 else [g * scale for g in applied_T]
                exchange.apply(part, scaled_T, self._dense.num_updates)
                self._dense.update(dense_B, batch, scale)
                self._dense.num_updates += 1
        return StepResult(
            batch=batch,
            local_loss_sum=loss_sum,
            num_rows_ahead=0,
            sent_bytes=self._lanes.tell(self._recorder),
            was_skipped=not scale,
            norms=norms,
        )

    def forget(self) -> None:
        """Nothing was fetched."""

    @property
    def _transport(self) -> Transport:
        return self._lanes.urgent.transport

    def _request(self, batch: Batch) -> Request:
        with self._recorder.work():
            grouped = self._exchange.group_by_owner(batch.row_ids)
        with self._recorder.wait("ids"):
            return self._exchange.exchange_ids(self._transport, grouped)

    def _announce(self, following: Batch | None) -> None:
        """Nothing travels early."""

    def _scale(
        self, part: Part, gradient_T: list[Tensor], dense_B: list[Tensor], batch: Batch
    ) -> float:
        """What the gradient is multiplied with; 0 when the step is to be left out. A collective.

        Each owner squares its rows' summed gradients; ranks add up in their order, in fp64.
        """
        squares = torch.zeros((), dtype=torch.float64)
        for table, places_Q, gradient_QD in zip(
            self._exchange.tables, part.places_T, gradient_T, strict=True
        ):
            if table.placement.replicated and self._transport.rank > 0:
                continue  # every rank has the same; count it once
            _, summed_PD = table.summed(places_Q, gradient_QD)
            squares += summed_PD.double().square().sum().cpu()
        with self._recorder.wait("dense", label="norm"):
            shares_R = self._transport.all_gather(squares.reshape(1).to(self._transport.device))
        total = float(shares_R.cpu().sum())
        for gradient in dense_B:
            divided = gradient.double() / max(batch.global_targets, 1)
            total += float(divided.square().sum())
        if not math.isfinite(total):
            return 0.0 if self._whole.skip_non_finite else 1.0
        if self._whole.clip_norm is None:
            return 1.0
        return min(1.0, self._whole.clip_norm / (math.sqrt(total) + 1e-6))


class IdsAhead(Synchronous):
    """The next batch's ids one batch early."""

    name = "ids_ahead"

    def __init__(
        self,
        exchange: Exchange,
        dense: DenseSide,
        lanes: Lanes,
        recorder: StepRecorder,
        whole: WholeGradient = WholeGradient(),
    ) -> None:
        super().__init__(exchange, dense, lanes, recorder, whole)
        self._coming: tuple[concurrent.futures.Future[Request], int] | None = None

    def settle(self) -> None:
        """Wait for the ids that are on their way."""
        if self._coming is not None:
            future, arrival_ns = self._coming
            with self._recorder.wait("ids", arrival_ns=arrival_ns, label="settle"):
                future.result()
        super().settle()

    def forget(self) -> None:
        """Drop the coming batch's request."""
        self._coming = None

    def _request(self, batch: Batch) -> Request:
        if self._coming is None:
            return super()._request(batch)
        (future, arrival_ns), self._coming = self._coming, None
        with self._recorder.wait("ids", arrival_ns=arrival_ns):
            return future.result()

    def _announce(self, following: Batch | None) -> None:
        if following is None:
            return
        with self._recorder.work():
            grouped = self._exchange.group_by_owner(following.row_ids)
        arrival_ns = time.monotonic_ns()
        future = self._lanes.deferred.submit(
            lambda transport: self._exchange.exchange_ids(transport, grouped)
        )
        self._coming = (future, arrival_ns)
