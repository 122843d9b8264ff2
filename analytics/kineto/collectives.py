"""Joins the collectives of several ranks, and says which rank each of them waited for.

A rank has arrived when its kernel begins: from then on it spins until the last one is there. One
collective on several ranks is known by its step, its process group, its operation and its place
among those; where ranks have different numbers of them in a step, none is joined. A join is only
believed when it can be: no rank may end an all-reduce, an all-gather, a reduce-scatter, an
all-to-all or a barrier before the last one has begun it.

Before: reading.py gives the traces.   After: parts.py takes the waits, importing.py the rows.
Price: Python for each collective; they are few beside kernels.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from analytics.kineto import intervals
from analytics.kineto.breakdown import launch_of
from analytics.kineto.clocks import Clock, clocks
from analytics.kineto.kernels import COMMUNICATION, TOGETHER, collective_kind
from analytics.kineto.marks import COLLECTIVE, Mark, bytes_told
from analytics.kineto.reading import Trace
from analytics.kineto.windows import Windows

# launched, start, end [ns], kind, process group, its size, bytes sent
_Made = tuple[int, int, int, str, str | None, int | None, int | None]
TOLERANCE_NS = 20_000  # what clocks of one host's devices may differ by in a trace


@dataclasses.dataclass(kw_only=True)
class Collective:
    """One collective on one rank, in its own clock, as UTC."""

    rank: int
    step: int
    kind: str
    group: str | None
    group_size: int | None
    nth: int  # among those of its step, group and kind
    place: int = 0  # in its step, the same on every rank
    arrived_ns: int
    ended_ns: int
    sent_bytes: int | None
    last_arrived_ns: int | None = None  # in this rank's clock
    last_rank: int | None = None

    @property
    def key(self) -> tuple[int, str, str, int]:
        """What names it on every rank."""
        return self.step, self.group or "", self.kind, self.nth


def collectives(trace: Trace, rank: int, tiles: Windows) -> list[Collective]:
    """The collectives of a rank's windows, by their start."""
    if not trace.has_device:
        return _on_host(trace, rank, tiles)
    launched, found = launch_of(trace.correlation, trace.launch_correlation, trace.launch_ns)
    threads, _ = launch_of(trace.correlation, trace.launch_correlation, trace.launch_thread)
    marks = _Marks(trace)
    made = []
    for place in np.flatnonzero(trace.its_class == COMMUNICATION).tolist():
        start, end = trace.spans[place].tolist()
        when = int(launched[place]) if found[place] else start
        mark = marks.around(when, int(threads[place])) if found[place] else None
        told = trace.told.get(place, {})
        name = told.get("Collective name")
        kind = collective_kind(name if isinstance(name, str) else trace.names[trace.name_id[place]])
        if mark is not None and mark.label != "other" and not isinstance(name, str):
            kind = mark.label
        group = told.get("Process Group Name", mark.group if mark else None)
        sent = bytes_told(told)
        made.append(
            (
                when, start, end, kind, str(group) if group is not None else None,
                _group_size(trace, told, group),
                mark.sent_bytes if sent is None and mark is not None else sent,
            )
        )  # fmt: skip
    return _numbered(made, trace, rank, tiles)


def join(
    of_ranks: Sequence[list[Collective]], traces: Sequence[Trace], world_size: int
) -> dict[int, Clock]:
    """Tell each collective when the last rank arrived and which; the clocks it was told by.

    Sets `place`, `last_arrived_ns` and `last_rank`. A collective of which not every rank of its
    group is in a trace stays untold.
    """
    by_key: dict[tuple[int, str, str, int], list[Collective]] = defaultdict(list)
    number: dict[tuple[int, int, str, str], int] = defaultdict(int)
    for of_rank in of_ranks:
        for one in of_rank:
            by_key[one.key].append(one)
            number[one.rank, *one.key[:3]] += 1
    joined = [
        same
        for same in by_key.values()
        if len(same) > 1 and len({number[one.rank, *one.key[:3]] for one in same}) == 1
    ]
    together = [same for same in joined if same[0].kind in TOGETHER]
    ranks = [of_rank[0].rank if of_rank else -1 for of_rank in of_ranks]
    found = clocks(
        {rank: trace for rank, trace in zip(ranks, traces, strict=True) if rank >= 0},
        [{one.rank: one.ended_ns for one in same} for same in together],
        world_size,
    )
    for same in together:
        if len(same) == (same[0].group_size or world_size):
            _tell_last(same, found)
    _place(by_key, found)
    return found


