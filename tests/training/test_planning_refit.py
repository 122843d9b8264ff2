"""Refitting the cost model: known coefficients come back, noise and sameness do not mislead."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from training.planning.cost import CostModel, fit_cost_model
from training.planning.refit import (
    CostFit,
    MeasuredSteps,
    PlacedBatches,
    decide,
    fit_and_compare,
    fit_robustly,
)

TRUE = CostModel(t_step_s=2e-3, c0_s=1e-4, a_s=2e-5, b_s=1e-7, source="true")
# of another host: no quadratic part
OLD = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1e-5, b_s=0.0, source="old")


def measured(
    cost: CostModel = TRUE,
    *,
    steps: int = 60,
    noise: float = 0.0,
    late: float = 0.0,
    per_step: int = 16,
    same: bool = False,
) -> MeasuredSteps:
    """Steps of random lengths timed by `cost`; a share `late` of them takes three times as long."""
    rng = np.random.default_rng(3)
    lengths = [rng.integers(2, 800, 1 + rng.integers(per_step)) for _ in range(steps)]
    if same:
        lengths = [np.full(8, 100) for _ in range(steps)]
    time_S = np.array([cost.t_step_s + cost.sequence_cost_s(n).sum() for n in lengths])
    time_S *= 1 + noise * rng.standard_normal(steps)
    time_S[rng.random(steps) < late] *= 3
    return MeasuredSteps(
        num_sequences=np.array([len(n) for n in lengths]),
        sum_lengths=np.array([n.sum() for n in lengths]),
        sum_squares=np.array([(n**2).sum() for n in lengths]),
        step_s=time_S,
    )


def test_exact_times_give_the_coefficients_back() -> None:
    cost, kept_S = fit_robustly(measured(), source="test")
    assert kept_S.all()
    for name in ("t_step_s", "c0_s", "a_s", "b_s"):
        assert getattr(cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert cost.residual_share < 1e-9


def test_a_tenth_of_late_steps_does_not_bend_the_fit() -> None:
    rows = measured(steps=200, noise=0.02, late=0.1)
    cost, kept_S = fit_robustly(rows, source="test")
    assert 0.05 < (~kept_S).mean() < 0.2
    lengths = np.array([100, 200, 400, 600])
    told = cost.sequence_cost_s(lengths) / TRUE.sequence_cost_s(lengths)
    np.testing.assert_allclose(told, 1.0, atol=0.05)
    all_rows = fit_cost_model(
        rows.num_sequences, rows.sum_lengths, rows.sum_squares, rows.step_s, source="all rows"
    )
    bent = all_rows.sequence_cost_s(lengths) / TRUE.sequence_cost_s(lengths)
    assert np.abs(bent - 1).max() > 2 * np.abs(told - 1).max()


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    rng = np.random.default_rng(0)
    rows = dataclasses.replace(measured(), step_s=rng.random(60) + 0.01)
    cost, _ = fit_robustly(rows, source="test")
    assert min(cost.t_step_s, cost.c0_s, cost.a_s, cost.b_s) >= 0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"15 measured steps.*wait for 16"):
        fit_robustly(measured(steps=15), source="test")


def test_a_model_that_tells_unseen_steps_better_is_worth_placing_by() -> None:
    fit = fit_and_compare(measured(noise=0.01), OLD, step=60)
    assert fit.taken
    assert (fit.step, fit.num_measured) == (60, 60)
    assert fit.held_out_residual_ratio < 0.02 < fit.old_residual_ratio
    assert fit.cost.source == "refitted after step 60"


def test_a_model_that_is_right_up_to_one_factor_stays() -> None:
    # twice as slow a host: shares do not change, so there is nothing to gain
    slow = CostModel(t_step_s=9e-3, c0_s=2e-4, a_s=4e-5, b_s=2e-7, source="slow")
    fit = fit_and_compare(measured(slow, noise=0.05, steps=40), TRUE, step=40)
    assert not fit.taken
    assert "the old model stays" in fit.reason


def test_steps_that_are_all_alike_tell_nothing() -> None:
    fit = fit_and_compare(measured(same=True, noise=0.01), OLD, step=60)
    assert not fit.taken


def coming() -> PlacedBatches:
    # lengths 3, 1, 1, 1 on two ranks; before 3 + 1 | 1 + 1, after 3 | 1 + 1 + 1
    return PlacedBatches(
        lengths=[np.array([3, 1, 1, 1])],
        rank_before=[np.array([0, 0, 1, 1])],
        rank_after=[np.array([0, 1, 1, 1])],
    )


def fitted(cost: CostModel) -> CostFit:
    return CostFit(
        step=1, num_measured=16, num_left_out=0, cost=cost, residual_ratio=0.0,
        held_out_residual_ratio=0.0, old_residual_ratio=1.0, old_share=None, new_share=None,
        taken=True, reason="",
    )  # fmt: skip


def test_the_decision_on_paper() -> None:
    # cost = length: before loads 4 and 2, share 1 - 3/4; after 3 and 3, share 0
    linear = CostModel(t_step_s=1.0, c0_s=0.0, a_s=1.0, b_s=0.0, source="paper")
    fit = decide(fitted(linear), coming(), 2)
    assert (fit.old_share, fit.new_share, fit.taken) == (0.25, 0.0, True)
    assert fit.reason == (
        "the new model is taken: placing anew loses 0.00% to the slowest rank, 25.00% were lost"
    )


def test_nothing_gained_keeps_the_old_model() -> None:
    # cost = 1 a sequence: before 2 and 2, after 1 and 3
    counts = CostModel(t_step_s=0.0, c0_s=1.0, a_s=0.0, b_s=0.0, source="paper")
    fit = decide(fitted(counts), coming(), 2)
    assert fit.old_share == 0.0
    assert fit.new_share == pytest.approx(1 - 2 / 3)
    assert not fit.taken


def test_one_rank_has_nothing_to_place() -> None:
    batches = PlacedBatches(
        lengths=[np.array([3, 1])], rank_before=[np.zeros(2, int)], rank_after=[np.zeros(2, int)]
    )
    assert not decide(fitted(TRUE), batches, 1).taken
