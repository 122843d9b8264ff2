"""Splits each step's window on one rank into the parts of docs/definitions.md.

The step loop says what it does (`work`, `wait`, `data_wait`); the recorder keeps integer
nanoseconds. How long a wait was for the slowest rank is only known when all arrivals are: ranks
exchange them once a block, after its last window has closed, so no step pays for it.

Before: training/pipeline/ marks its work and waits.   After: fact_step in the journal.
Price: two clock reads a mark; about twenty marks a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

Interval = tuple[int, int]


@dataclasses.dataclass
class Wait:
    """The rank's loop blocked in a collective."""

    begin_ns: int
    end_ns: int
    arrival_ns: int  # when this rank was ready for the collective; its thread may be later


@dataclasses.dataclass
class Window:
    """What one step on this rank did between its start and the next step's."""

    begin_ns: int
    started_unix_ns: int
    end_ns: int = 0
    cpu_begin_ns: int = 0
    cpu_ns: int = 0
    work_ns: int = 0
    data_wait_ns: int = 0
    waits: list[Wait] = dataclasses.field(default_factory=list)
    background: list[Interval] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepParts:
    """The disjoint parts of a window, in seconds; they sum to window_s."""

    window_s: float
    busy_s: float
    straggler_wait_s: float | None
    exposed_comm_s: float | None
    exposed_comm_total_s: float
    data_wait_s: float
    unattributed_s: float
    comm_s: float
    overlapped_comm_s: float
    cpu_s: float


class StepRecorder:
    """Records the windows of one rank's step loop; windows tile a block.

    `background` intervals come from the communication thread, through `in_background`.
    """

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._open: Window | None = None

    def begin_step(self) -> None:
        """Close the window of the step before, if any, and open the next at that instant."""
        now, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._close(now, cpu)
        window = Window(begin_ns=now, started_unix_ns=time.time_ns(), cpu_begin_ns=cpu)
        self._open = window
        self.windows.append(window)

    def end_block(self) -> list[Window]:
        """Close the last window and hand over the block's windows."""
        self._close(time.monotonic_ns(), time.thread_time_ns())
        self._open = None
        windows, self.windows = self.windows, []
        return windows

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """The rank's own work."""
        begin = time.monotonic_ns()
        yield
        self._current.work_ns += time.monotonic_ns() - begin

    @contextlib.contextmanager
    def data_wait(self) -> Iterator[None]:
        """Waiting for the next batch."""
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        yield
        self._current.data_wait_ns += time.monotonic_ns() - begin
        self._current.cpu_begin_ns += time.thread_time_ns() - cpu

    @contextlib.contextmanager
    def wait(self) -> Iterator[Wait]:
        """Blocked in a collective; set the record's `arrival_ns` when the rank was ready then."""
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        record = Wait(begin_ns=begin, end_ns=begin, arrival_ns=begin)
        self._current.waits.append(record)
        yield record
        record.end_ns = time.monotonic_ns()
        self._current.cpu_begin_ns += time.thread_time_ns() - cpu

    def in_background(self, intervals: list[Interval], cpu_ns: int) -> None:
        """What the communication thread did: collectives in flight, and CPU time of its work."""
        self._current.background.extend(intervals)
        self._current.cpu_begin_ns -= cpu_ns

    @property
    def _current(self) -> Window:
        assert self._open is not None, "work is recorded inside a step"
        return self._open

    def _close(self, now_ns: int, cpu_ns: int) -> None:
        if self._open is not None:
            self._open.end_ns = now_ns
            self._open.cpu_ns = cpu_ns - self._open.cpu_begin_ns


def step_parts(window: Window, last_arrivals_ns: list[int] | None) -> StepParts:
    """The parts of one window.

    last_arrivals_ns: for each of the window's waits, when the last rank arrived at it, on this
    rank's clock; None when the ranks' clocks are not aligned (then the split stays NULL).
    Raises ValueError when the numbers of waits differ, which means ranks ran different steps.
    """
    length = window.end_ns - window.begin_ns
    blocked = sum(wait.end_ns - wait.begin_ns for wait in window.waits)
    straggler: int | None = None
    if last_arrivals_ns is not None:
        # a rank waits for others from when it is blocked and was itself ready, whichever is later
        straggler = sum(
            max(0, min(wait.end_ns, last) - max(wait.begin_ns, wait.arrival_ns))
            for wait, last in zip(window.waits, last_arrivals_ns, strict=True)
        )
    waits = [(wait.begin_ns, wait.end_ns) for wait in window.waits]
    clipped = [
        (max(begin, window.begin_ns), min(end, window.end_ns)) for begin, end in window.background
    ]
    in_flight = union_ns([*waits, *clipped])
    unattributed = length - window.work_ns - blocked - window.data_wait_ns
    return StepParts(
        window_s=length / 1e9,
        busy_s=window.work_ns / 1e9,
        straggler_wait_s=None if straggler is None else straggler / 1e9,
        exposed_comm_s=None if straggler is None else (blocked - straggler) / 1e9,
        exposed_comm_total_s=blocked / 1e9,
        data_wait_s=window.data_wait_ns / 1e9,
        unattributed_s=unattributed / 1e9,
        comm_s=in_flight / 1e9,
        overlapped_comm_s=(in_flight - blocked) / 1e9,
        cpu_s=window.cpu_ns / 1e9,
    )


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
