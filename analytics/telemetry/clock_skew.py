"""Estimates how much faster one clock runs than another, from the offsets in windows of a log.

The log is cut into windows, the offset is estimated in each by itself, and a line is laid through
them: the median of the slopes between all pairs, so that a window fitted wrongly does not count. A
sample tells of a change up to its interval late, and that lateness may drift over the log, so no
slope is surer than that; most logs of minutes are too short to tell a rate at all. No answer is
given where the error is not less than the rate.

Before: clock_offset.py found the offset of the whole log.   After: dim_import.clock_skew_ppm.
Price: the estimate of an offset for each of 16 windows.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from analytics.telemetry.clock_offset import ClockOffset, Float, Int, estimate_offset

_WINDOWS = 16
_LEAST_FITTED = 8
_MOST_PPM = 500  # what a clock of quartz that nothing disciplines may do, and more


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockSkew:
    """How much faster the other clock runs, and how wrong that may be [microseconds a second]."""

    skew_ppm: float
    uncertainty_ppm: float
    span_ns: int  # time that both signals tell of

    @property
    def drift_ns(self) -> int:
        """How far the offset moves over the log, either way [ns]."""
        return round(abs(self.skew_ppm) * 1e-6 * self.span_ns)


def estimate_skew(
    times_ns: Int, values: Float, other_times_ns: Int, other_values: Float, offset: ClockOffset
) -> ClockSkew | None:
    """How much faster the clock of `other` runs than the first one's; None when nothing decides.

    times_ns, values, other_times_ns, other_values: as estimate_offset takes them; offset: what it
    found of them, the mean of the whole log.
    """
    shifted = other_times_ns - offset.offset_ns
    begin, end = int(max(times_ns[0], shifted[0])), int(min(times_ns[-1], shifted[-1]))
    span, interval = end - begin, int(np.median(np.diff(other_times_ns)))
    if span <= 0:
        return None
    margin = 2 * offset.uncertainty_ns + 4 * interval + span * _MOST_PPM // 10**6
    edges = np.linspace(begin, end, _WINDOWS + 1).astype(np.int64)
    middles, offsets = [], []
    for lower, upper in itertools.pairwise(edges.tolist()):
        # the value that holds where the window begins was told before it
        first = max(int(np.searchsorted(times_ns, lower - margin, side="right")) - 1, 0)
        last = int(np.searchsorted(times_ns, upper + margin)) + 1
        inside = slice(*np.searchsorted(shifted, [lower, upper]).tolist())
        found = estimate_offset(
            times_ns[first:last],
            values[first:last],
            shifted[inside],
            other_values[inside],
            most_ns=margin,
        )
        if found is not None:
            middles.append((lower + upper) / 2 - begin)
            offsets.append(float(found.offset_ns))
    if len(middles) < _LEAST_FITTED:
        return None
    slope, error = _line(np.array(middles), np.array(offsets))
    error = max(error, 1.5 * interval / span)  # of the line through a step of one interval
    if error >= abs(slope):
        return None
    return ClockSkew(skew_ppm=slope * 1e6, uncertainty_ppm=error * 1e6, span_ns=span)


def _line(places: Float, values: Float) -> tuple[float, float]:
    """Slope by the median of pairs (Theil and Sen), and two standard errors by the scatter."""
    pairs = np.triu_indices(len(places), k=1)
    slopes = (values[pairs[1]] - values[pairs[0]]) / (places[pairs[1]] - places[pairs[0]])
    slope = float(np.median(slopes))
    rest = values - slope * places
    scatter = 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
    spread = float(np.sqrt(np.sum((places - places.mean()) ** 2)))
    return slope, 2 * scatter / spread
