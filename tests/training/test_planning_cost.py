"""The cost model: known coefficients are found again, noise and nonsense are handled."""

import itertools

import numpy as np
import pytest

from training.planning.cost import NAMED_COSTS, CostModel, fit_cost_model

TRUE = CostModel(t_step_s=2e-3, c0_s=3e-4, a_s=5e-6, b_s=7e-9, source="known")


def steps(cost: CostModel) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sequences, summed lengths, summed squares and time of steps of equal sequences."""
    rows = [
        (n, n * length, n * length**2, cost.t_step_s + n * float(cost.sequence_cost_s(length)))
        for n, length in itertools.product((1, 4, 16), (8, 32, 128, 512, 2048))
    ]
    columns = np.array(rows).T
    return columns[0], columns[1], columns[2], columns[3]


def test_cost_of_a_sequence_on_paper() -> None:
    # c0 + a L + b L^2 = 1 + 2 * 10 + 3 * 100 = 321
    cost = CostModel(t_step_s=99.0, c0_s=1.0, a_s=2.0, b_s=3.0, source="paper")
    assert cost.sequence_cost_s([0, 10]).tolist() == [1.0, 321.0]


def test_known_coefficients_are_recovered() -> None:
    found = fit_cost_model(*steps(TRUE), source="fit")
    for name in ("t_step_s", "c0_s", "a_s", "b_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert found.residual_share < 1e-9
    assert found.source == "fit"


def test_noise_moves_the_fit_by_about_its_own_size() -> None:
    count, total, squares, time = steps(TRUE)
    noisy = time * np.random.default_rng(4).normal(1.0, 0.02, size=len(time))
    found = fit_cost_model(count, total, squares, noisy, source="fit")
    lengths = [64, 256, 1024]
    np.testing.assert_allclose(
        found.sequence_cost_s(lengths), TRUE.sequence_cost_s(lengths), rtol=0.1
    )
    assert 0.001 < found.residual_share < 0.05


def test_coefficients_are_never_negative() -> None:
    # time falls with length, which no cost can explain: the best left is a constant
    count = np.ones(5)
    length = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = fit_cost_model(count, length, length**2, 10.0 - length, source="odd")
    assert min(found.t_step_s, found.c0_s, found.a_s, found.b_s) >= 0.0
    assert (found.a_s, found.b_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("num_steps", "time", "message"),
    [(3, 1.0, "3 measured steps cannot fix four coefficients"), (4, 0.0, "must be positive")],
)
def test_measurements_that_cannot_be_fitted_are_refused(
    num_steps: int, time: float, message: str
) -> None:
    column = np.ones(num_steps)
    with pytest.raises(ValueError, match=message):
        fit_cost_model(column, column, column, column * time, source="x")


def test_stated_costs_follow_from_the_models_flops() -> None:
    cost = NAMED_COSTS["hstu-8x1024@h100"]
    # an event: 3 x 8 layers x 2 x 1024 x 5120 FLOPs; a pair: 3 x 8 x 2048; so at L = 5,120 events
    # attention costs as much as the projections
    assert cost.a_s / cost.b_s == pytest.approx(5120)
    # 1,024 events: 3 * 8 * (2 * 1024 * 5120 * 1024 + 2048 * 1024^2) = 3.09e11 FLOPs at 2.97e14 / s
    assert float(cost.sequence_cost_s(1024)) == pytest.approx(1.0424e-3, rel=1e-3)
