"""Placements: every sequence once, balance as good as theory promises, shares as on paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import PLACEMENTS
from training.planning.balance import bound_share
from training.planning.placement import (
    PLACEMENT_FUNCTIONS,
    Place,
    bound_load,
    karmarkar_karp,
    load_of_ranks,
    lpt_equal,
    lpt_fast,
    lpt_free,
    random_equal,
    serpentine,
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


def test_every_placement_that_a_configuration_may_name_is_there() -> None:
    assert set(PLACEMENTS) == set(PLACEMENT_FUNCTIONS)


@pytest.mark.parametrize("place", [random_equal, serpentine, lpt_equal])
@settings(deadline=None)  # a busy machine is no fault of the code
@given(cost_N=COSTS, num_ranks=RANKS, seed=st.integers(0, 99))
def test_equal_counts_are_equal_within_one(
    place: Place, cost_N: np.ndarray, num_ranks: int, seed: int
) -> None:
    counts = np.bincount(place(cost_N, num_ranks, rng(seed)), minlength=num_ranks)
    assert counts.max() - counts.min() <= 1


@settings(deadline=None, max_examples=300)  # a busy machine is no fault of the code
@given(
    cost_N=COSTS | st.lists(st.integers(1, 30), min_size=1, max_size=14).map(np.array),
    num_ranks=RANKS,
)
def test_free_counts_are_never_worse_than_equal_counts(cost_N: np.ndarray, num_ranks: int) -> None:
    free, equal = (
        load_of_ranks(cost_N, place(cost_N, num_ranks, rng()), num_ranks).max()
        for place in (lpt_free, lpt_equal)
    )
    assert free <= equal * (1 + 1e-12)


def greedy_largest(cost_N: np.ndarray, num_ranks: int) -> float:
    """Graham's rule, written once more."""
    load_R = np.zeros(num_ranks)
    for cost in np.sort(cost_N)[::-1]:
        load_R[np.argmin(load_R)] += cost
    return float(load_R.max())


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


def test_equal_counts_longest_first_on_paper() -> None:
    # 9 -> rank 0; 4 -> 1; 3 -> 1 (4 < 9), whose two seats are taken; 1 -> 0: 10 | 7
    assert lpt_equal(np.array([4.0, 9.0, 1.0, 3.0]), 2, rng()).tolist() == [1, 0, 0, 1]
    # five sequences: 9 -> 0; 4, 3 -> 1 (7); a third seat is over and rank 1 asks first: 2 -> 1 (9);
    # the last has two seats on rank 0
    assert lpt_equal(np.array([4.0, 9.0, 1.0, 3.0, 2.0]), 2, rng()).tolist() == [1, 0, 0, 1, 1]


def test_serpentine_on_paper() -> None:
    # by cost 9 8 7 | 6 5 4 | 3: ranks 0 1 2 | 2 1 0 | 0
    cost_N = np.array([3.0, 4.0, 9.0, 8.0, 5.0, 7.0, 6.0])
    assert serpentine(cost_N, 3, rng()).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_differencing_on_paper() -> None:
    # 8-7=1, 6-5=1, 4; 4-1=3, 3-1=2: loads differ by 2, so 16 | 14. Longest first has 17 | 13.
    cost_N = np.array([4.0, 5.0, 6.0, 7.0, 8.0])
    loads = load_of_ranks(cost_N, karmarkar_karp(cost_N, 2, rng()), 2)
    assert sorted(loads.tolist()) == [14.0, 16.0]
    assert greedy_largest(cost_N, 2) == 17.0


def zipf_costs(num_sequences: int, seed: int) -> np.ndarray:
    """L + L^2 / 500 of lengths by Zipf's law of exponent 1.2 in [1, 4096)."""
    weight = np.arange(1, 4096) ** -1.2
    length = rng(seed).choice(np.arange(1.0, 4096), num_sequences, p=weight / weight.sum())
    return length + length**2 / 500


@pytest.mark.parametrize(("num_ranks", "per_rank"), [(64, 512), (16, 300), (3, 2000), (1, 5000)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_fast_form_is_at_the_bound_on_large_batches(
    num_ranks: int, per_rank: int, seed: int
) -> None:
    cost_N = zipf_costs(num_ranks * per_rank, seed)
    for place in (lpt_fast, lpt_free):
        rank_N = place(cost_N, num_ranks, rng())
        load_R = load_of_ranks(cost_N, rank_N, num_ranks)
        assert load_R.sum() == pytest.approx(cost_N.sum())
        assert load_R.max() <= bound_load(cost_N, num_ranks) * 1.0001


def test_the_fast_form_leaves_a_rank_with_a_giant_alone() -> None:
    # a giant of twice a rank's share; all others are on the other seven ranks
    cost_N = zipf_costs(8 * 600, 3)
    cost_N[17] = cost_N.sum() / 3
    rank_N = lpt_fast(cost_N, 8, rng())
    assert (rank_N == rank_N[17]).sum() == 1
    assert load_of_ranks(cost_N, rank_N, 8).max() == cost_N[17]


@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_the_fast_form_deals_equal_costs_evenly(cost: float) -> None:
    counts = np.bincount(lpt_fast(np.full(4 * 500, cost), 4, rng()), minlength=4)
    assert counts.sum() == 2000
    assert cost == 0.0 or counts.tolist() == [500] * 4


def test_longest_first_breaks_ties_by_rank_and_draws_nothing() -> None:
    generator = rng(5)
    before = generator.bit_generator.state
    assert lpt_free(np.ones(4), 4, generator).tolist() == [0, 1, 2, 3]
    assert generator.bit_generator.state == before


def test_the_bound_is_the_largest_sequence_or_the_mean() -> None:
    assert bound_load(np.array([9.0, 1.0, 2.0]), 2) == 9.0  # one sequence is more than half
    assert bound_load(np.array([4.0, 4.0, 4.0]), 2) == 6.0  # 12 over two ranks
    assert bound_load(np.zeros(0), 2) == 0.0


def test_the_bound_of_several_batches_is_a_ratio_of_sums() -> None:
    # means 6 and 6 over bounds 9 and 6
    costs = [np.array([9.0, 1.0, 2.0]), np.array([4.0, 4.0, 4.0])]
    assert bound_share(costs, 2) == pytest.approx(1 - 12 / 15)
    assert bound_share(costs, 1) is None


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
