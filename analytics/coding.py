"""Turns scans of files into numbered users and items and ordered events, whatever their size.

Users and items get their codes in the order of the MD5 of their id (or pseudonym), which says
nothing of popularity and which no later file can turn round.

Before: analytics/sources' scans.   After: Events, and the tables users and items.
Price: see staging.py and row_order.py; the distinct ids must fit into memory (about 100 bytes each)
and so must about 20 bytes a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from analytics.errors import InputError
from analytics.events import Events
from analytics.pseudonyms import PseudonymKey, pseudonym_sql
from analytics.row_order import Columns, in_order
from analytics.row_rules import RowRules, count_of, count_reasons, reason_sql
from analytics.sources.scan import Scan
from analytics.staging import IdColumn, Staged, stage

Coder = Callable[[int, int], npt.NDArray[np.int32]]

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
    rows = _Rows(connection, staged, actions, reason if any(counts.values()) else None)
    events = in_order(rows.chunks(has_ratings=has_ratings), rows.lengths())
    if rows.num_unknown:
        raise InputError(
            f"{', '.join(scan.label for scan in scans)}: changed while it was read. Read it again "
            "when nobody writes to it any more."
        )
    connection.execute("DROP TABLE staged")
    return CodedRows(
        events=events,
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


class _Rows:
    """The usable rows of `staged` as codes, in the order of the files, some at a time."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        staged: Staged,
        actions: list[str],
        reason: str | None,
    ) -> None:
        """reason: SQL that is 0 for a row that can be used; None: every row can."""
        self._connection = connection
        self._side = staged.side
        self._num_rows = sum(staged.num_rows)
        self._reason = reason
        self._item_codes = _coder(connection, "item", staged.item.is_number, self._num_rows)
        user_codes = _coder(connection, "user", staged.user.is_number, self._num_rows)
        self._users = np.empty(self._num_rows, dtype=np.int32)
        for start, stop in self._spans():
            self._users[start:stop] = user_codes(start, stop)
        self._action_codes = _joiner(connection, "action", "action_hash") if actions else None
        self.num_unknown = 0  # usable rows whose user or item no dictionary has

    def _spans(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self._num_rows, _CHUNK_ROWS):
            yield start, min(start + _CHUNK_ROWS, self._num_rows)

    def lengths(self) -> npt.NDArray[np.int64]:
        """Usable rows of each user; shape (U,)."""
        num_users = count_of(self._connection, "SELECT count(*) FROM users")
        length_U = np.zeros(num_users, dtype=np.int64)
        for start, stop in self._spans():
            users = self._users[start:stop][self._usable(start, stop)]
            length_U += np.bincount(users[users >= 0], minlength=num_users)
        return length_U

    def chunks(self, *, has_ratings: bool) -> Iterator[Columns]:
        """The columns that row_order.in_order takes."""
        for start, stop in self._spans():
            columns = {
                "users": self._users[start:stop],
                "items": self._item_codes(start, stop),
                "times": self._column("event_time_us", np.int64, 0, start, stop),
            }
            if self._action_codes is not None:
                codes = np.maximum(self._action_codes(start, stop), 0)  # -1: no action
                columns["actions"] = codes.astype(np.uint16)
            if has_ratings:
                columns["ratings"] = self._column("rating", np.float32, np.nan, start, stop)
            if "split_code" in self._side:
                columns["splits"] = self._column("split_code", np.uint8, 0, start, stop)
            usable = self._usable(start, stop)
            known = (columns["users"] >= 0) & (columns["items"] >= 0)
            self.num_unknown += int((usable & ~known).sum())
            chosen = usable & known
            yield columns if chosen.all() else {n: c[chosen] for n, c in columns.items()}

    def _usable(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        if self._reason is None:
            return np.ones(stop - start, dtype=np.bool_)
        found: npt.NDArray[np.bool_] = self._column(f"{self._reason} = 0", np.bool_, 0, start, stop)
        return found

    def _column(
        self, cell: str, kind: type[np.generic], missing: float, start: int, stop: int
    ) -> npt.NDArray[Any]:
        return _column(self._connection, cell, kind, missing, start, stop)


def _column(
    connection: duckdb.DuckDBPyConnection,
    cell: str,
    kind: type[np.generic],
    missing: float,
    start: int,
    stop: int,
) -> npt.NDArray[Any]:
    """Rows start to stop of one column of `staged`; NULL becomes `missing`."""
    found = connection.execute(
        f"SELECT {cell} AS cell FROM staged WHERE rowid >= $start AND rowid < $stop",  # noqa: S608
        {"start": start, "stop": stop},
    ).fetchnumpy()["cell"]
    return np.ma.filled(found, missing).astype(kind, copy=False)


def _coder(
    connection: duckdb.DuckDBPyConnection, role: str, is_number: bool, num_rows: int
) -> Coder:
    """Tells the code of each row's user or item, -1 for none, for rows start to stop.

    Numbers that lie close together are looked up in a table, the rest by a join: for 10 million
    rows 0.2 s against 0.3 s.
    """
    if is_number:
        known = connection.execute(
            f"SELECT key, {role}_code AS code FROM {role}s"  # noqa: S608
        ).fetchnumpy()
        keys = np.asarray(known["key"], dtype=np.int64)
        if len(keys) and int(keys.max()) - int(keys.min()) <= 4 * num_rows + _TABLE_SLACK:
            return _table_coder(connection, f"{role}_key", keys, np.asarray(known["code"]))
    return _joiner(connection, role, f"{role}_key")


def _table_coder(
    connection: duckdb.DuckDBPyConnection,
    column: str,
    keys: npt.NDArray[np.int64],
    codes: npt.NDArray[np.int32],
) -> Coder:
    least = int(keys.min())
    table = np.full(int(keys.max()) - least + 2, -1, dtype=np.int32)
    table[keys - least] = codes
    nobody = len(table) - 1  # the last entry stays -1: it stands for a missing id

    def coded(start: int, stop: int) -> npt.NDArray[np.int32]:
        places = _column(connection, f"{column} - ({least})", np.int64, nobody, start, stop)
        found: npt.NDArray[np.int32] = table[places]
        return found

    return coded


def _joiner(connection: duckdb.DuckDBPyConnection, role: str, key: str) -> Coder:
    """The same by a join. Its rows come in no order, so each says where it belongs."""

    def coded(start: int, stop: int) -> npt.NDArray[np.int32]:
        codes = np.full(stop - start, -1, dtype=np.int32)
        found = connection.execute(
            f"SELECT file_row, {role}_code AS code FROM (SELECT rowid AS file_row, {key} AS key "  # noqa: S608
            f"FROM staged WHERE rowid >= $start AND rowid < $stop) JOIN {role}s USING (key)",
            {"start": start, "stop": stop},
        ).fetchnumpy()
        codes[np.asarray(found["file_row"], dtype=np.int64) - start] = found["code"]
        return codes

    return coded
