"""Which schedule is fastest: equal work is compared, and noise decides nothing."""

from __future__ import annotations

import math

import pytest

from training.pipeline.standings import Standing, fastest, standings, still_open


def standing(step_s: float, error_share: float = 0.0) -> Standing:
    return Standing(num_steps=6, step_s=step_s, error_share=error_share)


def test_a_schedule_that_met_small_batches_is_no_faster_for_it():
    # seconds are work / 100 for one and 0.8 of that for the other, which met batches twice as large
    plain = [(work / 100, work) for work in (10, 12, 14)]
    quick = [(0.8 * work / 100, work) for work in (20, 24, 28)]
    found = standings({"plain": plain, "quick": quick})
    assert found["quick"].step_s / found["plain"].step_s == pytest.approx(0.8)
    assert fastest(found) == "quick"


def test_equal_work_needs_no_adjustment():
    found = standings({"a": [(2.0, 5), (2.0, 5)], "b": [(3.0, 5)]})
    assert found["a"].step_s == pytest.approx(2.0)
    assert found["b"].step_s == pytest.approx(3.0)
    assert found["b"].num_steps == 1


def test_a_stall_of_the_machine_decides_nothing():
    steady = [(1.0, 10)] * 6
    stalled = [(0.9, 10)] * 5 + [(60.0, 10)]
    assert fastest(standings({"steady": steady, "stalled": stalled})) == "stalled"


def test_the_error_is_that_of_a_median():
    # deviations of log time: 0.1 twice and 0 once either way -> MAD 0.1 over four steps each
    steps = [(math.exp(x), 10) for x in (-0.1, -0.1, 0.1, 0.1)]
    found = standings({"a": steps})["a"]
    assert found.error_share == pytest.approx(math.sqrt(math.pi / 2) * 1.4826 * 0.1 / 2)


def test_the_less_involved_wins_what_is_within_noise():
    assert fastest({"plain": standing(1.0), "involved": standing(0.985)}) == "plain"
    assert fastest({"plain": standing(1.0), "involved": standing(0.97)}) == "involved"
    assert fastest({"plain": standing(1.0, 0.03), "involved": standing(0.97, 0.03)}) == "plain"


def test_of_two_that_beat_the_plain_one_the_less_involved_wins_a_tie():
    found = {"plain": standing(1.13, 0.04), "ahead": standing(1.003, 0.06), "most": standing(1.0)}
    assert fastest(found) == "ahead"


def test_only_what_has_clearly_lost_is_dropped():
    found = {"a": standing(1.0, 0.02), "b": standing(1.05, 0.02), "c": standing(1.2, 0.02)}
    # 2 x hypot(.02, .02) = .057: 5 % behind may be chance, 20 % is not
    assert still_open(found) == ["a", "b"]


def test_steps_without_a_target_are_no_division_by_nothing():
    found = standings({"a": [(1.0, 0), (1.0, 0)], "b": [(2.0, 0)]})
    assert fastest(found) == "a"
