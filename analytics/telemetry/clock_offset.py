"""Estimates how far one clock is ahead of another, from two signals of the same work.

Both are steps: a value holds until the next time. They are laid on one grid and shifted against
each other; where they correlate best is the offset. No answer is given when nothing moves, when
the best place is not good, or when another place far from it is nearly as good, as with work that
repeats itself: a wrong offset is worse than none.

Before: run_clock.py reads samples and steps.   After: dim_import.clock_offset_ns and its error.
Price: one FFT of at most 2**18 points.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

_MOST_POINTS = 1 << 17
_LEAST_CORRELATION = 0.6
_NEARLY = 0.9  # another place this close to the best one leaves it open
_PEAK_SHARE = 0.95  # places this good are one peak, whose half width is the error
_LEAST_OVERLAP = 0.5

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """How far the other clock is ahead [ns], how wrong that may be [ns], and how well it fits."""

    offset_ns: int
    uncertainty_ns: int
    correlation: float


def estimate_offset(
    times_ns: Int,
    values: Float,
    other_times_ns: Int,
    other_values: Float,
    *,
    most_ns: int,
) -> ClockOffset | None:
    """How far the clock of `other` is ahead of the first one's; None when nothing decides.

    times_ns, values: shape (N,), ascending times and what holds from each until the next; exact.
    other_*: shape (M,), samples of the same by the other clock, which tell of a change up to their
    interval late: the error is at least that. most_ns: the largest offset looked for [ns].
    """
    if min(len(times_ns), len(other_times_ns)) < 8:
        return None
    intervals = [int(np.median(np.diff(times))) for times in (times_ns, other_times_ns)]
    begin = int(min(times_ns[0], other_times_ns[0]))
    span = int(max(times_ns[-1], other_times_ns[-1])) - begin + 1
    step = max(min(intervals) // 4, span // _MOST_POINTS, 1)
    grid = begin + np.arange(span // step + 1, dtype=np.int64) * step
    first, is_first = _on_grid(times_ns, values, grid)
    other, is_other = _on_grid(other_times_ns, other_values, grid)
    if not (first.any() and other.any()):
        return None
    scores = _correlations(first, is_first, other, is_other)
    lags = np.arange(-len(grid) + 1, len(grid))
    inside = np.abs(lags) * step <= most_ns
    return _peak(scores[inside], lags[inside], step, intervals[1])


def _on_grid(times_ns: Int, values: Float, grid: Int) -> tuple[Float, Float]:
    """A signal on the grid less its mean, 0 where it is not known, and where it is known."""
    places = np.searchsorted(times_ns, grid, side="right") - 1
    known = (places >= 0) & (grid <= times_ns[-1])
    laid = values[np.clip(places, 0, None)].astype(np.float64)
    laid = np.where(known, laid - laid[known].mean(), 0.0)
    return np.where(np.abs(laid) < 1e-12, 0.0, laid), known.astype(np.float64)


def _correlations(first: Float, is_first: Float, other: Float, is_other: Float) -> Float:
    """Pearson-like correlation at each lag of `other`, -1 where too little of both overlaps."""

    def lagged(a: Float, b: Float) -> Float:
        size = 1 << (2 * len(a) - 1).bit_length()
        product = np.fft.irfft(np.conj(np.fft.rfft(a, size)) * np.fft.rfft(b, size), size)
        found: Float = np.concatenate([product[-(len(a) - 1) :], product[: len(a)]])
        return found

    overlap = lagged(is_first, is_other)
    power = lagged(first**2, is_other) * lagged(is_first, other**2)
    enough = overlap >= _LEAST_OVERLAP * min(is_first.sum(), is_other.sum())
    enough &= power > 1e-9 * power.max()
    scores: Float = np.full(len(overlap), -1.0)
    scores[enough] = lagged(first, other)[enough] / np.sqrt(power[enough])
    return scores


def _peak(scores: Float, lags: Int, step: int, interval: int) -> ClockOffset | None:
    """The one best place, or None."""
    if not len(scores):
        return None
    best = int(scores.argmax())
    top = float(scores[best])
    if top < _LEAST_CORRELATION:
        return None
    low = high = best
    while low > 0 and scores[low - 1] >= _PEAK_SHARE * top:
        low -= 1
    while high < len(scores) - 1 and scores[high + 1] >= _PEAK_SHARE * top:
        high += 1
    # going down from the peak, what is as good again is another answer
    left, right = low, high
    while left > 0 and scores[left - 1] <= scores[left]:
        left -= 1
    while right < len(scores) - 1 and scores[right + 1] <= scores[right]:
        right += 1
    rest = np.concatenate([scores[:left], scores[right + 1 :]])
    if len(rest) and rest.max() >= _NEARLY * top:
        return None
    if low == 0 or high == len(scores) - 1:
        return None  # the best place may lie beyond what was looked at
    offset = int(lags[low] + lags[high]) * step // 2
    half = int(lags[high] - lags[low]) * step // 2
    return ClockOffset(offset_ns=offset, uncertainty_ns=max(half, interval, step), correlation=top)
