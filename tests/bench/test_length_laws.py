"""The baseline of bench/balance.py is NVIDIA's: equal counts, largest spread first."""

from __future__ import annotations

import numpy as np
import pytest

from bench.length_laws import equal_count_karmarkar_karp, nvidia_cost, zipf_lengths
from training.planning.balance import load_of_ranks


def loads(costs: list[float], num_ranks: int) -> list[float]:
    cost_N = np.array(costs)
    return load_of_ranks(cost_N, equal_count_karmarkar_karp(cost_N, num_ranks), num_ranks).tolist()


def test_equal_count_differencing_on_paper() -> None:
    # begins as (2, 1) and (4, 3), joined full to empty: 2 + 3 and 1 + 4
    assert loads([1.0, 2.0, 3.0, 4.0], 2) == [5.0, 5.0]
    # (2, 1) and (9, 4): the 9 must take one with it, 9 + 1 and 4 + 2
    assert loads([1.0, 2.0, 4.0, 9.0], 2) == [10.0, 6.0]


def test_counts_are_equal_and_a_short_batch_is_filled_up_with_nothing() -> None:
    costs = zipf_lengths(64, np.random.default_rng(1)).astype(np.float64)
    assert np.bincount(equal_count_karmarkar_karp(costs, 8)).tolist() == [8] * 8
    short = equal_count_karmarkar_karp(costs[:61], 8)
    assert sorted(np.bincount(short, minlength=8))[-1] == 8
    assert len(short) == 61


def test_nvidias_cost_formula_on_paper() -> None:
    # width 1024, 4 heads, one event: 8 x 1024^2 + 2 x 1024^2 + 2 x 1024 x 4 x 2
    assert nvidia_cost(np.array([1]))[0] == pytest.approx(10 * 1024**2 + 16 * 1024)
