"""Turns scans of files into numbered users and items and ordered events, whatever their size.

Users and items get their codes in the order of the MD5 of their id (or pseudonym), which says
nothing of popularity and which no later file can turn round.

Before: analytics/sources' scans.   After: Events, and the tables users and items.
Price: see staging.py and row_order.py; the distinct ids must fit into memory (about 100 bytes each)
and so must 32 bytes a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from analytics.errors import InputError
from analytics.events import Events
from analytics.pseudonyms import PseudonymKey, pseudonym_sql
from analytics.row_order import FileRows, in_order
from analytics.row_rules import RowRules, count_of, count_reasons, reason_sql
from analytics.sources.scan import Scan
from analytics.staging import IdColumn, Staged, stage

MAX_ACTIONS = 65_535
_CHUNK_ROWS = 1 << 23
_TABLE_SLACK = 1 << 20  # entries that a table of codes may have beyond four for each row


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodedRows:
    """Events in order over the tables `users` and `items`, and what became of every row."""

    events: Events
    num_rows: tuple[int, ...]  # of each scan
    dropped: dict[str, int]  # by reason, every one of REASONS
    first_unparsable_row: int | None  # its place among all rows of all scans
    actions: list[str]  # names of the codes in events.actions
    has_ratings: bool


def code_rows(
    connection: duckdb.DuckDBPyConnection,
    scans: Sequence[Scan],
    splits: Sequence[int] | None,
    rules: RowRules,
    key: PseudonymKey | None,
) -> CodedRows:
    """Read every scan; make the tables users (user_code, user_key) and items (item_code, item_id).

    splits: the split code of each scan when split files were given, else None.
    key: None keeps user ids as they came.
    Raises InputError for more than MAX_ACTIONS actions, or a file that changes while it is read.
    """
    staged = stage(connection, scans, splits)
    _number_users(connection, staged.user, key)
    _number_items(connection, staged.item)
    actions = _number_actions(connection, scans)
    has_ratings = (
        "rating" in staged.side and count_of(connection, "SELECT count(rating) FROM staged") > 0
    )
    reason = reason_sql(rules, has_times=scans[0].has_time, has_ratings="rating" in staged.side)
    counts, first_row = count_reasons(connection, reason)
    is_usable = _usable(connection, reason, counts)
    rows = _file_rows(connection, staged, actions, is_usable, has_ratings=has_ratings)
    if len(rows.users) and min(int(rows.users.min()), int(rows.items.min())) < 0:
        raise InputError(
            f"{', '.join(scan.label for scan in scans)}: changed while it was read. Read it again "
            "when nobody writes to it any more."
        )
    connection.execute("DROP TABLE staged")
    return CodedRows(
        events=in_order(rows, count_of(connection, "SELECT count(*) FROM users")),
        num_rows=staged.num_rows,
        dropped=counts,
        first_unparsable_row=first_row,
        actions=actions,
        has_ratings=has_ratings,
    )


def numbered_sql(key: str, code: str) -> str:
    """SQL of an id's code: its place in the order of MD5, the one order that all stores share."""
    return f"CAST(row_number() OVER (ORDER BY md5({key}), {key}) - 1 AS INTEGER) AS {code}"


def _distinct_sql(column: IdColumn, key: str) -> str:
    """SELECT of (id, key) of every id that a row names."""
    if column.is_number:
        return (
            f"SELECT CAST({key} AS VARCHAR) AS id, {key} AS key FROM "  # noqa: S608
            f"(SELECT DISTINCT {key} FROM staged WHERE {key} IS NOT NULL)"
        )
    return f"SELECT id, hash AS key FROM distinct_text WHERE kind = '{column.name}'"  # noqa: S608


def _number_users(
    connection: duckdb.DuckDBPyConnection, column: IdColumn, key: PseudonymKey | None
) -> None:
    key_sql, parameters = "id", {}
    if key is not None:
        inner, outer = key.pads()
        key_sql, parameters = pseudonym_sql("id"), {"inner": inner, "outer": outer}
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE users AS
        SELECT {numbered_sql("user_key", "user_code")}, user_key, key
        FROM (SELECT {key_sql} AS user_key, key FROM ({_distinct_sql(column, "user_key")}))
        """,  # noqa: S608
        parameters,
    )


def _number_items(connection: duckdb.DuckDBPyConnection, column: IdColumn) -> None:
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE items AS
        SELECT {numbered_sql("id", "item_code")}, id AS item_id, key
        FROM ({_distinct_sql(column, "item_key")})
        """  # noqa: S608
    )


