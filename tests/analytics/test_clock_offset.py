"""Offset and rate between two clocks from signals of the same work: right, or not given."""

import numpy as np
import pytest

from analytics.telemetry.clock_offset import estimate_offset
from analytics.telemetry.clock_skew import estimate_skew

S = 10**9
HOUR = 3600 * S


def signal(every_s: float, shift_s: float, seed: int = 7, *, period: bool = False):
    """Work that starts and stops at random moments of 20 minutes, as a clock ahead sees it."""
    rng = np.random.default_rng(seed)
    edges = np.arange(0, 1200, 60.0) if period else np.sort(rng.uniform(0, 1200, 40))
    times = np.arange(0, 1200, every_s)
    busy = (np.searchsorted(edges, times) % 2).astype(float)
    return ((times + shift_s + 1e6) * S).astype(np.int64), busy


@pytest.mark.parametrize("shift_s", [0.0, 37.0, -512.25, 90.5])
def test_a_known_shift_is_found_within_its_stated_error(shift_s):
    found = estimate_offset(*signal(0.5, 0.0), *signal(1.0, shift_s), most_ns=HOUR)
    assert found is not None
    assert abs(found.offset_ns - shift_s * S) <= found.uncertainty_ns
    assert found.uncertainty_ns <= 3 * S
    assert found.correlation > 0.9


def test_a_lag_and_noise_of_the_other_signal_do_not_hide_the_shift():
    # DCGM#170: figures came up to 40 s after the work that they are of
    times, busy = signal(1.0, 20.0)
    noisy = busy * 300 + 70 + np.random.default_rng(1).normal(0, 30, len(busy))
    found = estimate_offset(*signal(0.5, 0.0), times, noisy, most_ns=HOUR)
    assert found is not None
    assert abs(found.offset_ns - 20 * S) <= max(found.uncertainty_ns, S)


@pytest.mark.parametrize(
    "other",
    [
        (signal(1.0, 0.0)[0], np.ones(1200)),  # nothing moves
        signal(1.0, 0.0, seed=99),  # other work
        tuple(part[:5] for part in signal(1.0, 0.0)),  # too short
    ],
)
def test_signals_that_decide_nothing_give_no_offset(other):
    assert estimate_offset(*signal(0.5, 0.0), *other, most_ns=HOUR) is None


def test_work_that_repeats_itself_gives_no_offset():
    even = signal(0.5, 0.0, period=True), signal(1.0, 30.0, period=True)
    assert estimate_offset(*even[0], *even[1], most_ns=HOUR) is None


def drifting(hours: float, ppm: float):
    """Steps of 10 to 120 s and samples of them every second by a clock of this rate."""
    rng = np.random.default_rng(5)
    edges = np.cumsum(rng.uniform(10, 120, round(hours * 60)))
    busy = (np.arange(len(edges)) % 2).astype(float)
    true = np.arange(edges[0], edges[-1], 1.0)
    there = busy[np.searchsorted(edges, true, side="right") - 1]
    shown = true * (1 + ppm * 1e-6) + 37.0
    steps = ((edges + 1e6) * S).astype(np.int64), busy
    return *steps, ((shown + 1e6) * S).astype(np.int64), there


@pytest.mark.parametrize("ppm", [50.0, -120.0])
def test_a_known_rate_is_found_within_its_stated_error(ppm):
    signals = drifting(24, ppm)
    offset = estimate_offset(*signals, most_ns=HOUR)
    assert offset is not None
    skew = estimate_skew(*signals, offset)
    assert skew is not None
    assert abs(skew.skew_ppm - ppm) <= skew.uncertainty_ppm < abs(ppm) / 2
    # about 26 hours at 50 ppm are 4.7 s
    assert skew.drift_ns == pytest.approx(abs(ppm) * 1e-6 * skew.span_ns, rel=0.2)


@pytest.mark.parametrize(
    ("hours", "ppm"),
    [(24, 0.0), (0.5, 50.0), (0.2, 0.0)],  # the same rate; and too short to tell
)
def test_a_rate_that_is_not_more_than_its_error_is_not_told(hours, ppm):
    signals = drifting(hours, ppm)
    offset = estimate_offset(*signals, most_ns=HOUR)
    assert offset is not None
    assert estimate_skew(*signals, offset) is None
