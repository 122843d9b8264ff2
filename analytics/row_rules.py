"""What a single row must be like, and how many rows are dropped for which reason.

A row is dropped for the first reason that holds, in the order of REASONS; rules that need whole
histories are rules.py's.

Before: staging.py's table `staged`.   After: coding.py takes the rows that can be used.
Price: one pass over the table.
"""

from __future__ import annotations

import dataclasses

import duckdb

from analytics.reasons import BEYOND_RETENTION

REASONS = (
    "missing_user",
    "missing_item",
    "unparsable_time",
    "future_time",
    BEYOND_RETENTION,
    "missing_rating",
    "below_min_rating",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRules:
    """What a single row must be like."""

    not_after_us: int  # later times are in the future [us since 1970]
    oldest_us: int | None = None  # earlier times are beyond retention
    min_rating: float | None = None  # implicit feedback: rows rated lower are dropped


def reason_sql(rules: RowRules, *, has_times: bool, has_ratings: bool) -> str:
    """SQL of 1 + the row's reason among REASONS, 0 for a usable row; numbers of ours only."""
    cases = ["WHEN user_key IS NULL THEN 1", "WHEN item_key IS NULL THEN 2"]
    if has_times:
        cases.append("WHEN event_time_us IS NULL THEN 3")
        cases.append(f"WHEN event_time_us > {rules.not_after_us:d} THEN 4")
        if rules.oldest_us is not None:
            cases.append(f"WHEN event_time_us < {rules.oldest_us:d} THEN 5")
    if rules.min_rating is not None:
        cases.append("WHEN rating IS NULL THEN 6" if has_ratings else "WHEN true THEN 6")
    if rules.min_rating is not None and has_ratings:
        cases.append(f"WHEN rating < {float(rules.min_rating)!r} THEN 7")
    return f"CASE {' '.join(cases)} ELSE 0 END"


def count_reasons(
    connection: duckdb.DuckDBPyConnection, reason: str
) -> tuple[dict[str, int], int | None]:
    """Rows dropped by reason, and the first row whose time cannot be read."""
    found = connection.execute(
        f"SELECT {reason} AS reason, count(*), min(rowid) FROM staged GROUP BY reason"  # noqa: S608
    ).fetchall()
    by_number = {number: (count, first) for number, count, first in found}
    counts = {name: int(by_number.get(place + 1, (0,))[0]) for place, name in enumerate(REASONS)}
    unparsable = by_number.get(1 + REASONS.index("unparsable_time"))
    return counts, None if unparsable is None else int(unparsable[1])


def count_of(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    """The one whole number that a statement yields."""
    row = connection.execute(statement).fetchone()
    assert row is not None  # an aggregate always has a row
    return int(row[0])
