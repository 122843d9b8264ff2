"""Sorts the staged rows into every user's history, and hands them over as columns of numbers.

One external sort by DuckDB: user, time, place in the files. Rows that cannot be used are counted by
reason on the way.

Before: coding.py's tables staged, users, items, action_names.   After: Events.
Price: the sort, within DuckDB's memory limit and spill; the columns in memory (events.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb
import numpy as np

from analytics.events import Events

REASONS = (
    "missing_user",
    "missing_item",
    "unparsable_time",
    "future_time",
    "beyond_retention",
    "missing_rating",
    "below_min_rating",
)
_CHUNK_EVENTS = 1 << 22


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRules:
    """What a single row must be like."""

    not_after_us: int  # later times are in the future [us since 1970]
    oldest_us: int | None = None  # earlier times are beyond retention
    min_rating: float | None = None  # implicit feedback: rows rated lower are dropped


def reason_sql(rules: RowRules, *, has_times: bool, has_ratings: bool) -> str:
    """SQL of 1 + the row's reason among REASONS, 0 for a usable row; numbers of ours only."""
    cases = ["WHEN user_hash IS NULL THEN 1", "WHEN item_hash IS NULL THEN 2"]
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


def put_in_order(connection: duckdb.DuckDBPyConnection, columns: list[str], usable: str) -> None:
    """Table `ordered`: every usable row, by user (split, when given), time, place in the files."""
    with_actions = "action_code" in columns
    no_action = {"action_code": "coalesce(action_code, 0) AS action_code"}
    cells = [no_action.get(name, name) for name in columns]
    keys = [name for name in ("user_code", "split_code", "event_time_us") if name in columns]
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE ordered AS
        SELECT {", ".join(cells)}
        FROM (SELECT *, rowid AS file_row FROM staged {usable}) AS usable
        JOIN users ON users.hash = usable.user_hash
        JOIN items ON items.hash = usable.item_hash
        {"LEFT JOIN action_names ON action_names.hash = action_hash" if with_actions else ""}
        ORDER BY {", ".join(keys)}, file_row
        """  # noqa: S608
    )


def fetch_ordered(
    connection: duckdb.DuckDBPyConnection, columns: list[str], num_events: int
) -> Events:
    """The table `ordered` as columns of numbers, chunk by chunk."""
    num_users = count_of(connection, "SELECT count(*) FROM users")
    types = {"item_code": np.int32, "event_time_us": np.int64, "action_code": np.uint16}
    types |= {"rating": np.float32, "split_code": np.uint8}  # type: ignore[dict-item]
    made: dict[str, Any] = {
        name: np.empty(num_events, dtype=types[name]) for name in columns if name in types
    }
    length_U = np.zeros(num_users, dtype=np.int64)
    for start in range(0, num_events, _CHUNK_EVENTS):
        chunk = connection.execute(
            f"SELECT {', '.join(columns)} FROM ordered "  # noqa: S608
            "WHERE rowid >= $start AND rowid < $stop",
            {"start": start, "stop": start + _CHUNK_EVENTS},
        ).fetchnumpy()
        stop = start + len(chunk["user_code"])
        assert (np.diff(chunk["user_code"]) >= 0).all(), "events are not user by user"
        for name, column in made.items():
            cells = chunk[name]
            if isinstance(cells, np.ma.MaskedArray):  # NULL ratings
                cells = cells.filled(np.nan)
            column[start:stop] = cells
        length_U += np.bincount(chunk["user_code"], minlength=num_users)
    return Events(
        items=made["item_code"],
        times=made["event_time_us"],
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(length_U)]),
        actions=made.get("action_code"),
        ratings=made.get("rating"),
        given_splits=made.get("split_code"),
    )


def count_of(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    """The one whole number that a statement yields."""
    row = connection.execute(statement).fetchone()
    assert row is not None  # an aggregate always has a row
    return int(row[0])
