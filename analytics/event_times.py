"""Settles how a file writes its times, once for the whole file, and turns them into microseconds.

Numbers, whole or decimal, are seconds, milliseconds, microseconds or nanoseconds since 1970, by the
magnitude of the file's median; eight-digit days (20240131) are told apart when every number is one;
text is ISO 8601, with or without a zone (none means UTC), a date alone means midnight. Everything
is exact: decimals are DECIMAL, never a float, and what is finer than a microsecond is cut off.

Before: reading.py's table `rows`.   After: sequencing.py orders by what this yields.
Price: one pass over the time column for numbers, two for text.
"""

from __future__ import annotations

import dataclasses

import duckdb

from analytics.errors import InputError
from analytics.reading import Source, place_in_file

_NUMBER = "TRY_CAST(time_text AS DECIMAL(28, 9))"
_WHOLE = "TRY_CAST(time_text AS BIGINT)"  # of a file of whole numbers: it would round 1.5 to 2
_DAY = "epoch_us(try_strptime(trim(time_text), '%Y%m%d'))"
_ISO = (
    "CASE WHEN regexp_matches(time_text, '^\\s*\\d{4}-\\d{1,2}-\\d{1,2}') "
    "THEN epoch_us(TRY_CAST(trim(time_text) AS TIMESTAMPTZ)) END"
)
_DAY_RANGE = (19000101, 21001231)
_LARGEST_US = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Unit:
    """A unit of epoch times: its name, where its numbers end, and how they become microseconds."""

    name: str
    limit: int  # the median magnitude lies below: 1e11 s is the year 5138, 1e11 ms is 1973
    exact_sql: str  # any number, decimals included
    whole_sql: str  # whole numbers only; a third of the time
    whole_factor: int  # what whole_sql multiplies by; it must not overflow


_UNITS = (
    _Unit(
        name="seconds",
        limit=10**11,
        exact_sql=f"TRY_CAST(floor({_NUMBER} * 1000000) AS BIGINT)",
        whole_sql=f"{_WHOLE} * 1000000",
        whole_factor=1_000_000,
    ),
    _Unit(
        name="milliseconds",
        limit=10**14,
        exact_sql=f"TRY_CAST(floor({_NUMBER} * 1000) AS BIGINT)",
        whole_sql=f"{_WHOLE} * 1000",
        whole_factor=1000,
    ),
    _Unit(
        name="microseconds",
        limit=10**17,
        exact_sql=f"TRY_CAST(floor({_NUMBER}) AS BIGINT)",
        whole_sql=_WHOLE,
        whole_factor=1,
    ),
    _Unit(
        name="nanoseconds",
        limit=10**19,
        exact_sql=f"TRY_CAST(TRY_CAST(floor({_NUMBER}) AS HUGEINT) // 1000 AS BIGINT)",
        whole_sql=f"{_WHOLE} // 1000",
        whole_factor=1,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeRule:
    """How the times of one file are read."""

    words: str  # for a person, such as 'seconds since 1970, by the median magnitude'
    sql: str  # microseconds since 1970 [BIGINT] from time_text; NULL where it cannot be read


def find_time_rule(
    connection: duckdb.DuckDBPyConnection, source: Source, num_rows: int
) -> TimeRule:
    """The rule that reads the times of the table `rows`.

    Raises InputError with the count and the first line when more than half cannot be read.
    """
    if source.time_is_typed:
        return TimeRule(words="the file's own timestamps", sql="TRY_CAST(time_text AS BIGINT)")
    numbers = _count_numbers(connection)
    if 2 * numbers["total"] >= num_rows:
        return _number_rule(connection, numbers)
    num_iso = _single(connection, f"SELECT count({_ISO}) FROM rows")  # noqa: S608
    if 2 * num_iso >= num_rows:
        return TimeRule(words="ISO 8601, UTC where no zone is given", sql=_ISO)
    rule = _NUMBER if numbers["total"] > num_iso else _ISO
    first = _single(connection, f"SELECT min(rowid) FROM rows WHERE ({rule}) IS NULL")  # noqa: S608
    num_bad = num_rows - max(numbers["total"], num_iso)
    raise InputError(
        f"{source.path}: {num_bad} of {num_rows} values of column "
        f"'{source.names[source.time]}' are not times; the first is "
        f"{unreadable_cell(connection, source, first)}. Expected epoch seconds, "
        "milliseconds, microseconds or nanoseconds, or ISO 8601 such as "
        "2024-01-31T12:00:00Z. Mend the column, or name another with --time COLUMN."
    )


def unreadable_cell(connection: duckdb.DuckDBPyConnection, source: Source, row: int) -> str:
    """What a time that cannot be read says and where it stands; row: its rowid in `rows`."""
    found = connection.execute("SELECT time_text FROM rows WHERE rowid = $row", {"row": row})
    cell = found.fetchone()
    text = None if cell is None else cell[0]
    shown = "an empty cell" if text is None else repr(str(text)[:40])
    return f"{shown} in {place_in_file(source, row)}"


def _count_numbers(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """How many times are numbers, how many lie below each unit's limit, and their range.

    fractional: numbers written with a point or an exponent.
    """
    below = ", ".join(f"count(*) FILTER (abs(number) < {unit.limit})" for unit in _UNITS)
    row = connection.execute(
        f"SELECT count(number), {below}, CAST(floor(min(number)) AS HUGEINT), "  # noqa: S608
        "CAST(ceil(max(number)) AS HUGEINT), count(*) FILTER (number IS NOT NULL AND "
        "(contains(time_text, '.') OR contains(lower(time_text), 'e'))) "
        f"FROM (SELECT time_text, {_NUMBER} AS number FROM rows)"
    ).fetchone()
    assert row is not None  # an aggregate always has a row
    keys = ["total", *(unit.name for unit in _UNITS), "least", "most", "fractional"]
    return {key: int(cell) if cell is not None else 0 for key, cell in zip(keys, row, strict=True)}


def _number_rule(connection: duckdb.DuckDBPyConnection, numbers: dict[str, int]) -> TimeRule:
    low, high = _DAY_RANGE
    if low <= numbers["least"] and numbers["most"] <= high:
        num_days = _single(connection, f"SELECT count({_DAY}) FROM rows")  # noqa: S608
        if num_days == numbers["total"]:
            return TimeRule(words="days written as YYYYMMDD", sql=_DAY)
    # the median lies in the first unit whose limit has half of the numbers below it
    unit = next(unit for unit in _UNITS if 2 * numbers[unit.name] >= numbers["total"])
    largest = max(abs(numbers["least"]), abs(numbers["most"])) * unit.whole_factor
    is_plain = numbers["fractional"] == 0 and largest <= _LARGEST_US
    return TimeRule(
        words=f"{unit.name} since 1970, by the median magnitude",
        sql=unit.whole_sql if is_plain else unit.exact_sql,
    )


def _single(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    row = connection.execute(statement).fetchone()
    assert row is not None and row[0] is not None
    return int(row[0])
