"""Placing anew: the same batches, the steps before untouched, cost-blind arms unaffected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import BALANCED, BASELINE
from training.planning.cost import CostModel
from training.planning.plan import Plan, make_plan
from training.planning.refit import MeasuredSteps
from training.planning.replan import refit_arm, replan, rows_of

COST = CostModel(t_step_s=1.0, c0_s=0.1, a_s=1.0, b_s=0.0, source="old")
NEW = CostModel(t_step_s=1.0, c0_s=0.1, a_s=0.1, b_s=0.05, source="new")
LENGTHS = np.random.default_rng(0).integers(2, 200, size=53).astype(np.int64)


def planned(num_ranks: int = 3, *, seed: int = 7, limit: int | None = None) -> Plan:
    return make_plan(
        LENGTHS, COST, (BASELINE, BALANCED), num_ranks=num_ranks, batch_sequences=8, num_epochs=2,
        seed=seed, max_tokens_per_rank=limit,
    )  # fmt: skip


@settings(deadline=None)
@given(num_ranks=st.integers(1, 4), first=st.integers(0, 14), seed=st.integers(0, 99))
def test_batches_and_epochs_stay_and_so_do_the_steps_before(
    num_ranks: int, first: int, seed: int
) -> None:
    plan = planned(num_ranks, seed=seed)
    old, new = plan.arms["balanced"], replan(plan, BALANCED, NEW, first_step=first)
    for step in range(plan.num_steps):
        assert sorted(new.of_step(step)) == sorted(old.of_step(step))
        ranks = [new.of_rank(step, rank) for rank in range(num_ranks)]
        assert np.concatenate(ranks).tolist() == new.of_step(step).tolist()
        if step < first:
            for rank in range(num_ranks):
                assert new.of_rank(step, rank).tolist() == old.of_rank(step, rank).tolist()
    for epoch in (0, 1):
        steps = np.flatnonzero(plan.epochs == epoch)
        seen = np.concatenate([new.of_step(int(step)) for step in steps])
        assert sorted(seen.tolist()) == list(range(len(LENGTHS)))


def test_the_new_placement_is_better_by_the_new_model() -> None:
    plan = planned()
    kept = replan(plan, BALANCED, NEW, first_step=plan.num_steps)  # nothing placed, judged by NEW
    new = replan(plan, BALANCED, NEW, first_step=0)
    assert kept.predicted_straggler_share is not None
    assert new.predicted_straggler_share is not None
    assert new.bound_straggler_share is not None
    assert new.predicted_straggler_share < kept.predicted_straggler_share
    assert new.bound_straggler_share <= new.predicted_straggler_share + 1e-12
    assert kept.bound_straggler_share == pytest.approx(new.bound_straggler_share)


def test_shares_of_a_new_placement_on_paper() -> None:
    # lengths 3, 1, 1, 1, cost = length before: 3 | 1 1 1; cost = 1 a sequence after: 2 | 2
    plan = make_plan(np.array([3, 1, 1, 1]), CostModel(t_step_s=0, c0_s=0, a_s=1, b_s=0, source=""),
                     (BALANCED,), num_ranks=2, batch_sequences=4, num_epochs=2, seed=0)  # fmt: skip
    each = CostModel(t_step_s=0.0, c0_s=1.0, a_s=0.0, b_s=0.0, source="each")
    assert replan(plan, BALANCED, each, first_step=0).predicted_straggler_share == 0.0
    # the first of two epochs stays: loads 1 and 3, then 2 and 2; 1 - (2 + 2) / (3 + 2)
    half = replan(plan, BALANCED, each, first_step=1)
    assert half.predicted_straggler_share == pytest.approx(1 / 5)
    assert half.bound_straggler_share == 0.0


def test_random_placement_keeps_its_draws() -> None:
    plan = planned()
    old, new = plan.arms["baseline"], replan(plan, BASELINE, NEW, first_step=0)
    np.testing.assert_array_equal(new.sequences, old.sequences)
    np.testing.assert_array_equal(new.offsets, old.offsets)
    assert new.predicted_straggler_share != old.predicted_straggler_share


def test_placing_again_from_what_was_placed_changes_nothing() -> None:
    plan = planned()
    once = replan(plan, BALANCED, NEW, first_step=3)
    twice = replan(plan, BALANCED, NEW, first_step=3, current=once)
    np.testing.assert_array_equal(once.sequences, twice.sequences)
    np.testing.assert_array_equal(once.offsets, twice.offsets)


def test_the_limit_of_events_holds_after_placing_anew() -> None:
    limit = 600
    plan = planned(limit=limit)
    new = replan(plan, BALANCED, NEW, first_step=0, max_tokens_per_rank=limit)
    held = [
        plan.windows.lengths[new.of_rank(step, rank)].sum()
        for step in range(plan.num_steps)
        for rank in range(3)
    ]
    assert max(held) <= limit


def test_only_so_many_steps_are_placed_as_asked() -> None:
    plan = planned()
    new = replan(plan, BALANCED, NEW, first_step=2, num_steps=3)
    everywhere = replan(plan, BALANCED, NEW, first_step=2)
    for step in range(plan.num_steps):
        wanted = everywhere if 2 <= step < 5 else plan.arms["balanced"]
        np.testing.assert_array_equal(new.of_step(step), wanted.of_step(step))


def rows(plan: Plan, arm: str) -> MeasuredSteps:
    """The first epoch as NEW would time it."""
    lengths = [
        plan.windows.lengths[plan.arms[arm].of_rank(step, rank)]
        for step in range(7)
        for rank in range(plan.num_ranks)
    ]
    return rows_of(lengths, [NEW.t_step_s + float(NEW.sequence_cost_s(n).sum()) for n in lengths])


def test_a_refit_of_a_wrong_calibration_is_taken_and_gains_what_it_says() -> None:
    plan = planned()
    fit = refit_arm(plan, BALANCED, rows(plan, "baseline"), COST, step=7, first_step=0)
    assert fit.taken, fit.reason
    assert fit.cost.b_s == pytest.approx(NEW.b_s, rel=1e-6)
    before = replan(plan, BALANCED, NEW, first_step=plan.num_steps).predicted_straggler_share
    after = replan(plan, BALANCED, NEW, first_step=0).predicted_straggler_share
    assert fit.old_share == pytest.approx(before)
    assert fit.new_share == pytest.approx(after, rel=1e-3)


def test_a_refit_changes_nothing_for_random_placement_or_after_the_last_step() -> None:
    plan = planned()
    blind = refit_arm(plan, BASELINE, rows(plan, "baseline"), COST, step=7, first_step=9)
    assert not blind.taken
    assert "does not look at costs" in blind.reason
    late = refit_arm(plan, BALANCED, rows(plan, "baseline"), COST, step=13, first_step=14)
    assert not late.taken
    assert "no batch is left" in late.reason
