"""The windows a trace is looked at in: one a ProfilerStep, or the whole trace.

A step's window ends where the next one's begins, so that windows tile the trace. The last one ends
with its annotation, or later, with the last kernel that it launched. A trace without steps is one
window from its first event to its last, the host's included.

Before: reading.py gives the marks.   After: parts.py and collectives.py cut time by them.
Price: nothing to speak of.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from analytics.kineto.breakdown import launch_of
from analytics.kineto.marks import STEP
from analytics.kineto.reading import Trace


@dataclasses.dataclass(frozen=True)
class Windows:
    """Tiles of a trace."""

    bounds_ns: np.ndarray  # int64 (N + 1,): window i is [bounds[i], bounds[i + 1])
    steps: tuple[int, ...]  # number of each window's step
    is_of_steps: bool  # False when the one window is the whole trace

    def of(self, times_ns: np.ndarray) -> np.ndarray:
        """The window that each time lies in; -1 before the first, N after the last."""
        return np.searchsorted(self.bounds_ns, times_ns, side="right") - 1


def windows(trace: Trace) -> Windows:
    """The windows of a trace, in the order of time."""
    steps = [mark for mark in trace.marks if mark.what == STEP]
    starts = sorted({step.start_ns: int(step.label) for step in steps}.items())
    if not starts:
        whole = np.array([trace.first_ns, max(trace.last_ns, trace.first_ns + 1)], np.int64)
        return Windows(whole, (0,), is_of_steps=False)
    begin_ns = starts[-1][0]
    end_ns = max(max(step.end_ns for step in steps), begin_ns + 1)
    launched, found = launch_of(trace.correlation, trace.launch_correlation, trace.launch_ns)
    of_last = found & (launched >= begin_ns) & (launched < end_ns)
    if of_last.any():
        end_ns = max(end_ns, int(trace.spans[of_last, 1].max()))
    numbers = [number for _, number in starts]
    if len(set(numbers)) < len(numbers):  # two threads that both step: told apart by their order
        numbers = list(range(len(starts)))
    bounds = np.array([start for start, _ in starts] + [end_ns], np.int64)
    return Windows(bounds, tuple(numbers), is_of_steps=True)
