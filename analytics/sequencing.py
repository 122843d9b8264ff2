"""Turns rows in file order into one time-ordered sequence per user, and counts what was dropped.

Order: by time, equal times by their order in the file. A row is dropped for the first reason that
holds: missing_user, missing_item, unparsable_time, then user_too_short (the user has fewer rows
left than min_history), then beyond_max_history (only the newest max_history rows stay).
user_index counts users by first appearance among the rows that can be read. item_index counts items
by the MD5 of their id: an order that says nothing of popularity, so that a table cut into
contiguous parts is loaded evenly, and that no future file can turn round.

Before: reading.py's table `rows` and a rule of event_times.py.   After: interactions.py stores it.
Price: one external sort of numbers; DuckDB spills to the working folder, so memory stays bounded.
"""

from __future__ import annotations

import dataclasses

import duckdb

REASONS = (
    "missing_user",
    "missing_item",
    "unparsable_time",
    "user_too_short",
    "beyond_max_history",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped:
    """Rows that were not kept."""

    by_reason: dict[str, int]  # every reason, in the order of REASONS
    first_unparsable_row: int | None  # its rowid in `rows`


def build_sequences(
    connection: duckdb.DuckDBPyConnection, time_sql: str, *, min_history: int, max_history: int
) -> Dropped:
    """Make the tables users, items and sequences, and return what was dropped.

    sequences: user_index, item_index [INTEGER], time_us, start [BIGINT], in order; start is the
    rowid of the user's first event. users: user_text, user_index, num_events.
    items: item_text, item_index, num_events.
    """
    counts, first_row = _count_unusable(connection, time_sql)
    _choose_rows(connection, time_sql, all_readable=first_row is None)
    _choose_users(connection, counts, min_history=min_history, max_history=max_history)
    _put_in_order(connection)
    _number_items(connection)
    _finish(connection, is_cut=counts["beyond_max_history"] > 0)
    return Dropped(by_reason=counts, first_unparsable_row=first_row)


def _count_unusable(
    connection: duckdb.DuckDBPyConnection, time_sql: str
) -> tuple[dict[str, int], int | None]:
    """Rows without user, item or a readable time, and the first row whose time is at fault."""
    found = connection.execute(
        f"""
        WITH cells AS (
            SELECT rowid AS file_row, user_text IS NULL AS no_user, item_text IS NULL AS no_item,
                ({time_sql}) IS NULL AS no_time
            FROM rows
        )
        SELECT count(*) FILTER (no_user),
            count(*) FILTER (NOT no_user AND no_item),
            count(*) FILTER (NOT no_user AND NOT no_item AND no_time),
            min(file_row) FILTER (NOT no_user AND NOT no_item AND no_time)
        FROM cells
        """  # noqa: S608
    ).fetchone()
    assert found is not None
    counts = dict.fromkeys(REASONS, 0)
    for reason, count in zip(REASONS, found[:3], strict=False):
        counts[reason] = int(count)
    return counts, None if found[3] is None else int(found[3])


def _choose_rows(
    connection: duckdb.DuckDBPyConnection, time_sql: str, *, all_readable: bool
) -> None:
    """View `parsed`: the rows that can be used; times are read only where they are asked for."""
    readable = "" if all_readable else f"AND ({time_sql}) IS NOT NULL"
    connection.execute(
        f"""
        CREATE VIEW parsed AS
        SELECT rowid AS file_row, user_text, item_text, {time_sql} AS time_us
        FROM rows
        WHERE user_text IS NOT NULL AND item_text IS NOT NULL {readable}
        """  # noqa: S608
    )


def _choose_users(
    connection: duckdb.DuckDBPyConnection,
    counts: dict[str, int],
    *,
    min_history: int,
    max_history: int,
) -> None:
    """Table `users`: those with enough events, numbered by first appearance in the file.

    first_kept: where the user's first event that stays lies among all ordered events.
    """
    connection.execute(
        """
        CREATE TABLE users AS
        SELECT user_text, num_read, num_events, user_index,
            CAST(sum(num_read) OVER (ORDER BY user_index) - num_events AS BIGINT) AS first_kept
        FROM (
            SELECT user_text, num_read, least(num_read, $longest) AS num_events,
                row_number() OVER (ORDER BY first_row) - 1 AS user_index
            FROM (
                SELECT user_text, count(*) AS num_read, min(file_row) AS first_row
                FROM parsed
                GROUP BY user_text
            )
            WHERE num_read >= $shortest
        )
        """,
        {"longest": max_history, "shortest": min_history},
    )
    row = connection.execute(
        """
        SELECT (SELECT count(*) FROM parsed) - coalesce(sum(num_read), 0),
            coalesce(sum(num_read - num_events), 0)
        FROM users
        """
    ).fetchone()
    assert row is not None
    counts["user_too_short"], counts["beyond_max_history"] = int(row[0]), int(row[1])


def _put_in_order(connection: duckdb.DuckDBPyConnection) -> None:
    """Table `ordered`: every event of every chosen user, items as codes in the order of MD5."""
    connection.execute(
        """
        CREATE TABLE codes AS
        SELECT item_text, row_number() OVER (ORDER BY md5(item_text), item_text) - 1 AS code
        FROM (
            SELECT DISTINCT item_text FROM parsed SEMI JOIN users USING (user_text)
        )
        """
    )
    connection.execute(
        """
        CREATE TABLE ordered AS
        SELECT CAST(user_index AS INTEGER) AS user_index, CAST(code AS INTEGER) AS code,
            time_us, first_kept
        FROM parsed JOIN users USING (user_text) JOIN codes USING (item_text)
        ORDER BY user_index, time_us, file_row
        """
    )


def _number_items(connection: duckdb.DuckDBPyConnection) -> None:
    """Table `items`: those that occur in the events that stay."""
    connection.execute(
        """
        CREATE TABLE items AS
        SELECT item_text, code, num_events, row_number() OVER (ORDER BY code) - 1 AS item_index
        FROM (
            SELECT code, count(*) AS num_events FROM ordered WHERE rowid >= first_kept GROUP BY code
        ) JOIN codes USING (code)
        """
    )


def _finish(connection: duckdb.DuckDBPyConnection, *, is_cut: bool) -> None:
    """Table `sequences`: the ordered events, without those beyond the longest history."""
    if not is_cut:  # every code is an item, so codes are item indices
        connection.execute("ALTER TABLE ordered RENAME COLUMN code TO item_index")
        connection.execute("ALTER TABLE ordered RENAME COLUMN first_kept TO start")
        connection.execute("ALTER TABLE ordered RENAME TO sequences")
        return
    connection.execute(
        """
        CREATE TABLE sequences AS
        SELECT ordered.user_index, CAST(items.item_index AS INTEGER) AS item_index, time_us, start
        FROM ordered
        JOIN items USING (code)
        JOIN (
            SELECT user_index,
                CAST(sum(num_events) OVER (ORDER BY user_index) - num_events AS BIGINT) AS start
            FROM users
        ) AS starts ON starts.user_index = ordered.user_index
        WHERE ordered.rowid >= first_kept
        ORDER BY ordered.rowid
        """
    )
