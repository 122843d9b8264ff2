"""Splits each step's window on one rank into the parts of docs/definitions.md.

How long a wait was for the slowest rank is only known when all arrivals are: ranks exchange them
once a block, after its last window has closed, so no step pays for it.

Before: recorder.py hands over a block's windows.   After: block_records.py writes them.
Price: about 10 us of CPU a step of four waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from training.recorder import KINDS, OTHER, Interval, Wait, Window


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepParts:
    """The disjoint parts of a window, in seconds; they sum to window_s."""

    window_s: float
    busy_s: float
    straggler_wait_s: float | None
    exposed_comm_s: float | None
    exposed_comm_total_s: float
    exposed_copy_s: float
    data_wait_s: float
    unattributed_s: float
    comm_s: float
    overlapped_comm_s: float
    cpu_s: float
    exposed_ids_s: float
    exposed_rows_s: float
    exposed_gradients_s: float
    exposed_dense_s: float
    recorder_cpu_s: float


class WaitParts(NamedTuple):
    """The disjoint parts of one wait [ns]: copied, straggler and wire sum to its length."""

    copied_ns: int
    straggler_ns: int | None  # None: it is not known when the last rank arrived
    wire_ns: int | None  # None alike
    exposed_ns: int  # straggler_ns + wire_ns: what is not copied


def wait_parts(window: Window, last_arrivals_ns: list[int] | None) -> list[WaitParts]:
    """The parts of each of the window's sorted_waits().

    last_arrivals_ns: for each of them, when the last rank arrived at it, on this rank's clock; None
    when that is not known. Raises ValueError when there are not as many.
    """
    waits = window.sorted_waits()
    late: list[Interval] = []
    if last_arrivals_ns is not None:
        # a rank waits for others from when it is blocked and was itself ready, whichever is later
        late = [
            (max(wait.begin_ns, wait.arrival_ns), min(wait.end_ns, last))
            for wait, last in zip(waits, last_arrivals_ns, strict=True)
        ]
    parts = []
    for place, wait in enumerate(waits):
        copied = _copied_ns(wait, window, late)
        exposed = wait.end_ns - wait.begin_ns - copied
        straggler = max(0, late[place][1] - late[place][0]) if late else None
        parts.append(
            WaitParts(
                copied_ns=copied,
                straggler_ns=straggler,
                wire_ns=None if straggler is None else exposed - straggler,
                exposed_ns=exposed,
            )
        )
    return parts


def step_parts(
    window: Window,
    last_arrivals_ns: list[int] | None,
    mark_ns: float = 0.0,
    *,
    of_waits: Sequence[WaitParts] | None = None,
) -> StepParts:
    """The parts of one window.

    last_arrivals_ns: for each of the window's sorted_waits(), when the last rank arrived at it, on
    this rank's clock; None when the ranks' clocks are not aligned (then the split stays NULL).
    of_waits: what wait_parts said of them, where it has been asked before.
    Raises ValueError when the numbers of waits differ, which means ranks ran different steps.
    """
    if of_waits is None:
        of_waits = wait_parts(window, last_arrivals_ns)
    straggler: int | None = None
    if last_arrivals_ns is not None:
        straggler = sum(part.straggler_ns or 0 for part in of_waits)
    length = window.end_ns - window.begin_ns
    waits = [(wait.begin_ns, wait.end_ns) for wait in window.waits]
    blocked = sum(end - begin for begin, end in waits)
    in_flight = union_ns([*waits, *window.background])
    copied = sum(part.copied_ns for part in of_waits)
    exposed = dict.fromkeys((*KINDS, OTHER), 0)
    for wait, part in zip(window.sorted_waits(), of_waits, strict=True):
        exposed[wait.kind] += part.exposed_ns
    unattributed = length - window.work_ns - blocked - window.data_wait_ns
    return StepParts(
        window_s=length / 1e9,
        busy_s=window.work_ns / 1e9,
        straggler_wait_s=None if straggler is None else straggler / 1e9,
        exposed_comm_s=None if straggler is None else (blocked - straggler - copied) / 1e9,
        exposed_comm_total_s=(blocked - copied) / 1e9,
        exposed_copy_s=copied / 1e9,
        data_wait_s=window.data_wait_ns / 1e9,
        unattributed_s=unattributed / 1e9,
        comm_s=(in_flight - copied) / 1e9,
        overlapped_comm_s=(in_flight - blocked) / 1e9,
        cpu_s=window.cpu_ns / 1e9,
        exposed_ids_s=exposed["ids"] / 1e9,
        exposed_rows_s=exposed["rows"] / 1e9,
        exposed_gradients_s=exposed["gradients"] / 1e9,
        exposed_dense_s=exposed["dense"] / 1e9,
        recorder_cpu_s=window.num_marks * mark_ns / 1e9,
    )


def _copied_ns(wait: Wait, window: Window, late: list[Interval]) -> int:
    """Of a wait, what was spent in copies while nothing was on the wire and no rank was late."""
    if not window.copies:
        return 0

    def within(intervals: list[Interval]) -> list[Interval]:
        return [(max(b, wait.begin_ns), min(e, wait.end_ns)) for b, e in intervals]

    other = within([*window.background, *late])
    return union_ns([*within(window.copies), *other]) - union_ns(other)


def union_ns(intervals: list[Interval]) -> int:
    """Length of the union of intervals [ns]; overlaps count once, empty ones count 0."""
    total = 0
    covered_to: int | None = None
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if covered_to is None or begin > covered_to:
            covered_to = begin
        if end > covered_to:
            total += end - covered_to
            covered_to = end
    return total
