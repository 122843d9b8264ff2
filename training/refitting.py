"""Refits an arm's cost model from its own steps while it runs, and places what is still to come.

Before: the recorder's windows of a block.   After: planning/replan.py; the feed reads the new plan.
Price: nothing inside a step; between two blocks about 15 ms for 1,000 measured rank-steps, and the
placing of the coming steps when the new model is taken.

What was measured differs from run to run, so a refitted run repeats its losses to rounding only;
switch it off where two runs must be the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from training.config import ArmConfig, TrainConfig
from training.feed import ArmPlans, Order, first_safe_step
from training.planning.plan import Plan
from training.planning.refit import LEAST_ROWS, CostFit, MeasuredSteps
from training.planning.replan import COST_BLIND, refit_arm, replan
from training.planning.windows import Ints

_LATEST_STEPS = 400  # of an arm, that are fitted to


class CostRefits:
    """The refits of one arm on one rank."""

    def __init__(
        self,
        arm: ArmConfig,
        plan: Plan,
        plans: ArmPlans,
        train: TrainConfig,
        group: dist.ProcessGroup,
    ) -> None:
        self._arm = arm
        self._plan = plan
        self._plans = plans
        self._train = train
        self._group = group
        self._cost = plan.cost
        self._rows: list[tuple[int, int, int, float]] = []
        is_asked = train.refit_first_step > 0 and arm.placement not in COST_BLIND
        self._next: int | None = train.refit_first_step if is_asked else None

    def measured(self, lengths: Sequence[Ints], busy_s: Sequence[float]) -> None:
        """This rank's latest steps: lengths [events] it held, and its own time [s]."""
        for length_B, step_s in zip(lengths, busy_s, strict=True):
            squares = int((length_B.astype(np.int64) ** 2).sum())
            self._rows.append((len(length_B), int(length_B.sum()), squares, step_s))
        self._rows = self._rows[-_LATEST_STEPS:]

    def after(self, step: int, orders: Sequence[Order], num_taken: int) -> CostFit | None:
        """Refit when it is time, and place the coming batches. A collective.

        step: the arm's last step so far; orders, num_taken: where the feed is, as first_safe_step.
        """
        if self._next is None or step + 1 < self._next:
            return None
        first = first_safe_step(orders, self._arm.name, num_taken)
        if first is None:
            self._next = None
            return None
        rows = self._everybodys()
        if len(rows) < LEAST_ROWS:
            return None
        interval = self._train.refit_interval_steps
        self._next = step + 1 + interval if interval else None
        fit = self._fitted(rows, step, first)
        if fit.taken:
            self._cost = fit.cost
            current = self._plans.at(self._arm.name, first)
            anew = replan(
                self._plan,
                self._arm,
                fit.cost,
                first_step=first,
                current=current,
                max_tokens_per_rank=self._train.max_tokens_per_rank,
            )
            self._plans.replace(self._arm.name, anew, first)
        return fit

    def _everybodys(self) -> MeasuredSteps:
        """All ranks' rows, step by step. A collective."""
        mine = torch.tensor(self._rows, dtype=torch.float64).reshape(-1, 4)
        shares = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(shares, mine, group=self._group)
        rows = torch.stack(shares, dim=1).reshape(-1, 4).numpy()
        rows = rows[(rows[:, 3] > 0) & np.isfinite(rows[:, 3])]
        return MeasuredSteps(
            num_sequences=rows[:, 0].astype(np.int64),
            sum_lengths=rows[:, 1].astype(np.int64),
            sum_squares=rows[:, 2].astype(np.int64),
            step_s=rows[:, 3],
        )

    def _fitted(self, rows: MeasuredSteps, step: int, first: int) -> CostFit:
        """Rank 0 fits and tells the others, so that all place by the same bits."""
        told: list[CostFit | None] = [None]
        if dist.get_rank(self._group) == 0:
            told[0] = refit_arm(
                self._plan,
                self._arm,
                rows,
                self._cost,
                step=step,
                first_step=first,
                current=self._plans.at(self._arm.name, first),
                max_tokens_per_rank=self._train.max_tokens_per_rank,
            )
        dist.broadcast_object_list(told, src=0, group=self._group)
        assert told[0] is not None
        return told[0]
