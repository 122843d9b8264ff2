"""Splits each step's window on one rank into the parts of docs/definitions.md.

The step loop says what it does (`work`, `wait`, `data_wait`); the recorder keeps integer
nanoseconds. How long a wait was for the slowest rank is only known when all arrivals are: ranks
exchange them once a block, after its last window has closed, so no step pays for it.

Before: training/pipeline/ marks its work and waits.   After: fact_step in the journal.
Price: two clock reads a mark, twenty to fifty marks a step; what that takes is measured when the
recorder is made and told with every window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

Interval = tuple[int, int]
KINDS = ("ids", "rows", "gradients", "dense")
OTHER = "other"
_TRIAL_MARKS = 200


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
        return sorted(self.waits, key=lambda wait: (wait.kind, wait.label))


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitParts:
    """The disjoint parts of one wait [ns]: copied, straggler and wire sum to its length."""

    copied_ns: int
    straggler_ns: int | None  # None: it is not known when the last rank arrived
    wire_ns: int | None  # None alike
    exposed_ns: int  # straggler_ns + wire_ns: what is not copied


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
        for window in windows:
            window.background = _inside(self._background, window)
            window.copies = _inside(self._copies, window)
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
    window: Window, last_arrivals_ns: list[int] | None, mark_ns: float = 0.0
) -> StepParts:
    """The parts of one window.

    last_arrivals_ns: for each of the window's sorted_waits(), when the last rank arrived at it, on
    this rank's clock; None when the ranks' clocks are not aligned (then the split stays NULL).
    Raises ValueError when the numbers of waits differ, which means ranks ran different steps.
    """
    length = window.end_ns - window.begin_ns
    blocked = sum(wait.end_ns - wait.begin_ns for wait in window.waits)
    of_waits = wait_parts(window, last_arrivals_ns)
    straggler: int | None = None
    if last_arrivals_ns is not None:
        straggler = sum(part.straggler_ns or 0 for part in of_waits)
    waits = [(wait.begin_ns, wait.end_ns) for wait in window.waits]
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


def _inside(intervals: list[Interval], window: Window) -> list[Interval]:
    return [
        (max(begin, window.begin_ns), min(end, window.end_ns))
        for begin, end in intervals
        if begin < window.end_ns and end > window.begin_ns
    ]


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
