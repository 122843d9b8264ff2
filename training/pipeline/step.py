"""The arithmetic of one step, the same for every schedule: forward, backward, dense update.

Schedules (synchronous.py, exclusive_ahead.py) differ only in when rows and gradients travel.
Loss and gradients are sums over a rank's targets divided by the global number of targets, so they
do not depend on who holds a sequence.

Before: training/feed.py gives a batch, an exchange its rows.   After: training/trainer.py records.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import RunConfig
from training.feed import RankBatch
from training.model import SASRec
from training.randomness import kept_scale
from training.recorder import StepRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step tells its recorder."""

    batch: RankBatch
    local_loss_sum: float
    global_loss: float  # over all ranks' targets
    num_rows_ahead: int  # rows that were fetched during the step before
    sent_bytes: int


class Schedule(Protocol):
    """One order of exchange and compute."""

    def step(self, batch: RankBatch, following: RankBatch | None) -> StepResult:
        """Run one optimiser step; `following` is the arm's next batch, None at the very end.

        A collective: every rank calls it for the same step.
        """
        ...

    def close(self) -> None:
        """End what the schedule started."""
        ...


class DenseSide:
    """The dense parameters of one arm, their optimiser and their all-reduce."""

    def __init__(self, config: RunConfig, group: dist.ProcessGroup, recorder: StepRecorder) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(config.train.seed)
            self.model = SASRec(config.model)
        self._group = group
        self._world_size = dist.get_world_size(group)
        self._recorder = recorder
        self._kept_scale = kept_scale(config.model.dropout)
        self._parameters = list(self.model.parameters())
        matrices = {"params": [p for p in self._parameters if p.ndim > 1]}
        vectors: dict[str, Any] = {"params": [p for p in self._parameters if p.ndim <= 1]}
        self._optimizer = torch.optim.AdamW(
            [matrices, vectors | {"weight_decay": 0.0}],
            lr=config.train.dense_learning_rate,
            weight_decay=config.train.weight_decay,
        )

    def forward_backward(self, rows_UD: Tensor, batch: RankBatch) -> tuple[float, Tensor]:
        """(sum of the rank's losses, gradient of each of its rows); zeros without targets."""
        self._optimizer.zero_grad(set_to_none=True)
        if batch.num_targets == 0:
            return 0.0, torch.zeros_like(rows_UD)
        rows_UD = rows_UD.requires_grad_()
        loss_sum = self.model.loss_sum(rows_UD, batch.batch, self._kept_scale)
        loss_sum.backward()  # type: ignore[no-untyped-call]
        assert rows_UD.grad is not None
        return loss_sum.item(), rows_UD.grad / batch.global_targets

    def reduce_and_update(self, loss_sum: float, batch: RankBatch) -> tuple[float, int]:
        """Sum the dense gradients over the ranks and step; returns (global loss, bytes sent).

        The loss rides in the same buffer, so it costs no collective of its own. A ring all-reduce
        sends 2 (R-1)/R of the buffer.
        """
        with self._recorder.work():
            flat = torch.cat([self._flat_gradient(), torch.tensor([loss_sum])])
        with self._recorder.wait():
            dist.all_reduce(flat, group=self._group)
        with self._recorder.work():
            flat /= max(batch.global_targets, 1)
            if batch.global_targets:
                self._scatter_gradient(flat)
                self._optimizer.step()
        sent = 2 * (self._world_size - 1) / self._world_size * flat.numel() * flat.element_size()
        return float(flat[-1]), round(sent)

    def _flat_gradient(self) -> Tensor:
        return torch.cat(
            [
                p.grad.flatten() if p.grad is not None else torch.zeros(p.numel())
                for p in self._parameters
            ]
        )

    def _scatter_gradient(self, flat: Tensor) -> None:
        start = 0
        for parameter in self._parameters:
            part = flat[start : start + parameter.numel()]
            parameter.grad = part.view_as(parameter).clone()
            start += parameter.numel()
