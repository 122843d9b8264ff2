"""Turns scans of files into numbered users and items and ordered events, whatever their size.

Each file is scanned twice, never stored as text: once into the table `staged` (64-bit hashes of
the ids, time, side columns; a row's place is its rowid), once for the distinct ids. These get their
codes in the order of their MD5, which says nothing of popularity and which no later file can turn
round; two ids of the same hash are noticed, and hashed again with salt. Then one external sort.

A row is dropped here for the first reason that holds, see ordering.py; rules that need whole
histories are rules.py's.

Before: analytics/sources' scans.   After: Events, and the tables users and items.
Price: two scans and one sort by DuckDB, within its memory limit and a bounded spill; the distinct
ids must fit into memory (about 100 bytes each). Staging beats a table of text by a factor of three:
10 million rows of CSV took 2.0 s against 7.0 s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import duckdb

from analytics.errors import InputError
from analytics.events import Events
from analytics.ordering import (
    RowRules,
    count_of,
    count_reasons,
    fetch_ordered,
    put_in_order,
    reason_sql,
)
from analytics.pseudonyms import PseudonymKey, pseudonym_sql
from analytics.sources.scan import Scan, blaming

MAX_ACTIONS = 65_535
_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_INTEGERS |= {"UBIGINT", "HUGEINT"}


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
    has_times = scans[0].has_time
    texts = _Texts(connection, scans)
    side = _side_columns(scans, splits)
    salt = 0
    while True:
        num_rows = _stage(connection, scans, splits, texts, side, salt)
        _find_distinct(connection, scans, texts, salt, with_actions="action_hash" in side)
        if not _has_collision(connection):
            break
        salt += 1
    _number_users(connection, key)
    _number_items(connection)
    actions = _number_actions(connection, scans)
    has_ratings = "rating" in side and count_of(connection, "SELECT count(rating) FROM staged") > 0
    reason = reason_sql(rules, has_times=has_times, has_ratings="rating" in side)
    counts, first_row = count_reasons(connection, reason)
    num_usable = sum(num_rows) - sum(counts.values())
    columns = ["user_code", "item_code", "event_time_us"]
    columns += ["action_code"] * bool(actions) + ["rating"] * has_ratings
    columns += ["split_code"] * (splits is not None)
    usable = f"WHERE {reason} = 0" if any(counts.values()) else ""
    put_in_order(connection, columns, usable)
    if num_usable != count_of(connection, "SELECT count(*) FROM ordered"):
        raise InputError(
            f"{', '.join(scan.label for scan in scans)}: changed while it was read. Read it again "
            "when nobody writes to it any more."
        )
    events = fetch_ordered(connection, columns, num_usable)
    connection.execute("DROP TABLE ordered")
    connection.execute("DROP TABLE staged")
    return CodedRows(
        events=events,
        num_rows=num_rows,
        dropped=counts,
        first_unparsable_row=first_row,
        actions=actions,
        has_ratings=has_ratings,
    )


class _Texts:
    """How the ids of scans are written in SQL: numbers stay numbers when every file has them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan]) -> None:
        types = []
        for scan in scans:
            with blaming(scan.label):
                description = connection.execute(
                    f"SELECT * FROM ({scan.select}) LIMIT 0",  # noqa: S608
                    scan.parameters,
                ).description
            types.append({str(name): str(kind) for name, kind, *_ in description or []})
        self.user = self._column("user_id", types)
        self.item = self._column("item_id", types)

    @staticmethod
    def _column(name: str, types: list[dict[str, str]]) -> str:
        found = {kinds[name] for kinds in types}
        as_number = len(found) == 1 and found <= _INTEGERS
        return name if as_number else f"CAST({name} AS VARCHAR)"


def _side_columns(scans: Sequence[Scan], splits: Sequence[int] | None) -> dict[str, str]:
    """The columns of `staged` beside ids and time that these files have, with their types."""
    columns = {}
    if any(scan.has_action for scan in scans):
        columns["action_hash"] = "UBIGINT"
    if any(scan.has_rating for scan in scans):
        columns["rating"] = "FLOAT"
    if splits is not None:
        columns["split_code"] = "UTINYINT"
    return columns


def _stage(
    connection: duckdb.DuckDBPyConnection,
    scans: Sequence[Scan],
    splits: Sequence[int] | None,
    texts: _Texts,
    side: dict[str, str],
    salt: int,
) -> tuple[int, ...]:
    """Table `staged`: every row of every scan, in order; how many rows each scan has."""
    more = "".join(f", {name} {kind}" for name, kind in side.items())
    connection.execute(
        "CREATE OR REPLACE TABLE staged "
        f"(user_hash UBIGINT, item_hash UBIGINT, event_time_us BIGINT{more})"
    )
    num_rows: list[int] = []
    for place, scan in enumerate(scans):
        cells = {"action_hash": _hash("action", salt), "rating": "rating"}
        cells["split_code"] = str(0 if splits is None else int(splits[place]))
        with blaming(scan.label):
            connection.execute(
                f"""
                INSERT INTO staged
                SELECT {_hash(texts.user, salt)}, {_hash(texts.item, salt)}, event_time_us
                    {"".join(f", {cells[name]}" for name in side)}
                FROM ({scan.select})
                """,  # noqa: S608
                scan.parameters,
            )
        num_rows.append(count_of(connection, "SELECT count(*) FROM staged") - sum(num_rows))
    return tuple(num_rows)