def waits(own: Sequence[Collective], comm: np.ndarray, base_unix_ns: int) -> np.ndarray | None:
    """When a rank waited for the last one: disjoint intervals in its trace's clock.

    None when no collective of it has a last arrival that is known, or one outside compute has none.
    """
    told = [one for one in own if one.last_arrived_ns is not None]
    if own and not told:
        return None
    spans = [
        (one.arrived_ns - base_unix_ns, min(one.last_arrived_ns, one.ended_ns) - base_unix_ns)
        for one in told
        if one.last_arrived_ns is not None and one.last_arrived_ns > one.arrived_ns
    ]
    return intervals.overlap(intervals.union(np.array(spans, np.int64).reshape(-1, 2)), comm)


def _on_host(trace: Trace, rank: int, tiles: Windows) -> list[Collective]:
    made: list[_Made] = [
        (mark.start_ns, mark.start_ns, mark.end_ns, mark.label, mark.group, None, mark.sent_bytes)
        for mark in trace.marks
        if mark.what == COLLECTIVE
    ]
    return _numbered(made, trace, rank, tiles)


def _numbered(
    made: list[_Made],
    trace: Trace,
    rank: int,
    tiles: Windows,
) -> list[Collective]:
    """Those that a window's host work launched, in the order of their launch."""
    made.sort()
    nth: dict[tuple[int, str, str], int] = defaultdict(int)  # an untold group counts as the unnamed
    found = []
    for (_, start, end, kind, group, size, sent), window in zip(
        made, tiles.of(np.array([row[0] for row in made], np.int64)).tolist(), strict=True
    ):
        if not 0 <= window < len(tiles.steps):
            continue
        step = tiles.steps[window]
        place = (step, group or "", kind)
        base = trace.base_unix_ns
        found.append(
            Collective(
                rank=rank, step=step, kind=kind, group=group, group_size=size,
                nth=nth[place], arrived_ns=start + base, ended_ns=end + base,
                sent_bytes=sent,
            )
        )  # fmt: skip
        nth[place] += 1
    return found


def _tell_last(same: list[Collective], found: Mapping[int, Clock]) -> None:
    """Tell the ranks of one collective who came last, where their times can be of one."""
    aligned = {one.rank: one.arrived_ns - found[one.rank].offset_ns for one in same}
    last_rank = max(aligned, key=lambda rank: (aligned[rank], -rank))
    errors = [clock.uncertainty_ns or 0 for clock in map(found.__getitem__, aligned)]
    slack = TOLERANCE_NS + (0 if found[last_rank].is_shared else 2 * max(errors))
    first_end = min(one.ended_ns - found[one.rank].offset_ns for one in same)
    if first_end + slack < aligned[last_rank]:
        return
    for one in same:
        one.last_arrived_ns = aligned[last_rank] + found[one.rank].offset_ns
        one.last_rank = last_rank


def _place(
    by_key: Mapping[tuple[int, str, str, int], list[Collective]], found: Mapping[int, Clock]
) -> None:
    """Number the collectives of a step in the order of their first arrival, alike on all ranks."""
    order = sorted(
        by_key,
        key=lambda key: (
            key[0], min(one.arrived_ns - found[one.rank].offset_ns for one in by_key[key]), key,
        ),
    )  # fmt: skip
    next_place: dict[int, int] = defaultdict(int)
    for key in order:
        for one in by_key[key]:
            one.place = next_place[key[0]]
        next_place[key[0]] += 1


def _group_size(trace: Trace, told: Mapping[str, object], group: object) -> int | None:
    size = told.get("Group size")
    if isinstance(size, int) and size > 0:
        return size
    ranks = trace.groups.get(str(group)) if group is not None else None
    return len(ranks) if ranks else None


class _Marks:
    """Collectives that the host marked, found by the thread and the time of a launch."""

    def __init__(self, trace: Trace) -> None:
        self._by_thread: dict[int, list[Mark]] = defaultdict(list)
        for mark in trace.marks:
            if mark.what == COLLECTIVE:
                self._by_thread[mark.thread].append(mark)
        self._starts = {
            thread: np.array([mark.start_ns for mark in marks], np.int64)
            for thread, marks in self._by_thread.items()
        }

    def around(self, when_ns: int, thread: int) -> Mark | None:
        """The innermost mark of a thread that holds this time."""
        if thread not in self._starts:
            return None
        marks = self._by_thread[thread]
        last = int(np.searchsorted(self._starts[thread], when_ns, side="right")) - 1
        for mark in reversed(marks[max(0, last - 3) : last + 1]):
            if mark.end_ns >= when_ns:
                return mark
        return None
