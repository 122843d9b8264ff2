"""Makes UTC of the wall clock of a time zone, and says where that clock cannot tell.

An hour that the clock skips never was: such a time is refused. An hour that it repeats is decided
by the log itself, device by device, since samples follow each other in time: where the clock jumps
back within the hour, the first pass is what stands before; where it does not, the hour belongs to
the side on which the log goes on without a gap, and what gaps part within the hour is decided
piece by piece. Where neither decides, the time is refused: a guess would be wrong by an hour.

Before: instants.py read wall clock times.   After: gathering.py stores UTC.
Price: one look-up for each minute of the log, vectorised.
"""

from __future__ import annotations

import datetime
import itertools
import zoneinfo
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NS = 10**9
_MINUTE_NS = 60 * NS
# The log goes on without a gap when the next sample comes within this.
_GOES_ON_NS = 15 * 60 * NS
_EPOCH = datetime.datetime(1970, 1, 1)

FINE, SKIPPED, REPEATED = 0, 1, 2

Int64 = npt.NDArray[np.int64]


def offsets(local_ns: Int64, zone: zoneinfo.ZoneInfo) -> tuple[Int64, Int64, npt.NDArray[np.int8]]:
    """Of each wall clock time: what to take off, what on the second pass, and how sure that is.

    local_ns: shape (N,) [ns]. Returns first-pass and second-pass offsets [ns], and FINE, SKIPPED
    (the clock never showed it) or REPEATED (it showed it twice).
    """
    minutes, places = np.unique(local_ns // _MINUTE_NS, return_inverse=True)
    first = np.empty(len(minutes), dtype=np.int64)
    second = np.empty(len(minutes), dtype=np.int64)
    for place, minute in enumerate(minutes.tolist()):
        first[place], second[place] = _offsets_of(minute, zone)
    state = np.where(first == second, FINE, np.where(first > second, REPEATED, SKIPPED))
    return first[places], second[places], state[places].astype(np.int8)


def _offsets_of(minute: int, zone: zoneinfo.ZoneInfo) -> tuple[int, int]:
    try:
        wall = _EPOCH + datetime.timedelta(minutes=minute)
    except OverflowError:
        return 0, 0  # beyond the year 9999; gathering.py refuses what does not fit
    found = []
    for fold in (0, 1):
        offset = wall.replace(tzinfo=zone, fold=fold).utcoffset()
        assert offset is not None  # a ZoneInfo always has one
        found.append(round(offset.total_seconds()) * NS)
    return found[0], found[1]


def passes(
    local_ns: Sequence[int], shift_ns: int, before_ns: int | None, after_ns: int | None
) -> Sequence[int | None]:
    """Which pass each time of a repeated hour belongs to, 0 or 1; None where nothing decides.

    local_ns: a device's wall clock times within the hour, in the order of the log [ns].
    shift_ns: how far the clock goes back [ns]. before_ns, after_ns: the wall clock of its samples
    just before and just after, read as the first pass and as the second; None when there is none.
    """
    backs = [
        place
        for place in range(1, len(local_ns))
        if local_ns[place] < local_ns[place - 1] - shift_ns // 2
    ]
    found: list[int | None] = []
    if len(backs) == 1:
        return found + [0] * backs[0] + [1] * (len(local_ns) - backs[0])
    if backs:
        return found + [None] * len(local_ns)
    # within a gap the pass may have ended unseen, so what lies behind it decides by itself
    gaps = [
        place
        for place in range(1, len(local_ns))
        if abs(local_ns[place] - local_ns[place - 1]) > _GOES_ON_NS
    ]
    for begin, end in itertools.pairwise([0, *gaps, len(local_ns)]):
        joins_before = begin == 0 and _goes_on(before_ns, local_ns[begin])
        joins_after = end == len(local_ns) and _goes_on(local_ns[end - 1], after_ns)
        decided = None if joins_before == joins_after else int(joins_after)
        found += [decided] * (end - begin)
    return found


def _goes_on(earlier_ns: int | None, later_ns: int | None) -> bool:
    """Whether a log goes on without a gap from one time to another."""
    if earlier_ns is None or later_ns is None:
        return False
    return 0 <= later_ns - earlier_ns <= _GOES_ON_NS