def _find_distinct(
    connection: duckdb.DuckDBPyConnection,
    scans: Sequence[Scan],
    texts: _Texts,
    salt: int,
    *,
    with_actions: bool,
) -> None:
    """Table `distinct_ids`: every user, item and action that a row names, with its hash."""
    kind, action = "CASE grouping(user_id) WHEN 0 THEN 'user' ELSE 'item' END", "NULL"
    if with_actions:
        action = "action"
        kind = (
            "CASE grouping(user_id, item_id, action) WHEN 3 THEN 'user' WHEN 5 THEN 'item' "
            "ELSE 'action' END"
        )
    sources = " UNION ALL ".join(
        f"SELECT {texts.user} AS user_id, {texts.item} AS item_id, {action} AS action "  # noqa: S608
        f"FROM ({scan.select})"
        for scan in scans
    )
    parameters = {name: value for scan in scans for name, value in scan.parameters.items()}
    with blaming(scans[0].label):
        connection.execute(
            f"""
            CREATE OR REPLACE TABLE distinct_ids AS
            SELECT {kind} AS kind,
                CASE kind WHEN 'user' THEN CAST(user_id AS VARCHAR)
                    WHEN 'item' THEN CAST(item_id AS VARCHAR) ELSE {action} END AS id,
                CASE kind WHEN 'user' THEN {_hash("user_id", salt)}
                    WHEN 'item' THEN {_hash("item_id", salt)} ELSE {_hash(action, salt)} END AS hash
            FROM ({sources})
            GROUP BY GROUPING SETS ((user_id), (item_id){", (action)" if with_actions else ""})
            """,  # noqa: S608
            parameters,
        )


def _hash(cell: str, salt: int) -> str:
    """SQL of a cell's 64-bit hash; NULL stays NULL."""
    hashed = f"hash({cell})" if salt == 0 else f"hash({cell}, {salt})"
    return f"CASE WHEN {cell} IS NOT NULL THEN {hashed} END"


def _has_collision(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether two ids of a kind share a hash; among 100 million ids once in 3,700 files."""
    return bool(
        count_of(
            connection,
            "SELECT count(*) FROM (SELECT kind, hash FROM distinct_ids WHERE id IS NOT NULL "
            "GROUP BY kind, hash HAVING count(*) > 1)",
        )
    )


def _number_users(connection: duckdb.DuckDBPyConnection, key: PseudonymKey | None) -> None:
    key_sql, parameters = "id", {}
    if key is not None:
        inner, outer = key.pads()
        key_sql, parameters = pseudonym_sql("id"), {"inner": inner, "outer": outer}
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE users AS
        SELECT CAST(row_number() OVER (ORDER BY md5(user_key), user_key) - 1 AS INTEGER)
                AS user_code,
            user_key, hash
        FROM (
            SELECT {key_sql} AS user_key, hash
            FROM distinct_ids
            WHERE kind = 'user' AND id IS NOT NULL
        )
        """,  # noqa: S608
        parameters,
    )


def _number_items(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(
        """
        CREATE OR REPLACE TABLE items AS
        SELECT CAST(row_number() OVER (ORDER BY md5(id), id) - 1 AS INTEGER) AS item_code,
            id AS item_id, hash
        FROM distinct_ids
        WHERE kind = 'item' AND id IS NOT NULL
        """
    )


def _number_actions(connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan]) -> list[str]:
    """Table `action_names`, and the names in the order of their codes; code 0 is "no action"."""
    names = connection.execute(
        "SELECT id FROM distinct_ids WHERE kind = 'action' AND id IS NOT NULL ORDER BY id"
    ).fetchall()
    if len(names) > MAX_ACTIONS:
        raise InputError(
            f"{', '.join(scan.label for scan in scans)}: the action column has {len(names):,} "
            f"distinct values, at most {MAX_ACTIONS:,} are kept. It is hardly an action: name "
            "another with --action COLUMN, or give --action none."
        )
    connection.execute(
        """
        CREATE OR REPLACE TABLE action_names AS
        SELECT hash, CAST(row_number() OVER (ORDER BY id) AS USMALLINT) AS action_code
        FROM distinct_ids
        WHERE kind = 'action' AND id IS NOT NULL
        """
    )
    return ["", *(str(name) for (name,) in names)] if names else []
