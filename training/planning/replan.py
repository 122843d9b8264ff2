"""Places the coming batches of one arm anew, by a refitted cost model.

The global batches stay what they are, so every epoch stays a permutation and all arms still read
the same set in the same step; only on which rank a window lies changes, and only from `first_step`
on. An arm whose placement does not look at costs keeps every window where it is.

Before: refit.py, a new cost model.   After: training/feed.py reads the new arm.
Price: 10,000 batches of 32 windows on 2 ranks 1.0 s, of 512 on 16 ranks 5 s, of 2,048 on 64 ranks
18 s; `num_steps` bounds it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from training.config import ArmConfig
from training.planning.balance import Floats, Ranks, bound_load, load_of_ranks, straggler_share
from training.planning.cost import CostModel
from training.planning.plan import ArmPlan, Dealing, Ints, Plan, WindowIds
from training.planning.refit import CostFit, MeasuredSteps, PlacedBatches, decide, fit_and_compare

COST_BLIND = ("random_equal",)  # placements that do not look at what a sequence costs
_JUDGED_BATCHES = 64  # coming batches that tell whether a new model gains anything


def replan(
    plan: Plan,
    arm: ArmConfig,
    cost: CostModel,
    *,
    first_step: int,
    current: ArmPlan | None = None,
    max_tokens_per_rank: int | None = None,
    num_steps: int | None = None,
) -> ArmPlan:
    """The arm with its batches from first_step on placed by `cost`; the steps before stay.

    current: the arm as it is placed by now; None: as the plan has it.
    max_tokens_per_rank: as the plan was made with. num_steps: how many steps to place; the ones
    after keep their place; None: all. Both shares of the new arm are those of all its steps by
    the new model. The same on every rank: windows of a batch are placed in the order of their
    numbers, whatever rank they lie on now.
    Raises PlanError where a batch does not fit into max_tokens_per_rank.
    """
    current = current or plan.arms[arm.name]
    last_step = plan.num_steps if num_steps is None else first_step + num_steps
    steps = range(max(first_step, 0), min(last_step, plan.num_steps))
    sequences: WindowIds = np.array(current.sequences, dtype=np.int32)
    offsets: Ints = np.array(current.offsets, dtype=np.int64)
    dealing = _dealing(plan, cost, max_tokens_per_rank)
    for step in steps if arm.placement not in COST_BLIND else ():
        batch = np.sort(current.of_step(step)).astype(np.int64)
        rank_B = dealing.ranks(arm.placement, batch, step)
        start = offsets[step, 0]
        sequences[start : offsets[step, -1]] = batch[np.argsort(rank_B, kind="stable")]
        offsets[step, 1:] = start + np.cumsum(np.bincount(rank_B, minlength=plan.num_ranks))
    load_SR, bound_S = _loads(sequences, offsets, dealing.cost_W, plan.num_ranks)
    bound: float | None = None
    if plan.num_ranks > 1:
        total = float(load_SR.sum()) / plan.num_ranks
        bound = max(0.0, 1.0 - total / max(float(bound_S.sum()), 1e-300))
    return ArmPlan(
        sequences=sequences,
        offsets=offsets,
        predicted_straggler_share=straggler_share(load_SR),
        bound_straggler_share=bound,
    )


def refit_arm(
    plan: Plan,
    arm: ArmConfig,
    measured: MeasuredSteps,
    old: CostModel,
    *,
    step: int,
    first_step: int,
    current: ArmPlan | None = None,
    max_tokens_per_rank: int | None = None,
) -> CostFit:
    """Fit the measured rows and decide over the arm's next 64 batches; pure, so one rank does it.

    old: the model the arm is placed by. step: the one after which it is done. first_step: the
    first that may be placed anew. Where the fit is taken, every rank calls `replan` with its cost.
    Raises ValueError for fewer than 16 rows.
    """
    fit = fit_and_compare(measured, old, step=step)
    if not fit.taken:
        return fit
    if arm.placement in COST_BLIND:
        return dataclasses.replace(
            fit, taken=False, reason=f"{arm.placement} does not look at costs; nothing to place"
        )
    current = current or plan.arms[arm.name]
    dealing = _dealing(plan, fit.cost, max_tokens_per_rank)
    lengths, before, after = [], [], []
    for at in range(first_step, min(first_step + _JUDGED_BATCHES, plan.num_steps)):
        order = np.argsort(current.of_step(at), kind="stable")
        batch = current.of_step(at)[order].astype(np.int64)
        lengths.append(plan.windows.lengths[batch])
        before.append(_rank_of_each(current.offsets[at])[order])
        after.append(dealing.ranks(arm.placement, batch, at))
    if not lengths:
        return dataclasses.replace(fit, taken=False, reason="no batch is left to place anew")
    coming = PlacedBatches(lengths=lengths, rank_before=before, rank_after=after)
    return decide(fit, coming, plan.num_ranks)


def rows_of(lengths: list[Ints], step_s: list[float]) -> MeasuredSteps:
    """One rank's rows: lengths [events] it held and its own time [s], one entry a step."""
    return MeasuredSteps(
        num_sequences=np.array([len(length_B) for length_B in lengths], dtype=np.int64),
        sum_lengths=np.array([length_B.sum() for length_B in lengths], dtype=np.int64),
        sum_squares=np.array([(length_B**2).sum() for length_B in lengths], dtype=np.int64),
        step_s=np.array(step_s, dtype=np.float64),
    )


def _dealing(plan: Plan, cost: CostModel, max_tokens: int | None) -> Dealing:
    return Dealing(
        cost_W=cost.sequence_cost_s(plan.windows.lengths),
        token_W=plan.windows.lengths,
        num_ranks=plan.num_ranks,
        seed=plan.seed,
        max_tokens=max_tokens,
    )


def _rank_of_each(offset_R: Ints) -> Ranks:
    """The rank of each window of a step, from the step's offsets; shape (B,)."""
    rank_B: Ranks = np.repeat(np.arange(len(offset_R) - 1), np.diff(offset_R))
    return rank_B


def _loads(
    sequences: WindowIds, offsets: Ints, cost_W: Floats, num_ranks: int
) -> tuple[Floats, Floats]:
    """(load of each rank in each step, shape (S, R); least largest load of each step, (S,))."""
    num_steps = len(offsets)
    cost_N = cost_W[sequences]
    counts_SR = np.diff(offsets, axis=1)
    seat_N = np.repeat(np.arange(num_steps * num_ranks), counts_SR.ravel())
    load_N = load_of_ranks(cost_N, seat_N, num_steps * num_ranks)
    ends = zip(offsets[:, 0], offsets[:, -1], strict=True)
    bound_S = np.array([bound_load(cost_N[start:end], num_ranks) for start, end in ends])
    return load_N.reshape(num_steps, num_ranks), bound_S
