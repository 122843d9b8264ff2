"""The offset between two clocks from signals of the same work: right, or not given."""

import numpy as np
import pytest

from analytics.telemetry.clock_offset import estimate_offset

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