def _number_actions(connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan]) -> list[str]:
    """Table `actions`, and the names in the order of their codes; code 0 is "no action"."""
    names = connection.execute(
        "SELECT id FROM distinct_text WHERE kind = 'action' ORDER BY id"
    ).fetchall()
    if len(names) > MAX_ACTIONS:
        raise InputError(
            f"{', '.join(scan.label for scan in scans)}: the action column has {len(names):,} "
            f"distinct values, at most {MAX_ACTIONS:,} are kept. It is hardly an action: name "
            "another with --action COLUMN, or give --action none."
        )
    connection.execute(
        """
        CREATE OR REPLACE TABLE actions AS
        SELECT hash AS key, CAST(row_number() OVER (ORDER BY id) AS INTEGER) AS action_code
        FROM distinct_text
        WHERE kind = 'action'
        """
    )
    return ["", *(str(name) for (name,) in names)] if names else []


def _usable(
    connection: duckdb.DuckDBPyConnection, reason: str, counts: dict[str, int]
) -> npt.NDArray[np.bool_] | None:
    """Which rows of `staged` can be used; None: all."""
    if not any(counts.values()):
        return None
    usable: npt.NDArray[np.bool_] = _column(connection, f"{reason} = 0", np.bool_, 0)
    return usable


def _file_rows(
    connection: duckdb.DuckDBPyConnection,
    staged: Staged,
    actions: list[str],
    is_usable: npt.NDArray[np.bool_] | None,
    *,
    has_ratings: bool,
) -> FileRows:
    """The usable rows as codes, in the order of the files."""

    def chosen(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if is_usable is None else column[is_usable]

    has_splits = "split_code" in staged.side
    return FileRows(
        users=chosen(_codes(connection, "user", staged.user.is_number)),
        items=chosen(_codes(connection, "item", staged.item.is_number)),
        times=chosen(_column(connection, "event_time_us", np.int64, 0)),
        actions=chosen(np.maximum(_joined(connection, "action", "action_hash"), 0)).astype(
            np.uint16
        )
        if actions
        else None,
        ratings=chosen(_column(connection, "rating", np.float32, np.nan)) if has_ratings else None,
        splits=chosen(_column(connection, "split_code", np.uint8, 0)) if has_splits else None,
    )


def _column(
    connection: duckdb.DuckDBPyConnection, cell: str, kind: type[np.generic], missing: float
) -> npt.NDArray[Any]:
    """One column of `staged` in the order of the files, chunk by chunk; NULL becomes `missing`."""
    num_rows = count_of(connection, "SELECT count(*) FROM staged")
    column = np.empty(num_rows, dtype=kind)
    for start in range(0, num_rows, _CHUNK_ROWS):
        found = connection.execute(
            f"SELECT {cell} AS cell FROM staged WHERE rowid >= $start AND rowid < $stop",  # noqa: S608
            {"start": start, "stop": start + _CHUNK_ROWS},
        ).fetchnumpy()["cell"]
        column[start : start + _CHUNK_ROWS] = np.ma.filled(found, missing)
    return column


def _codes(
    connection: duckdb.DuckDBPyConnection, role: str, is_number: bool
) -> npt.NDArray[np.int32]:
    """The code of each row's user or item, -1 for none; shape (rows of `staged`,).

    Numbers that lie close together are looked up in a table, the rest by a join: for 10 million
    rows 0.2 s against a second.
    """
    if is_number:
        known = connection.execute(
            f"SELECT key, {role}_code AS code FROM {role}s"  # noqa: S608
        ).fetchnumpy()
        keys = np.asarray(known["key"], dtype=np.int64)
        num_rows = count_of(connection, "SELECT count(*) FROM staged")
        if len(keys) and int(keys.max()) - int(keys.min()) <= 4 * num_rows + _TABLE_SLACK:
            least = int(keys.min())
            table = np.full(int(keys.max()) - least + 2, -1, dtype=np.int32)
            table[keys - least] = known["code"]
            # the last entry stays -1: it stands for a missing id
            places = _column(connection, f"{role}_key - ({least})", np.int64, len(table) - 1)
            codes: npt.NDArray[np.int32] = table[places]
            return codes
    return _joined(connection, role, f"{role}_key")


def _joined(connection: duckdb.DuckDBPyConnection, role: str, key: str) -> npt.NDArray[np.int32]:
    """The same by a join. Its rows come in no order, so each says where it belongs."""
    num_rows = count_of(connection, "SELECT count(*) FROM staged")
    codes = np.full(num_rows, -1, dtype=np.int32)
    for start in range(0, num_rows, _CHUNK_ROWS):
        found = connection.execute(
            f"SELECT file_row, {role}_code AS code FROM (SELECT rowid AS file_row, {key} AS key "  # noqa: S608
            f"FROM staged WHERE rowid >= $start AND rowid < $stop) JOIN {role}s USING (key)",
            {"start": start, "stop": start + _CHUNK_ROWS},
        ).fetchnumpy()
        codes[found["file_row"]] = found["code"]
    return codes
