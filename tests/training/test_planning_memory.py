"""A limit of events a rank: kept whenever it can be, refused with the figures when it cannot."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.errors import PlanError
from training.planning.balance import load_of_ranks
from training.planning.memory import place_within_tokens
from training.planning.placement import PLACEMENT_FUNCTIONS, lpt_free


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def placed(
    tokens: list[int], costs: list[float], num_ranks: int, limit: int, name: str = "lpt_free"
) -> np.ndarray:
    return place_within_tokens(
        PLACEMENT_FUNCTIONS[name], np.array(costs, dtype=np.float64), np.array(tokens), num_ranks,
        rng(), max_tokens=limit,
    )  # fmt: skip


def can_fit(tokens: list[int], num_ranks: int, limit: int) -> bool:
    """By trying every placement."""
    return any(
        all(
            sum(t for t, rank in zip(tokens, ranks, strict=True) if rank == this) <= limit
            for this in range(num_ranks)
        )
        for ranks in itertools.product(range(num_ranks), repeat=len(tokens))
    )


@pytest.mark.parametrize("name", sorted(PLACEMENT_FUNCTIONS))
@settings(deadline=None)  # a busy machine is no fault of the code
@given(
    tokens=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    num_ranks=st.integers(1, 3),
    limit=st.integers(8, 40),
    data=st.data(),
)
def test_the_limit_is_kept_exactly_when_some_placement_keeps_it(
    name: str, tokens: list[int], num_ranks: int, limit: int, data: st.DataObject
) -> None:
    costs = data.draw(st.lists(st.floats(0.1, 9), min_size=len(tokens), max_size=len(tokens)))
    if can_fit(tokens, num_ranks, limit):
        rank_N = placed(tokens, costs, num_ranks, limit, name)
        assert load_of_ranks(np.array(tokens), rank_N, num_ranks).max() <= limit
    else:
        with pytest.raises(PlanError, match="max_tokens_per_rank"):
            placed(tokens, costs, num_ranks, limit, name)


@settings(deadline=None)  # a busy machine is no fault of the code
@given(tokens=st.lists(st.integers(1, 99), min_size=1, max_size=30), num_ranks=st.integers(1, 5))
def test_a_limit_that_is_no_limit_changes_nothing(tokens: list[int], num_ranks: int) -> None:
    cost_N = np.array(tokens, dtype=np.float64) ** 1.5
    free = placed(tokens, cost_N.tolist(), num_ranks, sum(tokens))
    assert free.tolist() == lpt_free(cost_N, num_ranks, rng()).tolist()


def test_among_placements_that_fit_cost_is_balanced() -> None:
    # Costs 10, 4, 3, 3 with 10, 10, 10, 10 events. Without a limit 10 | 4 + 3 + 3; at most 20
    # events a rank means two and two, of which 10 + 3 | 4 + 3 costs least.
    rank_N = placed([10, 10, 10, 10], [10.0, 4.0, 3.0, 3.0], 2, 20)
    loads = load_of_ranks(np.array([10.0, 4.0, 3.0, 3.0]), rank_N, 2)
    assert sorted(loads.tolist()) == [7.0, 13.0]
    assert np.bincount(rank_N).tolist() == [2, 2]


def test_what_no_greedy_rule_finds_is_searched_for() -> None:
    # 33 = 11 + 10 + 6 + 6 = 9 + 8 + 8 + 8: any other pairing of 66 events on two ranks of 33 fails
    tokens = [11, 10, 9, 8, 8, 8, 6, 6]
    rank_N = placed(tokens, [1.0] * 8, 2, 33)
    assert load_of_ranks(np.array(tokens), rank_N, 2).tolist() == [33.0, 33.0]


def test_on_large_batches_the_limit_costs_little_balance() -> None:
    # events within 2 % of even where cost alone would let them differ by more
    length = rng(5).zipf(1.3, 64 * 64).clip(max=2000).astype(np.int64)
    cost_N = length + length**2 / 100.0
    free = lpt_free(cost_N, 64, rng())
    limit = int(length.sum() / 64 * 1.02)
    assert load_of_ranks(length, free, 64).max() > limit
    rank_N = place_within_tokens(lpt_free, cost_N, length, 64, rng(), max_tokens=limit)
    assert load_of_ranks(length, rank_N, 64).max() <= limit


@pytest.mark.parametrize(
    ("tokens", "num_ranks", "limit", "message"),
    [
        (
            [30, 5],
            2,
            20,
            r"A sequence has 30 events.* 20 .*--max-tokens-per-rank .*least 30.*--cut-giants",
        ),
        ([15] * 5, 2, 30, r"global batch has 75 events.*2 ranks of at most 30.*\(60\).*least 38"),
        ([15, 15, 15], 2, 29, r"No placement was found of 3 sequences with 45 events on 2 ranks"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_figures(
    tokens: list[int], num_ranks: int, limit: int, message: str
) -> None:
    with pytest.raises(PlanError, match=message) as refused:
        placed(tokens, [1.0] * len(tokens), num_ranks, limit)
    # as it is typed, and as it stands in a configuration
    assert "--max-tokens-per-rank (max_tokens_per_rank)" in str(refused.value)
