"""What the console shows while a run works: bars on a terminal, one line an event elsewhere.

Before: flows/steps.py reports.   After: standard error; standard output stays free for the result.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

LOGGER = logging.getLogger("seqscale")
PLAIN_INTERVAL_S = 10.0  # between two lines about the same phase, where there is no terminal

Sink = Callable[[str, int, int, str], None]

_sink: Sink | None = None


def report(phase: str, done: int, total: int, note: str = "") -> None:
    """Tell how far a phase is; `total` 0 means that nobody knows yet."""
    if _sink is not None:
        _sink(phase, done, total, note)


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Show events and progress on standard error until the block ends."""
    shown = _bars() if sys.stderr.isatty() else _lines()
    with shown as (sink, handler):
        yield from _attached(sink, handler)


def _attached(sink: Sink, handler: logging.Handler) -> Iterator[None]:
    global _sink
    before, _sink = _sink, sink
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    try:
        yield
    finally:
        _sink = before
        LOGGER.removeHandler(handler)


@contextlib.contextmanager
def _lines() -> Iterator[tuple[Sink, logging.Handler]]:
    last: dict[str, float] = {}

    def sink(phase: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if done < total and now - last.get(phase, -PLAIN_INTERVAL_S) < PLAIN_INTERVAL_S:
            return
        if last.get(phase) != float("inf"):
            LOGGER.info("%s %d/%d %s", phase, done, total, note)
        last[phase] = float("inf") if done >= total else now

    yield sink, logging.StreamHandler(sys.stderr)


@contextlib.contextmanager
def _bars() -> Iterator[tuple[Sink, logging.Handler]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[note]}"))
    bars: dict[str, TaskID] = {}
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:

        def sink(phase: str, done: int, total: int, note: str) -> None:
            if phase not in bars:
                bars[phase] = progress.add_task(phase, total=None, note="")
            text = f"{done}/{total} {note}" if total else note
            progress.update(bars[phase], completed=done, total=total or None, note=text)

        yield sink, _AboveBars(progress.console.print)


class _AboveBars(logging.Handler):
    """Prints a log line above the bars."""

    def __init__(self, write: Callable[..., None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record), markup=False, highlight=False)
