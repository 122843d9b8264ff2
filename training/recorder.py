"""Keeps what one rank's step loop does, window by window, in integer nanoseconds.

The step loop says what it does: `work`, `wait`, `data_wait`.

Before: training/pipeline/ marks its work and waits.   After: step_parts.py splits the windows.
Price: two clock reads a mark, twenty to fifty marks a step; what that takes is measured when the
recorder is made and told with every window.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import operator
import time
from collections.abc import Callable, Iterator

Interval = tuple[int, int]
KINDS = ("ids", "rows", "gradients", "dense")
OTHER = "other"
_TRIAL_MARKS = 200
_KIND_AND_LABEL = operator.attrgetter("kind", "label")


@dataclasses.dataclass
class Wait:
    """The rank's loop blocked in a collective."""

    begin_ns: int
    end_ns: int
    arrival_ns: int  # when this rank was ready for the collective; its thread may be later
    kind: str = OTHER  # what was waited for, one of KINDS
    label: str = ""  # tells waits of one kind in one window apart; the same on every rank


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
    num_marks: int = 0
    waits: list[Wait] = dataclasses.field(default_factory=list)
    background: list[Interval] = dataclasses.field(default_factory=list)
    copies: list[Interval] = dataclasses.field(default_factory=list)

    def sorted_waits(self) -> list[Wait]:
        """The waits in an order that is the same on every rank, whoever came to which first."""
        return sorted(self.waits, key=_KIND_AND_LABEL)


class StepRecorder:
    """Records the windows of one rank's step loop; windows tile a block.

    `background` intervals come from the communication threads, through `in_background`; a window
    gets what lies inside it.
    """

    def __init__(self, synchronize: Callable[[], None] | None = None) -> None:
        self._synchronize = synchronize  # ends a stretch of work on a device that runs behind
        self.windows: list[Window] = []
        self._open: Window | None = None
        self._background: list[Interval] = []
        self._copies: list[Interval] = []
        self._work_depth = 0
        self._to_unix_ns = 0  # from the monotonic clock, as read at the start of a block
        self.mark_ns = _mark_ns()  # CPU time of one mark

    def begin_step(self) -> None:
        """Close the window of the step before, if any, and open the next at that instant."""
        if self._open is None:
            self._to_unix_ns = unix_offset_ns()
        now, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._close(now, cpu)
        window = Window(begin_ns=now, started_unix_ns=now + self._to_unix_ns, cpu_begin_ns=cpu)
        self._open = window
        self.windows.append(window)

    def end_block(self) -> list[Window]:
        """Close the last window and hand over the block's windows."""
        self._close(time.monotonic_ns(), time.thread_time_ns())
        self._open = None
        windows, self.windows = self.windows, []
        for window, background, copies in zip(
            windows, _dealt(self._background, windows), _dealt(self._copies, windows), strict=True
        ):
            window.background, window.copies = background, copies
        self._background, self._copies = [], []
        return windows

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """The rank's own work; a wait inside is no work, work inside work counts once.

        Before the first step nothing is recorded, of work as of waits.
        """
        if self._open is None:
            yield
            return
        begin = time.monotonic_ns()
        self._work_depth += 1
        try:
            yield
        finally:
            self._work_depth -= 1
        if self._synchronize is not None and not self._work_depth:
            self._synchronize()
        self._current.num_marks += 1
        if not self._work_depth:
            self._current.work_ns += time.monotonic_ns() - begin

    @contextlib.contextmanager
    def data_wait(self) -> Iterator[None]:
        """Waiting for the next batch; not recorded before the first step."""
        if self._open is None:
            yield
            return
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        yield
        self._current.data_wait_ns += time.monotonic_ns() - begin
        self._current.num_marks += 1
        self._current.cpu_begin_ns += time.thread_time_ns() - cpu

    @contextlib.contextmanager
    def wait(
        self, kind: str = OTHER, *, arrival_ns: int | None = None, label: str = ""
    ) -> Iterator[Wait]:
        """Blocked in a collective.

        arrival_ns: when this rank was ready for it, if that was before; label: where one window
        has several waits of a kind whose order may differ between ranks.
        """
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        arrived = begin if arrival_ns is None else arrival_ns
        record = Wait(begin_ns=begin, end_ns=begin, arrival_ns=arrived, kind=kind, label=label)
        if self._open is None:
            yield record
            return
        self._current.waits.append(record)
        yield record
        record.end_ns = time.monotonic_ns()
        self._current.num_marks += 1
        if self._work_depth:
            self._current.work_ns -= record.end_ns - begin
        self._current.cpu_begin_ns += time.thread_time_ns() - cpu

    def add_work(self, length_ns: int) -> None:
        """Work that was timed elsewhere."""
        self._current.work_ns += length_ns

    def add_data_wait(self, length_ns: int, cpu_ns: int) -> None:
        """A wait for the next batch that was timed elsewhere, and the CPU time meanwhile."""
        self._current.data_wait_ns += length_ns
        self._current.cpu_begin_ns += cpu_ns

    def add_wait(self, wait: Wait) -> None:
        """A wait in a collective that was timed elsewhere."""
        self._current.waits.append(wait)

    def in_background(self, intervals: list[Interval], cpu_ns: int) -> None:
        """What a communication thread did: collectives in flight, and CPU time of its work."""
        self._background.extend(intervals)
        if self._open is not None:
            self._open.cpu_begin_ns -= cpu_ns

    def copied(self, intervals: list[Interval]) -> None:
        """Copies between device and host that belong to collectives."""
        self._copies.extend(intervals)

    @property
    def blocked_ns(self) -> int:
        """Time of the open window's waits in collectives and for its batch so far."""
        blocked = sum(wait.end_ns - wait.begin_ns for wait in self._current.waits)
        return blocked + self._current.data_wait_ns

    @property
    def _current(self) -> Window:
        assert self._open is not None, "work is recorded inside a step"
        return self._open

    def _close(self, now_ns: int, cpu_ns: int) -> None:
        if self._open is not None:
            self._open.end_ns = now_ns
            self._open.cpu_ns = cpu_ns - self._open.cpu_begin_ns


def unix_offset_ns() -> int:
    """What to add to the monotonic clock for UTC, by the quickest of three readings.

    Once a block: its windows then tile by UTC, too, whenever the thread is put aside.
    """
    reads = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3)]
    before, unix, after = min(reads, key=lambda read: read[2] - read[0])
    return unix - (before + after) // 2


def _mark_ns() -> float:
    """CPU time that a mark takes on this host [ns]."""
    trial = StepRecorder.__new__(StepRecorder)
    trial._synchronize = None
    trial.windows, trial._background, trial._copies, trial._work_depth = [], [], [], 0
    trial._open = Window(begin_ns=0, started_unix_ns=0)
    begin = time.thread_time_ns()
    for _ in range(_TRIAL_MARKS // 2):
        with trial.work():
            pass
        with trial.wait():
            pass
    return (time.thread_time_ns() - begin) / _TRIAL_MARKS


def _dealt(intervals: list[Interval], windows: list[Window]) -> list[list[Interval]]:
    """What of the intervals lies in each of the windows, which tile a block."""
    dealt: list[list[Interval]] = [[] for _ in windows]
    begins = [window.begin_ns for window in windows]
    for begin, end in intervals:
        place = max(0, bisect.bisect_right(begins, begin) - 1)
        while place < len(windows) and begins[place] < end:
            window = windows[place]
            if begin < window.end_ns:
                dealt[place].append((max(begin, window.begin_ns), min(end, window.end_ns)))
            place += 1
    return dealt
