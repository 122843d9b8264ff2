"""Times between events against paper, and told of groups only."""

from pathlib import Path

import pytest

from analytics.gaps import gap_profile
from tests.analytics.stores import made_store

ITEMS = [[0, 1, 2], [1, 0, 2], [2, 1, 0]]
# gaps 10 and 20, 30 and 40, 0 and 50: none of the two between users
TIMES = [[100, 110, 130], [0, 30, 70], [500, 500, 550]]


def test_gaps_are_those_within_a_user(tmp_path: Path) -> None:
    found = gap_profile(made_store(tmp_path, ITEMS, TIMES), seed=1, min_group_users=1)
    assert found is not None
    assert (found["num_gaps"], found["num_users"], found["is_drawn"]) == (6, 3, False)
    assert found["zero_gap_share"] == pytest.approx(1 / 6)
    # of 0 10 20 30 40 50 the median is 25, the upper decile 45
    assert found["quantiles_s"]["0.5"] == pytest.approx(25)
    assert found["quantiles_s"]["0.9"] == pytest.approx(45)


def test_a_gap_quantile_has_a_group_of_users_on_both_sides(tmp_path: Path) -> None:
    # least gaps a user: 10, 30, 0; the second smallest is 10. Most: 20, 40, 50; the second is 40
    found = gap_profile(made_store(tmp_path, ITEMS, TIMES), seed=1, min_group_users=2)
    assert found is not None
    assert found["quantiles_s"]["0.1"] == pytest.approx(10)
    assert found["quantiles_s"]["0.99"] == pytest.approx(40)
    few = gap_profile(made_store(tmp_path, ITEMS, TIMES), seed=1, min_group_users=3)
    assert few is not None and few["quantiles_s"] is None


def test_without_times_there_are_no_gaps(tmp_path: Path) -> None:
    assert gap_profile(made_store(tmp_path, ITEMS), seed=1, min_group_users=1) is None


def test_where_nobody_has_two_events_there_is_no_gap(tmp_path: Path) -> None:
    store = made_store(tmp_path, [[0], [1], [2]], [[1], [2], [3]])
    found = gap_profile(store, seed=1, min_group_users=1)
    assert found is not None
    assert (found["num_gaps"], found["zero_gap_share"], found["quantiles_s"]) == (0, None, None)


def test_of_many_gaps_a_draw_of_users_is_taken(tmp_path: Path) -> None:
    histories = [[0, 1, 2, 0, 1]] * 100
    times = [[0, 7, 14, 21, 28]] * 100
    store = made_store(tmp_path, histories, times)
    found = gap_profile(store, seed=1, min_group_users=10, most_gaps=200)
    assert found is not None
    assert (found["num_users"], found["num_gaps"], found["is_drawn"]) == (50, 200, True)
    assert set(found["quantiles_s"].values()) == {7.0}
