"""Counters that start again or jump, and readings that cannot be: a true figure or none."""

from __future__ import annotations

import math

import pytest

from analytics.telemetry.counters import BLANK, Energy, Rate, counted, in_range, share_of_percent


@pytest.mark.parametrize(
    "value",
    [BLANK, 9_223_372_036_854_775_794, 4_294_967_295, 2_619, -1, math.nan, math.inf, None],
)
def test_blanks_and_nonsense_of_a_driver_are_no_values(value: float | None) -> None:
    assert in_range(value, 100) is None
    assert share_of_percent(value) is None


@pytest.mark.parametrize(("percent", "share"), [(0, 0.0), (45, 0.45), (100, 1.0), (100.4, 1.0)])
def test_a_percentage_is_a_share(percent: float, share: float) -> None:
    assert share_of_percent(percent) == pytest.approx(share)


def test_a_counter_that_started_again_has_counted_what_it_shows() -> None:
    assert counted(50, 30) == 20
    assert counted(7, 30) == 7


def test_a_rate_spans_the_readings_that_told_nothing() -> None:
    rate = Rate()
    assert rate.take(100, 0.0) is None  # the first has nothing to compare with
    assert rate.take(None, 1.0) is None
    assert rate.take(300, 2.0) == pytest.approx(100)
    assert rate.take(30, 3.0) == pytest.approx(30)  # reset
    assert rate.take(40, 3.0) is None  # no time has passed


def test_an_energy_counter_that_started_again_goes_on_where_it_was() -> None:
    # zeus#181, zeus#45, compute-runtime#938: a counter that fell underflowed to terawatts
    energy = Energy()
    # 700 W: at most 1050 J a second
    assert energy.take(5_000, 0.0, 700) == 5_000
    assert energy.take(5_400, 1.0, 700) == 5_400
    assert energy.take(10, 2.0, 700) == 5_410  # not 3.69 TW, nor a counter that falls
    assert energy.take(None, 3.0, 700) is None
    assert energy.take(510, 4.0, 700) == 5_910


def test_a_jump_beyond_the_power_limit_is_left_out_until_two_readings_agree() -> None:
    energy = Energy()
    assert energy.take(5_000, 0.0, 700) == 5_000
    assert energy.take(9_000_000, 1.0, 700) is None  # one wild reading
    assert energy.take(6_000, 2.0, 700) == 6_000
    # a counter that really goes on elsewhere: what it gained between is unknown and not made up
    assert energy.take(9_000_000, 3.0, 700) is None
    assert energy.take(9_000_300, 4.0, 700) == 6_300
    assert energy.take(9_000_500, 5.0, 700) == 6_500


def test_without_a_power_limit_the_largest_board_s_holds() -> None:
    energy = Energy()
    energy.take(0, 0.0, None)
    assert energy.take(4_000, 1.0, None) == 4_000
    assert energy.take(10_000, 2.0, None) is None
