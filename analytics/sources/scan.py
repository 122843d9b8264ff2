"""Finds out how a path's interactions are written and offers each file as one SELECT statement.

Everything is found out from a file's first bytes and rows, said in `decision`, and can be
overridden by ReadingOptions. Nothing is evaluated, and no row's content enters a message.

Before: a path and what a person said about it.   After: the caller runs the statements.
Price: a pass over the bytes of a text file to see that it is one; packed files are unpacked once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import duckdb

from analytics.errors import InputError
from analytics.sources.choosing import files_to_read
from analytics.sources.delimited import delimited_rows
from analytics.sources.faults import blaming, explain
from analytics.sources.files import file_sha256, source_sha256
from analytics.sources.json_objects import json_rows
from analytics.sources.lists import list_rows
from analytics.sources.options import ReadingOptions
from analytics.sources.parquet import parquet_rows
from analytics.sources.rows import Rows, used
from analytics.sources.shapes import text_shape
from analytics.sources.times import find_rule, shown_cell, time_text
from analytics.sources.token_lists import has_token_lists, token_list_rows
from analytics.sources.unpacked import PlainFile

__all__ = [
    "ReadingOptions",
    "Scan",
    "blaming",
    "explain",
    "file_sha256",
    "open_scans",
    "source_sha256",
]

_ORDER = ("format", "compression", "encoding", "delimiter", "quotes", "header", "user", "item",
          "time", "time_unit", "action", "rating")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """The events of one file as a statement that is cheap and can be run again and again.

    select: yields user_id, item_id (any type whose VARCHAR cast is the id as it came; NULL when
    missing), event_time_us [BIGINT] (microseconds since 1970 UTC, NULL when unreadable, 0 when
    there is no time), action [VARCHAR] and rating [DOUBLE] (NULL when absent or unreadable), in
    the order of the file. What goes wrong when it runs is put into words by `explain`.
    deduplicate: exact repeats of (user, item, time) are an artefact of the format, to be dropped.
    """

    label: str  # for a person: "ratings.csv" or "ml.zip:ml/ratings.csv"
    name: str  # the same without the folder
    source_path: Path  # the file as it was given
    select: str
    parameters: dict[str, object]
    decision: dict[str, str]
    warnings: tuple[str, ...]
    has_time: bool
    has_action: bool
    has_rating: bool
    num_source_bytes: int
    deduplicate: bool
    time_cells: str  # statement of what the time cells say, as text
    place: Callable[[int], str]

    def locate(self, row: int) -> str:
        """Where a row of the select, counted from 0, stands: 'line 12', 'line 3, event 5'."""
        return self.place(row)

    def time_cell(self, connection: duckdb.DuckDBPyConnection, row: int) -> str:
        """What a row's time says and where, at most 40 characters of it: "'soon' in line 3"."""
        if not self.has_time:
            return f"no time in {self.locate(row)}"
        statement = f"{self.time_cells} LIMIT 1 OFFSET {int(row)}"
        found = connection.execute(statement, used(statement, self.parameters)).fetchone()
        return shown_cell(found[0] if found else None, self.locate(row))


def open_scans(
    path: str | Path,
    options: ReadingOptions,
    *,
    scratch: Path,
    connection: duckdb.DuckDBPyConnection,
    prefix: str = "s",
) -> list[Scan]:
    """The interactions of a file, a folder, a pattern or PATH.zip:member, one scan a file.

    scratch: a private folder for unpacked files, which the caller removes. connection: with
    TimeZone UTC. prefix: begins the names of the parameters, so that scans of several calls can
    stand in one statement. Raises InputError for what a file causes; OSError when scratch cannot be
    written.
    """

    def opened(file: PlainFile, number: int) -> Scan:
        return _scan(file, options, f"{prefix}{number}_", connection)

    return files_to_read(path, options, scratch=scratch, connection=connection, open_file=opened)


def _scan(
    file: PlainFile,
    options: ReadingOptions,
    prefix: str,
    connection: duckdb.DuckDBPyConnection,
) -> Scan:
    rows = _rows(file, options, prefix, connection)
    if rows.first(connection, f"SELECT 1 FROM {rows.source} LIMIT 1") is None:  # noqa: S608
        raise InputError(f"{file.label}: {rows.empty}. Give a file with interactions.")
    decision = {**file.decision, **rows.decision}
    warnings = [*file.warnings, *rows.warnings]
    time = "CAST(0 AS BIGINT)"
    decision["time_unit"] = "none"
    if rows.time is not None:
        rule = find_rule(connection, rows, options.time_unit)
        time, decision["time_unit"] = rule.sql, rule.words
        warnings += rule.warnings
    return Scan(
        label=file.label,
        name=file.name,
        source_path=file.source_path,
        select=(
            f"SELECT {rows.user} AS user_id, {rows.item} AS item_id, {time} AS event_time_us, "  # noqa: S608
            f"{rows.action or 'CAST(NULL AS VARCHAR)'} AS action, "
            f"{rows.rating or 'CAST(NULL AS DOUBLE)'} AS rating FROM {rows.source}"
        ),
        parameters=rows.parameters,
        decision={key: decision[key] for key in _ORDER if decision.get(key)},
        warnings=tuple(warnings),
        has_time=rows.time is not None,
        has_action=rows.action is not None,
        has_rating=rows.rating is not None,
        num_source_bytes=file.num_source_bytes,
        deduplicate=rows.deduplicate,
        time_cells=f"SELECT {time_text(rows) if rows.time else 'NULL'} FROM {rows.source}",  # noqa: S608
        place=rows.locate,
    )


def _rows(
    file: PlainFile,
    options: ReadingOptions,
    prefix: str,
    connection: duckdb.DuckDBPyConnection,
) -> Rows:
    """The file's events by the format it is in."""
    if file.is_parquet:
        return parquet_rows(file, options, prefix, connection)
    shape = text_shape(file, options)
    if shape.format == "json":
        return json_rows(file, options, prefix, connection)
    if shape.format == "lists":
        return list_rows(file, shape, prefix)
    if has_token_lists(shape):
        return token_list_rows(file, shape, options, prefix, connection)
    return delimited_rows(file, shape, options, prefix)
