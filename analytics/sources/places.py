"""Says where in a text file a row stands, counting lines as an editor does.

Before: a row's number in a statement.   After: a message for a person.
Price: one pass in Python up to that line; only an error pays it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path


def row_of(row: int) -> str:
    """A row of a file that has no lines, from 0."""
    return f"row {row + 1}"


def record_line(path: Path, row: int, *, delimiter: str, quote: str, num_before: int) -> str:
    """'line 12' of a delimited text; blank lines and line breaks inside cells count right.

    row: from 0, header not counted. num_before: records before the first row (1 with a header).
    """
    seen, line_before = -1 - num_before, 0
    is_plain = len(delimiter) > 1 or ord(delimiter) > 127
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            if is_plain:
                return _plain_line(file, row + num_before) or f"data row {row + 1}"
            reader = csv.reader(
                file,
                delimiter=delimiter,
                quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            )
            for record in reader:
                if record and not (seen == -1 - num_before and not "".join(record).strip()):
                    seen += 1
                    if seen == row:
                        return f"line {line_before + 1}"
                line_before = reader.line_num
    except csv.Error:
        pass  # a cell longer than the csv module takes; the row's number still helps
    return f"data row {row + 1}"


def list_place(path: Path, row: int, count: Callable[[str], int]) -> str:
    """'line 3, event 5' of a file in which a line holds several events.

    count: how many events a line holds, 0 for one that holds none.
    """
    seen = 0
    with path.open(encoding="utf-8-sig", errors="replace", newline=None) as file:
        for number, line in enumerate(file, start=1):
            num_events = count(line.rstrip("\n"))
            if row < seen + num_events:
                return f"line {number}, event {row - seen + 1}"
            seen += num_events
    return f"event {row + 1}"


def _plain_line(lines: Iterator[str], row: int) -> str | None:
    seen = -1
    for number, line in enumerate(lines, start=1):
        seen += bool(line.rstrip("\r\n")) and (seen >= 0 or bool(line.strip()))
        if seen == row:
            return f"line {number}"
    return None
