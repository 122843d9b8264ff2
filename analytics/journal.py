"""Append-only record files: what ranks, the sampler and the flow write, and the loader reads.

Layout: `<journal>/<table>/<writer>-<segment>.jsonl`, one JSON object a line, keys = the columns of
the table in analytics/schema.py. A segment that is being written ends in `.jsonl.open` and is
renamed when it is closed. So a half-written last line in an open segment is a torn write of a
killed writer (it is skipped and counted), while a bad line in a closed one is an error.

Before: anybody who measures.   After: analytics/warehouse.py.
Price: one flushed write a record, about 20 us, or one for many; nothing is buffered over a kill.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from analytics.errors import JournalError
from analytics.schema import TABLES, Scalar, columns, from_mapping, table_name, to_mapping

OPEN_SUFFIX = ".jsonl.open"
CLOSED_SUFFIX = ".jsonl"
# made once: json.dumps makes an encoder at every call that is not by its defaults
_encode = json.JSONEncoder(allow_nan=False).encode


class JournalWriter:
    """Writes the records of one writer, one file a table.

    directory: the journal's folder, made when missing.
    writer: a name unique among the writers of this journal, such as `rank-00002`.
    Raises JournalError when a segment of this writer is already there: nothing is overwritten.
    """

    def __init__(self, directory: Path, writer: str) -> None:
        self._directory = directory
        self._writer = writer
        self._files: dict[str, tuple[Path, TextIO]] = {}

    def write(self, record: Any) -> None:
        """Append one record to its table's segment and flush it."""
        self.write_many((record,))

    def write_many(self, records: Iterable[Any]) -> None:
        """Append records of any tables in their order, with one write and one flush a table.

        Of a writer that is killed meanwhile the first lines are there, and the last may be torn.
        """
        lines: dict[str, list[str]] = {}
        for record in records:
            line = _encode(to_mapping(record))
            lines.setdefault(table_name(type(record)), []).append(line + "\n")
        for name, of_table in lines.items():
            self._append(name, of_table)

    def write_columns(
        self, record: type, shared: Mapping[str, Scalar], columns: Mapping[str, Sequence[Scalar]]
    ) -> None:
        """Append records of one table that are given column by column, in one write.

        The lines are those of `write_many`, for a third of the CPU time that making the records
        and writing them takes. shared: columns of which all records have one value; columns: the
        others, of equal length, none of money.
        Raises ValueError unless both together are the table's columns; those that were added to
        the table later may be left out, and are NULL then.
        """
        lines = _lines(record, shared, columns)
        if lines:
            self._append(table_name(record), lines)

    def _append(self, name: str, lines: Iterable[str]) -> None:
        if name not in self._files:
            self._files[name] = self._open(name)
        file = self._files[name][1]
        file.write("".join(lines))
        file.flush()

    def close(self) -> None:
        """Close every segment: fsync, then rename, so that a closed segment is always whole."""
        for path, file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            path.rename(path.with_name(path.name.removesuffix(".open")))
        self._files.clear()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, name: str) -> tuple[Path, TextIO]:
        folder = self._directory / name
        folder.mkdir(parents=True, exist_ok=True)
        taken = folder.glob(f"{self._writer}-*{CLOSED_SUFFIX}*")
        segment = 1 + max((_segment_number(path) for path in taken), default=-1)
        path = folder / f"{self._writer}-{segment:06d}{OPEN_SUFFIX}"
        try:
            return path, path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise JournalError(
                f"{path}: another writer named '{self._writer}' is at work in this journal. "
                "Give each writer its own name."
            ) from error


