"""Settles how a file writes its times, from its first rows, and turns them into microseconds.

Numbers, whole or decimal, are seconds, milliseconds, microseconds or nanoseconds since 1970, by the
magnitude of the median; eight-digit days (20240131) are told apart when every number is one; text
is ISO 8601, with or without a zone (none means UTC), a date alone means midnight. Everything is
exact: decimals are DECIMAL, never a float, and what is finer than a microsecond is cut off. A cell
such as 0x5f or 1_000 is not a time.

Before: rows.py's cells.   After: scan.py puts the rule into its statement.
Price: a file of at most 32 MB is looked at whole, of a larger one the first 100,000 rows, or
2 million when these do not settle it. Whole seconds cost 0.06 us a row, decimals 0.4 us.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import duckdb

from analytics.errors import InputError
from analytics.sources.rows import Rows

_WHOLE_BYTES = 32 << 20
_SAMPLES = (100_000, 2_000_000)
_DAY_RANGE = (19000101, 21001231)
_EARLIEST_S, _LATEST_S = 631_152_000, 4_102_444_800  # 1990 and 2100
_ISO_TEXT = re.compile(r"\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T]|\s*$)")
_FORMS = (
    "epoch seconds, milliseconds, microseconds or nanoseconds, or ISO 8601 such as "
    "2024-01-31T12:00:00Z"
)
# unit: its words, where the magnitude of its numbers ends, its factor over or under microseconds
_UNITS = {
    "s": ("seconds since 1970", 10**11, 1_000_000),  # 1e11 s is the year 5138
    "ms": ("milliseconds since 1970", 10**14, 1000),  # 1e11 ms is 1973
    "us": ("microseconds since 1970", 10**17, 1),
    "ns": ("nanoseconds since 1970", 10**19, -1000),
}
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
             "UBIGINT", "HUGEINT", "UHUGEINT")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeRule:
    """How the times of one file are read."""

    words: str  # for a person, such as 'seconds since 1970, by the median magnitude'
    sql: str  # microseconds since 1970 [BIGINT]; NULL where the cell cannot be read
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sample:
    """What the first cells look like; counts of cells."""

    total: int
    numbers: int
    below: dict[str, int]  # numbers below each unit's limit
    least: int
    most: int
    median: float
    days: int  # numbers that are YYYYMMDD
    iso: int
    is_whole: bool  # the sample is the whole file


def find_rule(connection: duckdb.DuckDBPyConnection, rows: Rows, unit: str | None) -> TimeRule:
    """The rule that reads the times of a file.

    unit: one of TIME_UNITS, or None to find it out. Raises InputError with the count and the first
    place when more than half of the cells looked at cannot be read.
    """
    assert rows.time is not None
    cell = f"({rows.time})"
    if rows.time_type.startswith(("TIMESTAMP", "DATE")):
        # DuckDB has no epoch_us of nanoseconds with a zone; the cast keeps the instant
        plain = rows.time_type in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE")
        sql = f"epoch_us({cell if plain else f'CAST({cell} AS TIMESTAMPTZ)'})"
        return TimeRule(words="the file's own timestamps", sql=sql)
    if rows.frame is not None:
        return _framed(rows)
    warnings = _float_warning(rows)
    for size in (None,) if rows.file.num_bytes <= _WHOLE_BYTES else _SAMPLES:
        sample = _look(connection, rows, size)
        num_best = max(sample.numbers, sample.iso)
        if unit is not None or 2 * num_best >= sample.total:
            break
    chosen = unit or _unit_of(sample)
    sql = _sql(cell, rows.time_type, chosen)
    words = _words(chosen) + ("" if unit else _because(chosen))
    if unit is not None:
        words += ", as told"
        num_best = _count(connection, rows, sql, size)
    if 2 * num_best < sample.total:
        raise _too_many(connection, rows, sql, sample, num_best)
    return TimeRule(words=words, sql=sql, warnings=(*warnings, *_doubt(rows, sample, chosen, unit)))


def looks_like_times(cells: Sequence[str]) -> bool:
    """Whether nearly all cells are times between 1990 and 2100, written in one way.

    Nearly all: 95 of 100 that are not empty. Numbers must be of one unit.
    """
    filled = [cell.strip() for cell in cells if cell.strip()]
    if not filled:
        return False
    needed = 0.95 * len(filled)
    if sum(bool(_ISO_TEXT.match(cell)) for cell in filled) >= needed:
        return True
    numbers = [
        float(cell) for cell in filled if re.fullmatch(r"\d{1,20}(\.\d*)?([eE]\+?\d\d?)?", cell)
    ]
    for factor in (1, 10**3, 10**6, 10**9):
        num = sum(_EARLIEST_S <= number / factor < _LATEST_S for number in numbers)
        if num >= needed:
            return True
    return sum(bool(_is_day(cell)) for cell in filled) >= needed


def time_text(rows: Rows) -> str:
    """SQL of what a time cell says, for a person."""
    if rows.frame is not None:
        return f"concat(({rows.time}), ' + ', ({rows.frame}))"
    return f"CAST(({rows.time}) AS VARCHAR)"


def _is_day(cell: str) -> bool:
    return bool(re.fullmatch(r"(199\d|20\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", cell))


def _look(connection: duckdb.DuckDBPyConnection, rows: Rows, size: int | None) -> _Sample:
    limit = "" if size is None else f"LIMIT {size}"
    number = _number("t")
    below = ", ".join(f"count(*) FILTER (abs(n) < {limit})" for _, limit, _ in _UNITS.values())
    statement = f"""
        SELECT count(*), count(n), CAST(floor(min(n)) AS HUGEINT), CAST(ceil(max(n)) AS HUGEINT),
            CAST(median(n) AS DOUBLE), count({_day("t")}), count({_iso("t")}), {below}
        FROM (
            SELECT t, {number} AS n
            FROM (SELECT CAST(({rows.time}) AS VARCHAR) AS t FROM {rows.source} {limit})
        )
    """  # noqa: S608
    row = rows.first(connection, statement)
    assert row is not None  # an aggregate always has a row
    return _Sample(
        total=row[0], numbers=row[1], least=int(row[2] or 0), most=int(row[3] or 0),
        median=row[4] or 0.0, days=row[5], iso=row[6],
        below=dict(zip(_UNITS, row[7:], strict=True)),
        is_whole=size is None or row[0] < size,
    )  # fmt: skip


def _count(connection: duckdb.DuckDBPyConnection, rows: Rows, sql: str, size: int | None) -> int:
    """How many of the cells that were looked at a rule can read."""
    limit = "" if size is None else f"LIMIT {size}"
    statement = f"SELECT count(us) FROM (SELECT {sql} AS us FROM {rows.source} {limit})"  # noqa: S608
    row = rows.first(connection, statement)
    assert row is not None
    return int(row[0])


def _unit_of(sample: _Sample) -> str:
    """The unit by what most cells are; the median lies below the first limit with half of them."""
    if sample.iso > sample.numbers or sample.numbers == 0:
        return "iso"
    low, high = _DAY_RANGE
    if low <= sample.least and sample.most <= high and sample.days == sample.numbers:
        return "yyyymmdd"
    return next((unit for unit in _UNITS if 2 * sample.below[unit] >= sample.numbers), "ns")


def _words(unit: str) -> str:
    if unit == "iso":
        return "ISO 8601, UTC where no zone is given"
    return "days written as YYYYMMDD" if unit == "yyyymmdd" else _UNITS[unit][0]


def _because(unit: str) -> str:
    return ", by the median magnitude" if unit in _UNITS else ""


def _doubt(rows: Rows, sample: _Sample, chosen: str, unit: str | None) -> tuple[str, ...]:
    """A warning when numbers read as times lie in no year that interactions come from."""
    if chosen not in _UNITS or unit is not None or sample.numbers == 0:
        return ()
    factor = _UNITS[chosen][2]
    median_s = sample.median * (factor if factor > 0 else 1 / -factor) / 1e6
    if _EARLIEST_S <= median_s < _LATEST_S:
        return ()
    return (
        f"{rows.file.label}: the numbers of the time column '{rows.time_name}' are not those of "
        "dates between 1990 and 2100. They were read as seconds since 1970 or by their magnitude: "
        "good for the order, not for dates. Name the unit with --time-unit if it is another.",
    )


def _float_warning(rows: Rows) -> tuple[str, ...]:
    if rows.time_type != "FLOAT":
        return ()
    return (
        f"{rows.file.label}: the time column '{rows.time_name}' is of 32-bit floats, which cannot "
        "tell epoch seconds less than 128 apart. Write it as integers or 64-bit floats.",
    )


def _too_many(
    connection: duckdb.DuckDBPyConnection, rows: Rows, sql: str, sample: _Sample, num_read: int
) -> InputError:
    statement = (
        f"SELECT row, t FROM (SELECT row_number() OVER () - 1 AS row, {sql} AS us, "  # noqa: S608
        f"{time_text(rows)} AS t FROM {rows.source}) WHERE us IS NULL ORDER BY row LIMIT 1"
    )
    found = rows.first(connection, statement)
    cell = shown_cell(found[1], rows.locate(found[0])) if found else "not there"
    of = f"{sample.total} values" if sample.is_whole else f"the first {sample.total} values"
    return InputError(
        f"{rows.file.label}: {sample.total - num_read} of {of} of column '{rows.time_name}' are "
        f"not times; the first is {cell}. Expected {_FORMS}. Mend the column, name another with "
        "--time COLUMN, or its unit with --time-unit."
    )


def shown_cell(text: object, place: str) -> str:
    """What a time says and where: "'soon' in line 3", "an empty cell in line 2"."""
    said = "an empty cell" if text is None or text == "" else repr(str(text)[:40])
    return f"{said} in {place}"


def _framed(rows: Rows) -> TimeRule:
    """A day at midnight UTC and milliseconds since."""
    frame = _epoch(f"({rows.frame})", "ms")
    return TimeRule(
        words="a day at midnight UTC plus milliseconds within it",
        sql=f"{_iso(f'({rows.time})')} + {frame}",
    )


def _sql(cell: str, kind: str, unit: str) -> str:
    """Microseconds out of a cell of type `kind`."""
    if unit == "iso" or unit == "yyyymmdd":
        text = cell if kind == "VARCHAR" else f"CAST({cell} AS VARCHAR)"
        return _iso(text) if unit == "iso" else _day(text)
    if kind in _INTEGERS:
        return _scaled(f"TRY_CAST({cell} AS BIGINT)", unit)
    if kind in ("DOUBLE", "FLOAT"):
        # a double's shortest text is the number that was meant: 1396437466.94, not ...939999
        whole = f"abs({cell}) < 9e15 AND {cell} = trunc({cell})"
        return (
            f"CASE WHEN {whole} THEN {_scaled(f'CAST({cell} AS BIGINT)', unit)} "
            f"ELSE {_exact(f'CAST(CAST({cell} AS DOUBLE) AS VARCHAR)', unit)} END"
        )
    return _epoch(cell if kind == "VARCHAR" else f"CAST({cell} AS VARCHAR)", unit)


def _epoch(text: str, unit: str) -> str:
    """Microseconds out of text: whole numbers the quick way, the rest exactly."""
    digits = 19 if unit == "ns" else 18
    whole = (
        f"CASE WHEN NOT contains({text}, '.') AND NOT contains({text}, '-') "
        f"AND NOT contains({text}, '_') "
        f"THEN TRY_CAST(TRY_CAST({text} AS DECIMAL({digits}, 0)) AS BIGINT) END"
    )
    return f"coalesce({_scaled(f'({whole})', unit)}, {_exact(text, unit)})"


def _scaled(whole: str, unit: str) -> str:
    factor = _UNITS[unit][2]
    if factor < 0:
        return f"({whole} // {-factor})"
    return whole if factor == 1 else f"TRY({whole} * {factor})"


def _exact(text: str, unit: str) -> str:
    factor = _UNITS[unit][2]
    number = _number(text)
    if factor < 0:
        return f"TRY_CAST(TRY_CAST(floor({number}) AS HUGEINT) // {-factor} AS BIGINT)"
    return f"TRY_CAST(floor({number} * {factor}) AS BIGINT)"


def _number(text: str) -> str:
    """A decimal; DuckDB alone would take 1_000 for one."""
    return f"CASE WHEN NOT contains({text}, '_') THEN TRY_CAST({text} AS DECIMAL(28, 9)) END"


def _day(text: str) -> str:
    return f"epoch_us(try_strptime(trim({text}), '%Y%m%d'))"


def _iso(text: str) -> str:
    return (
        f"CASE WHEN regexp_matches({text}, '^\\s*\\d{{4}}[-/]\\d{{1,2}}[-/]\\d{{1,2}}') "
        f"THEN epoch_us(TRY_CAST(trim({text}) AS TIMESTAMPTZ)) END"
    )
