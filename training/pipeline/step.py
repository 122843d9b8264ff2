"""What every schedule is given, and what it gives back: the seam between arithmetic and order.

A schedule runs optimiser steps. All schedules do the same arithmetic on the same values; they only
differ in when ids, rows and gradients travel. Loss and gradients are sums over a rank's targets
divided by the global number of targets, so they do not depend on who holds a sequence.

Before: a batch with its ids; a model that takes rows.   After: training/trainer.py records.
"""

from __future__ import annotations

import abc
import dataclasses

from torch import Tensor

from training.embeddings.exchange import Exchange
from training.pipeline.dense import DenseSide, GradientNorms
from training.pipeline.lanes import Lanes
from training.pipeline.workload import Batch
from training.recorder import StepRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step tells its recorder."""

    batch: Batch
    local_loss_sum: Tensor  # a scalar; read it after the steps, or the device is waited for
    num_rows_ahead: int  # rows that were fetched during the step before
    sent_bytes: int
    was_skipped: bool = False  # left out because its gradient was not finite
    norms: GradientNorms | None = None  # where they were measured


class Schedule(abc.ABC):
    """One order of exchange and compute.

    Every rank calls the same methods in the same order: `step` and `settle` are collectives.
    """

    name: str

    def __init__(
        self, exchange: Exchange, dense: DenseSide, lanes: Lanes, recorder: StepRecorder
    ) -> None:
        self._exchange = exchange
        self._dense = dense
        self._lanes = lanes
        self._recorder = recorder

    @abc.abstractmethod
    def step(self, batch: Batch, following: Batch | None) -> StepResult:
        """Run one optimiser step; `following` is the next step's batch, None at the very end."""

    def settle(self) -> None:
        """Finish what earlier steps deferred: tables and model are then those after the last step.

        What was fetched for the following batch is kept; the next step must be of that batch.
        """
        self._lanes.tell(self._recorder)

    @abc.abstractmethod
    def forget(self) -> None:
        """Drop what was fetched for the following batch; call `settle` first."""

    def close(self) -> None:  # noqa: B027  (most schedules hold nothing)
        """Take off the model what the schedule has put on it."""
