"""Placements: every sequence once, balance as good as theory promises, shares as on paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.planning.placement import (
    PLACEMENT_FUNCTIONS,
    bound_load,
    load_of_ranks,
    lpt_free,
    random_equal,
    straggler_share,
)

COSTS = st.lists(st.floats(min_value=0.001, max_value=1e3), min_size=1, max_size=40).map(np.array)
RANKS = st.integers(min_value=1, max_value=9)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", sorted(PLACEMENT_FUNCTIONS))
@settings(deadline=None)  # a busy machine is no fault of the code
@given(cost_N=COSTS, num_ranks=RANKS)
def test_every_sequence_lies_on_exactly_one_rank(
    name: str, cost_N: np.ndarray, num_ranks: int
) -> None:
    rank_N = PLACEMENT_FUNCTIONS[name](cost_N, num_ranks, rng())
    assert rank_N.shape == cost_N.shape
    assert ((rank_N >= 0) & (rank_N < num_ranks)).all()
    assert load_of_ranks(cost_N, rank_N, num_ranks).sum() == pytest.approx(cost_N.sum())


@settings(deadline=None)  # a busy machine is no fault of the code
@given(cost_N=COSTS, num_ranks=RANKS, seed=st.integers(0, 99))
def test_random_placement_has_equal_counts_within_one(
    cost_N: np.ndarray, num_ranks: int, seed: int
) -> None:
    counts = np.bincount(random_equal(cost_N, num_ranks, rng(seed)), minlength=num_ranks)
    assert counts.max() - counts.min() <= 1


@settings(deadline=None)  # a busy machine is no fault of the code
@given(cost_N=COSTS, num_ranks=RANKS)
def test_no_placement_is_below_the_bound(cost_N: np.ndarray, num_ranks: int) -> None:
    for place in PLACEMENT_FUNCTIONS.values():
        largest = load_of_ranks(cost_N, place(cost_N, num_ranks, rng()), num_ranks).max()
        assert largest >= bound_load(cost_N, num_ranks) * (1 - 1e-9)


@settings(deadline=None)  # a busy machine is no fault of the code
@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=9), num_ranks=st.integers(1, 3))
def test_longest_first_is_within_grahams_bound_of_the_best(
    costs: list[int], num_ranks: int
) -> None:
    cost_N = np.array(costs, dtype=np.float64)
    largest = load_of_ranks(cost_N, lpt_free(cost_N, num_ranks, rng()), num_ranks).max()
    # the best by trying every placement: at most 3^9 of them, reached as sets of load vectors
    reached = {(0,) * num_ranks}
    for cost in costs:
        reached = {
            tuple(sorted(load + cost * (place == rank) for rank, load in enumerate(loads)))
            for loads in reached
            for place in range(num_ranks)
        }
    best = min(max(loads) for loads in reached)
    assert largest <= best * (4 / 3 - 1 / (3 * num_ranks)) + 1e-9


def test_longest_first_on_paper() -> None:
    # 7 -> rank 0; 5 -> rank 1; 4 -> rank 1 (5 < 7); 3 -> rank 0 (7 < 9); 1 -> rank 1 (9 < 10)
    rank_N = lpt_free(np.array([4.0, 7.0, 1.0, 5.0, 3.0]), 2, rng())
    assert rank_N.tolist() == [1, 0, 1, 1, 0]


def test_longest_first_breaks_ties_by_rank_and_draws_nothing() -> None:
    generator = rng(5)
    before = generator.bit_generator.state
    assert lpt_free(np.ones(4), 4, generator).tolist() == [0, 1, 2, 3]
    assert generator.bit_generator.state == before


def test_the_bound_is_the_largest_sequence_or_the_mean() -> None:
    assert bound_load(np.array([9.0, 1.0, 2.0]), 2) == 9.0  # one sequence is more than half
    assert bound_load(np.array([4.0, 4.0, 4.0]), 2) == 6.0  # 12 over two ranks
    assert bound_load(np.zeros(0), 2) == 0.0


def test_straggler_share_is_a_ratio_of_sums() -> None:
    # step 1: mean 3 of largest 4; step 2: mean 1 of largest 2; 1 - (3 + 1) / (4 + 2) = 1/3,
    # while the mean of the two shares would be 3/8
    assert straggler_share(np.array([[4.0, 2.0], [0.0, 2.0]])) == pytest.approx(1 / 3)


def test_straggler_share_at_its_ends() -> None:
    assert straggler_share(np.array([[5.0, 5.0, 5.0]])) == 0.0
    assert straggler_share(np.array([[6.0, 0.0, 0.0]])) == pytest.approx(
        2 / 3
    )  # one of three works
    assert straggler_share(np.array([[0.0, 0.0]])) == 0.0
    assert straggler_share(np.array([[3.0]])) is None  # one rank never waits


@settings(deadline=None)  # a busy machine is no fault of the code
@given(cost_N=COSTS, num_ranks=st.integers(2, 9), factor=st.floats(0.01, 100))
def test_a_faster_device_changes_no_share(
    cost_N: np.ndarray, num_ranks: int, factor: float
) -> None:
    rank_N = random_equal(cost_N, num_ranks, rng())
    share = straggler_share([load_of_ranks(cost_N, rank_N, num_ranks)])
    scaled = straggler_share([load_of_ranks(cost_N * factor, rank_N, num_ranks)])
    assert share == pytest.approx(scaled, abs=1e-9)
