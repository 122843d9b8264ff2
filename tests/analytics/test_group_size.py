"""Nothing is published that fewer than the minimum group stand behind."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.errors import ConfigError
from analytics.group_size import (
    LengthSummary,
    check_group_users,
    group_quantiles,
    length_summary,
    merged_bins,
    rounded_up,
)
from analytics.lengths import length_bins


def test_least_and_most_are_lengths_that_a_group_shares() -> None:
    # 1..30: the tenth shortest has 10, the tenth longest 21; the median is between 15 and 16
    assert length_summary(np.arange(1, 31), 10) == LengthSummary(
        min_length=10, median_length=15.5, max_length=21
    )


def test_a_group_of_one_publishes_the_extremes() -> None:
    assert length_summary(np.array([3, 1, 10, 2]), 1) == LengthSummary(
        min_length=1, median_length=2.5, max_length=10
    )


def test_too_few_users_have_no_lengths_to_tell() -> None:
    # of 18 users no length has ten on either side, of 19 the tenth has
    nothing = LengthSummary(min_length=None, median_length=None, max_length=None)
    assert length_summary(np.arange(9), 10) == nothing
    assert length_summary(np.arange(18), 10) == nothing
    assert length_summary(np.arange(1, 20), 10) == LengthSummary(
        min_length=10, median_length=10.0, max_length=10
    )


@settings(deadline=None)  # a busy machine is no fault of the code
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=80),
    st.integers(1, 12),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_every_quantile_has_a_group_on_both_sides(lengths, least, shares) -> None:
    found = group_quantiles(np.array(lengths), sorted(shares), least)
    if found is None:
        assert len(lengths) < 2 * least - 1
        return
    assert found == sorted(found)
    for value in found:
        assert sum(length <= value for length in lengths) >= least
        assert sum(length >= value for length in lengths) >= least


def bins(*users: int) -> list[dict[str, int]]:
    return [
        {"from": 1 << at, "to": 2 << at, "num_users": count, "num_events": count << at}
        for at, count in enumerate(users)
    ]


def test_a_small_bin_joins_its_smaller_neighbour() -> None:
    # 4 users of length 4-7 stand between 20 and 10: they join the 10
    assert merged_bins(bins(30, 20, 4, 10), 10) == [
        {"from": 1, "to": 2, "num_users": 30, "num_events": 30},
        {"from": 2, "to": 4, "num_users": 20, "num_events": 40},
        {"from": 4, "to": 16, "num_users": 14, "num_events": 16 + 80},
    ]


def test_bins_of_too_few_users_in_all_are_withheld() -> None:
    assert merged_bins(bins(4, 5), 10) == []
    assert merged_bins([], 10) == []


@settings(deadline=None)  # a busy machine is no fault of the code
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200), st.integers(1, 25))
def test_bins_cover_every_user_and_none_is_below_the_minimum(lengths, least) -> None:
    before = length_bins(np.array(lengths))
    assert all(
        entry["num_users"] == sum(entry["from"] <= length < entry["to"] for length in lengths)
        for entry in before
    )
    merged = merged_bins(before, least)
    if len(lengths) < least:
        assert merged == []
        return
    assert sum(entry["num_users"] for entry in merged) == len(lengths)
    assert sum(entry["num_events"] for entry in merged) == sum(lengths)
    assert all(entry["num_users"] >= least for entry in merged)
    assert all(one["to"] <= two["from"] for one, two in itertools.pairwise(merged))


def test_the_longest_is_told_as_a_power_of_two() -> None:
    assert [rounded_up(length) for length in (0, 1, 2, 3, 4, 5, 1000, 1024, 1025)] == [
        1, 1, 2, 4, 4, 8, 1024, 1024, 2048,
    ]  # fmt: skip


def test_a_minimum_group_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"minimum group is 0 users.*--min-group"):
        check_group_users(0)
    with pytest.raises(ConfigError, match="at least 1"):
        length_summary(np.arange(5), -3)
    with pytest.raises(ConfigError, match="at least 1"):
        merged_bins([], 0)
