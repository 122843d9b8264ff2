"""The step recorder as it works inside somebody else's loop, where others may mark, too.

In such a loop a step counts as work but for what is marked as a wait, and between two steps all
time is waiting for data. What the overlapped tables mark there (rows that are not here yet, sorting
ids by owner) is a wait or work all the same, and is taken off the wait for data.

Before: step_recording.py opens the steps.   After: recorder.py splits their windows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from training.recorder import OTHER, StepRecorder, Wait


class LoopRecorder(StepRecorder):
    """Windows of a loop whose steps are marked as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside = False  # a step, and not between two
        self._marked_ns = 0
        self._marked_cpu_ns = 0

    def take_marked(self) -> tuple[int, int]:
        """Time and CPU time marked since the last step ended, which is no wait for data [ns]."""
        taken = self._marked_ns, self._marked_cpu_ns
        self._marked_ns = self._marked_cpu_ns = 0
        return taken

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Work between two steps; inside a step everything is work that is not marked as a wait."""
        if self._open is None or self.is_inside:
            yield
            return
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        with super().work():
            yield
        self._mark(begin, cpu)

    @contextlib.contextmanager
    def wait(
        self, kind: str = OTHER, *, arrival_ns: int | None = None, label: str = ""
    ) -> Iterator[Wait]:
        """Blocked in a collective, in a step or between two."""
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        with super().wait(kind, arrival_ns=arrival_ns, label=label) as record:
            yield record
        if self._open is not None and not self.is_inside:
            self._mark(begin, cpu)

    def _mark(self, begin_ns: int, begin_cpu_ns: int) -> None:
        if self._work_depth:
            return  # the work around it counts
        self._marked_ns += time.monotonic_ns() - begin_ns
        self._marked_cpu_ns += time.thread_time_ns() - begin_cpu_ns
