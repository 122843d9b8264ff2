"""Cuts the lines of a delimited log into records of cells.

A quoted cell may hold line ends. A quote that is never closed spoils its own line and not the rest
of the file: after MOST_LINES lines the first of them is given up and reading goes on behind it.

Before: bounded_text.py's numbered lines.   After: nvidia_smi_csv.py reads the cells.
Price: lines without a quote are split at the delimiter, 0.5 us each.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
from collections.abc import Iterable, Iterator

from analytics.telemetry.bounded_text import LINE_CHARS

MOST_LINES = 16
_Line = tuple[int, str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """One record: where it begins, its cells, its text, and why it cannot be read, '' if it can."""

    line: int
    cells: list[str]
    text: str
    fault: str


def records(lines: Iterable[_Line], delimiter: str) -> Iterator[Cut]:
    """The records of a log, blank lines left out."""
    source = iter(lines)
    back: collections.deque[_Line] = collections.deque()
    while True:
        one = back.popleft() if back else next(source, None)
        if one is None:
            return
        number, text, fault = one
        if not text.strip():
            continue
        if fault:
            yield Cut(number, [], text, fault)
        elif '"' not in text:
            yield Cut(number, text.split(delimiter), text, "")
        else:
            yield _quoted(number, text, source, back, delimiter)


def _quoted(
    number: int, text: str, source: Iterator[_Line], back: collections.deque[_Line], delimiter: str
) -> Cut:
    """A record with quotes; lines that turn out not to belong to it go to the front of `back`."""
    whole = text
    taken: list[_Line] = []
    while whole.count('"') % 2 and len(taken) < MOST_LINES and len(whole) < LINE_CHARS:
        one = back.popleft() if back else next(source, None)
        if one is None:
            break
        taken.append(one)
        whole += "\n" + one[1]
    if whole.count('"') % 2 or len(whole) >= LINE_CHARS:
        back.extendleft(reversed(taken))
        return Cut(number, [], text, "unclosed_quote")
    faults = [fault for _, _, fault in taken if fault]
    if faults:
        return Cut(number, [], whole, faults[0])
    try:
        cells = next(csv.reader([whole], delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return Cut(number, [], whole, "unreadable_quotes")
    return Cut(number, cells, whole, "")
