"""The breakdown of device time as HolisticTraceAnalysis defines it, for comparison with it.

Its rules, kept: only kernels whose launch is in the trace and began before the last ProfilerStep
did (all of the trace, when it has at most one step); time runs from the first kernel's start to
the last one's end; copies are neither idle nor compute; idle causes are told stream by stream, each
gap between one kernel's end and the next one's start. What differs, and why, is in docs/traces.md.

Before: reading.py gives a trace.   After: analysis.py shows these figures beside our own parts.
Price: a few sorts.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from analytics.kineto import intervals
from analytics.kineto.kernels import COMMUNICATION, COMPUTE
from analytics.kineto.marks import STEP
from analytics.kineto.reading import Trace

KERNEL_DELAY_NS = 30_000


@dataclasses.dataclass(frozen=True)
class IdleCauses:
    """Idle time between the kernels of one stream, by cause [ns]; may be negative on overlap."""

    stream: int
    host_wait_ns: int  # the next kernel was launched after the one before had ended
    kernel_wait_ns: int  # of the rest, gaps below the threshold
    other_ns: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the time between the first and the last kernel went [ns]."""

    kernel_ns: int
    idle_ns: int
    compute_ns: int
    non_compute_ns: int
    comm_ns: int
    overlapped_comm_ns: int
    num_kernels: int
    idle_causes: tuple[IdleCauses, ...]

    @property
    def overlap_share(self) -> float | None:
        """Share of communication that runs under compute; None without communication."""
        return self.overlapped_comm_ns / self.comm_ns if self.comm_ns else None


def num_steps(traces: list[Trace]) -> int:
    """Distinct ProfilerSteps in any of these traces."""
    return len({mark.label for trace in traces for mark in trace.marks if mark.what == STEP})


def breakdown(
    trace: Trace, *, drop_last_step: bool, delay_ns: int = KERNEL_DELAY_NS
) -> Breakdown | None:
    """The breakdown of one rank; None when no kernel of the trace counts.

    drop_last_step: leave out what the last ProfilerStep launched.
    """
    place, launched_ns = kernels_that_count(trace, drop_last_step=drop_last_step)
    if not len(place):
        return None
    spans, its_class = trace.spans[place], trace.its_class[place]
    compute = intervals.union(spans[its_class == COMPUTE])
    comm = intervals.union(spans[its_class == COMMUNICATION])
    kernel_ns = int(spans[:, 1].max() - spans[:, 0].min())
    idle_ns = kernel_ns - intervals.length_ns(intervals.union(spans))
    compute_ns = intervals.length_ns(compute)
    return Breakdown(
        kernel_ns=kernel_ns,
        idle_ns=idle_ns,
        compute_ns=compute_ns,
        non_compute_ns=kernel_ns - idle_ns - compute_ns,
        comm_ns=intervals.length_ns(comm),
        overlapped_comm_ns=intervals.length_ns(intervals.overlap(comm, compute)),
        num_kernels=len(place),
        idle_causes=_idle_causes(trace, place, launched_ns, delay_ns),
    )


def kernels_that_count(trace: Trace, *, drop_last_step: bool) -> tuple[np.ndarray, np.ndarray]:
    """(places of the device events that count, sorted by start; start of each's launch [ns]).

    A launch that is not in the trace is told as long ago: nothing waited for it.
    """
    steps = [mark.start_ns for mark in trace.marks if mark.what == STEP]
    is_known = trace.launch_correlation >= 0
    launched, found = launch_of(
        trace.correlation, trace.launch_correlation[is_known], trace.launch_ns[is_known]
    )
    launched = np.where(found, launched, -(2**62))
    counts = trace.stream >= 0
    if steps and drop_last_step:
        counts &= found & (launched < max(steps))
    place = np.flatnonzero(counts)
    return place, launched[place]


def launch_of(
    correlation: np.ndarray, launch_correlation: np.ndarray, launch_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(start of the last launch of each correlation [ns], whether there is one)."""
    if not len(launch_ns):
        return np.zeros(len(correlation), np.int64), np.zeros(len(correlation), bool)
    order = np.argsort(launch_correlation, kind="stable")
    known = launch_correlation[order]
    place = np.searchsorted(known, correlation, side="right") - 1
    found = (place >= 0) & (known[np.maximum(place, 0)] == correlation) & (correlation >= 0)
    return launch_ns[order][np.maximum(place, 0)], found


def _idle_causes(
    trace: Trace, place: np.ndarray, launched_ns: np.ndarray, delay_ns: int
) -> tuple[IdleCauses, ...]:
    found = []
    for stream in intervals.distinct(trace.stream[place]):
        mine = trace.stream[place] == stream
        spans, launched = trace.spans[place[mine]], launched_ns[mine]
        gap, before = spans[1:, 0] - spans[:-1, 1], spans[:-1, 1]
        is_host = launched[1:] > before
        is_delay = ~is_host & (gap < delay_ns)
        found.append(
            IdleCauses(
                stream=int(stream),
                host_wait_ns=int(gap[is_host].sum()),
                kernel_wait_ns=int(gap[is_delay].sum()),
                other_ns=int(gap[~is_host & ~is_delay].sum()),
            )
        )
    return tuple(found)
