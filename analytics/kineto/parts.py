"""Where the time of each window of a trace went, by the definitions of docs/definitions.md.

Every moment of a window goes to exactly one part, the first that fits: busy, straggler wait,
exposed communication, exposed copy, then, idle: waiting for data, for the host, a short gap, and
what is left. So the parts sum to the window to the nanosecond. Streams are taken together: a
device is idle when no stream runs anything.

Before: reading.py gives a trace, collectives.py the waits for stragglers.   After: analysis.py.
Price: a sort of all starts and ends.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from analytics.kineto import intervals
from analytics.kineto.breakdown import KERNEL_DELAY_NS, launch_of
from analytics.kineto.kernels import COMMUNICATION, COMPUTE, COPY
from analytics.kineto.marks import COLLECTIVE, DATA, STEP
from analytics.kineto.reading import Trace
from analytics.kineto.windows import Windows

PARTS = (
    "busy", "straggler_wait", "exposed_comm", "exposed_copy", "data_wait", "host_wait",
    "kernel_gap", "unattributed",
)  # fmt: skip
_BUSY, _STRAGGLER, _COMM, _COPY, _DATA, _HOST, _GAP, _REST = range(len(PARTS))
_NEVER = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of each window [ns]."""

    part_ns: np.ndarray  # int64 (windows, len(PARTS))
    comm_ns: np.ndarray  # time with a collective in flight
    overlapped_comm_ns: np.ndarray  # the part of it under compute
    has_launches: bool  # whether the trace tells launches, without which host waits are unknown


@dataclasses.dataclass(frozen=True)
class Covered:
    """What covers a trace's time, as unions of intervals."""

    compute: np.ndarray
    comm: np.ndarray
    copies: np.ndarray
    data: np.ndarray  # the loop waits for its next batch
    late: np.ndarray  # idle before a late launch
    short: np.ndarray  # idle for less than the threshold


def covered(trace: Trace, *, gap_ns: int = KERNEL_DELAY_NS) -> Covered:
    """What covers a trace's time.

    Without anything on a device, compute is the host's operators and communication the host's
    collectives, as on CPU with gloo.
    """
    data = intervals.union(_spans(trace, DATA))
    if not trace.has_device:
        none = intervals.NOTHING
        comm = intervals.union(_spans(trace, COLLECTIVE))
        compute = intervals.without(intervals.union(trace.operators), data)
        return Covered(compute, comm, none, data, none, none)
    compute, comm, copies = (
        intervals.union(trace.of_class(kind)) for kind in (COMPUTE, COMMUNICATION, COPY)
    )
    late, short = _idle(trace, gap_ns)
    return Covered(compute, comm, copies, data, late, short)


def parts(cover: Covered, waits: np.ndarray, tiles: Windows, *, has_launches: bool) -> Parts:
    """The parts of each window.

    waits: disjoint intervals in which the rank waited for the last one to arrive.
    """
    sets = (
        cover.compute, cover.comm, cover.copies, cover.data, cover.late, cover.short, waits,
    )  # fmt: skip
    first, last = tiles.bounds_ns[0], tiles.bounds_ns[-1]
    times = [tiles.bounds_ns, *(spans.ravel() for spans in sets)]
    points = intervals.distinct(np.concatenate(times))
    points = points[(points >= first) & (points <= last)]
    begin, length = points[:-1], np.diff(points)
    is_compute, is_comm, is_copy, is_data, is_late, is_short, is_wait = (
        intervals.covers(spans, begin) for spans in sets
    )
    part = np.select(
        [is_compute, is_comm & is_wait, is_comm, is_copy, is_data, is_late, is_short],
        [_BUSY, _STRAGGLER, _COMM, _COPY, _DATA, _HOST, _GAP],
        _REST,
    )
    window = tiles.of(begin)
    part_ns = np.zeros((len(tiles.steps), len(PARTS)), np.int64)
    np.add.at(part_ns, (window, part), length)
    comm_ns, overlapped_ns = np.zeros((2, len(tiles.steps)), np.int64)
    np.add.at(comm_ns, window[is_comm], length[is_comm])
    both = is_comm & is_compute
    np.add.at(overlapped_ns, window[both], length[both])
    return Parts(part_ns, comm_ns, overlapped_ns, has_launches)


def _spans(trace: Trace, what: str) -> np.ndarray:
    """What the host marked so; waits for data only of the thread that takes the steps."""
    marks = [mark for mark in trace.marks if mark.what == what]
    threads = {mark.thread for mark in trace.marks if mark.what == STEP}
    if what == DATA and threads:
        marks = [mark for mark in marks if mark.thread in threads]
    return np.array([(mark.start_ns, mark.end_ns) for mark in marks], np.int64).reshape(-1, 2)


def _idle(trace: Trace, gap_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """(idle times before a late launch, short ones of the others).

    A launch is late when it began after everything before had ended. Before the first kernel, it
    is late when it began after the trace did. Of kernels that start together the earliest launch
    counts.
    """
    running = intervals.union(trace.spans)
    if not len(running):
        return intervals.NOTHING, intervals.NOTHING
    idle = intervals.gaps(running)
    if trace.first_ns < running[0, 0]:
        idle = np.concatenate([[[trace.first_ns, running[0, 0]]], idle])
    launched, found = launch_of(trace.correlation, trace.launch_correlation, trace.launch_ns)
    counts = trace.spans[:, 1] > trace.spans[:, 0]
    starts = trace.spans[counts, 0]  # sorted, as device events are
    launched = np.where(found, launched, _NEVER)[counts]
    first = np.flatnonzero(np.append(True, starts[1:] != starts[:-1]))
    earliest = np.minimum.reduceat(launched, first)
    of_next = earliest[np.searchsorted(starts[first], idle[:, 1])]
    is_late = (of_next > idle[:, 0]) & (of_next < _NEVER)
    is_short = ~is_late & (idle[:, 1] - idle[:, 0] < gap_ns)
    return idle[is_late], idle[is_short]