def _lines(
    record: type, shared: Mapping[str, Scalar], given: Mapping[str, Sequence[Scalar]]
) -> list[str]:
    """The lines of records of one table, with few calls of the encoder, which cost most."""
    specs = {spec.name: spec for spec in columns(record)}
    untold = [name for name, spec in specs.items() if spec.added and name not in given]
    shared = {**dict.fromkeys(untold), **shared}  # NULL, as in a record made without it
    wrong = specs.keys() ^ (shared.keys() | given.keys()) | shared.keys() & given.keys()
    if wrong:
        raise ValueError(
            f"{table_name(record)}: '{min(wrong)}' is missing, no column, or given twice"
        )
    encoded: dict[str, Sequence[str]] = {}
    numbers = [name for name in given if specs[name].python_type is not str]
    if numbers:  # these and null hold no comma and no bracket
        text = _encode([list(given[name]) for name in numbers])[2:-2]
        found = [column.split(", ") if column else [] for column in text.split("], [")]
        encoded = dict(zip(numbers, found, strict=True))
    for name in given.keys() - encoded.keys():
        text_of = {value: _encode(value) for value in set(given[name])}
        encoded[name] = [text_of[value] for value in given[name]]
    common = {name: _encode(value).replace("%", "%%") for name, value in shared.items()}
    line = ", ".join(f'"{name}": {common.get(name, "%s")}' for name in specs)
    values = zip(*(encoded[name] for name in specs if name in encoded), strict=True)
    return [f"{{{line}}}\n" % of_record for of_record in values]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JournalRead:
    """What one table of a journal held."""

    records: list[Any]
    num_torn_lines: int


def read_journal(directory: Path, record: type, *, hint: str = "") -> JournalRead:
    """Every record of one table, in the order of writer and segment.

    A torn last line of an open segment is skipped and counted.
    Raises JournalError naming file, line and column for any other bad line; `hint` is the command
    that mends the rest, such as `seqscale load runs/r7`.
    """
    records: list[Any] = []
    num_torn = 0
    for path in segments(directory, table_name(record)):
        for _, parsed in _read_segment(path, record, hint):
            if parsed is None:
                num_torn += 1
            else:
                records.append(parsed)
    return JournalRead(records=records, num_torn_lines=num_torn)


def segments(directory: Path, name: str) -> list[Path]:
    """The segment files of one table, closed and open, sorted by name."""
    folder = directory / name
    found = [*folder.glob(f"*{CLOSED_SUFFIX}"), *folder.glob(f"*{OPEN_SUFFIX}")]
    return sorted(found, key=lambda path: path.name)


def tables_in(directory: Path) -> list[str]:
    """The tables a journal holds, in schema order.

    Raises JournalError for a folder that is no table's: what it holds would be passed over.
    """
    known = directory.iterdir() if directory.is_dir() else ()
    for folder in sorted(known):
        if folder.is_dir() and folder.name not in TABLES:
            raise JournalError(
                f"{folder}: there is no table of this name; known are {', '.join(TABLES)}. If a "
                "newer seqscale wrote it, load with that one; else rename or remove the folder."
            )
    return [name for name in TABLES if segments(directory, name)]


def _segment_number(path: Path) -> int:
    """The number at the end of a segment's name; -1 when there is none."""
    digits = path.name.split(CLOSED_SUFFIX)[0].rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _read_segment(path: Path, record: type, hint: str) -> Iterator[tuple[int, Any]]:
    is_open = path.name.endswith(OPEN_SUFFIX)
    data = path.read_bytes()
    lines = data.split(b"\n")
    ends_whole = lines[-1] == b""
    if ends_whole:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError("the line is not a JSON object")
            yield number, from_mapping(record, values)
        except (ValueError, RecursionError) as error:
            if is_open and is_last and not ends_whole:
                yield number, None
                return
            raise JournalError(_bad_line(path, number, error, is_open, hint)) from error


def _bad_line(path: Path, number: int, error: Exception, is_open: bool, hint: str) -> str:
    what = "the line is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
    state = "open, but this is not its last line" if is_open else "closed"
    again = f" and run '{hint}' again" if hint else " and load again"
    return (
        f"{path} line {number}: {what}. The segment is {state}, so this is not a torn write; "
        f"delete the line{again}."
    )
