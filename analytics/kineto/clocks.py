"""How far the clocks of the ranks of one job differ, told from their traces.

Ranks of one host share a clock: their devices have different numbers and the host lists them all.
Otherwise clocks are aligned where collectives end, which is at one moment on every rank but for
the time the last message travels: the median of the differences is the offset, the median
distance from it is its error.

Before: collectives.py has joined collectives.   After: it compares arrivals on one clock.
Price: a median for each rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from analytics.kineto import intervals
from analytics.kineto.reading import Trace


@dataclasses.dataclass(frozen=True)
class Clock:
    """A rank's clock, less the first rank's."""

    offset_ns: int
    uncertainty_ns: int | None  # None where nothing tells it
    is_shared: bool = False  # one clock by the host, however far apart its collectives end


def clocks(
    traces: Mapping[int, Trace], ends_ns: Sequence[Mapping[int, int]], world_size: int
) -> dict[int, Clock]:
    """The clock of each rank.

    ends_ns: for each collective that was joined, when each rank ended it.
    """
    if not traces:
        return {}
    first = min(traces)
    is_shared = on_one_host(traces, world_size)
    found = {}
    for rank in traces:
        differences = np.array(
            [ends[rank] - ends[first] for ends in ends_ns if rank in ends and first in ends],
            np.int64,
        )
        offset, error = 0, None
        if rank == first:
            error = 0
        elif len(differences):
            offset = 0 if is_shared else round(float(np.median(differences)))
            error = round(float(np.median(np.abs(differences - offset))))
        found[rank] = Clock(offset, error, is_shared)
    return found


def on_one_host(traces: Mapping[int, Trace], world_size: int) -> bool:
    """Whether all ranks surely ran on one host: as many devices as ranks, each its own."""
    devices = [_device(trace) for trace in traces.values()]
    listed = {len(trace.device_names) for trace in traces.values()}
    return (
        None not in devices
        and len(set(devices)) == len(devices)
        and len(listed) == 1
        and world_size <= min(listed)
    )


def _device(trace: Trace) -> int | None:
    """The device a trace's kernels ran on; None when it is untold or there are several."""
    told = intervals.distinct(trace.device[trace.device >= 0])
    return int(told[0]) if len(told) == 1 else None
