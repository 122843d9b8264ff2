"""Copies the rows of files into the table `staged` as plain numbers, in the order of the files.

An id that is a whole number, in every row and written as such, stays one; else its 64-bit hash
stands for it. Text is never stored: of 10 million rows of CSV staging takes 2.0 s, a table of text
4 to 5 s (7 s compressed). Only where there are hashes a second scan finds the distinct ids behind
them; two ids of one hash are noticed, and hashed again with salt.

Before: analytics/sources' scans.   After: coding.py.
Price: a scan of the files, two where ids are text; 24 bytes a row, which spill when they must.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import duckdb

from analytics.row_rules import count_of
from analytics.sources.scan import Scan, blaming

_SAMPLE_ROWS = 10_000
_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdColumn:
    """How the ids of users or of items are staged."""

    name: str  # user_id or item_id
    is_number: bool  # staged as BIGINT; else as a hash
    is_text: bool  # stands as text in some file

    @property
    def cell(self) -> str:
        """SQL of the id as it is compared and told."""
        return f"CAST({self.name} AS VARCHAR)" if self.is_text else self.name

    def key_sql(self, salt: int) -> str:
        """SQL of what is staged; NULL for a missing id, and for text that is no plain number."""
        if not self.is_number:
            return hash_sql(self.cell, salt)
        if not self.is_text:
            return f"CAST({self.name} AS BIGINT)"
        return f"CASE WHEN {_is_plain(self.cell)} THEN TRY_CAST({self.cell} AS BIGINT) END"

    @property
    def key_type(self) -> str:
        """The SQL type of what is staged."""
        return "BIGINT" if self.is_number else "UBIGINT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """What stands in the tables `staged` and, where ids are hashes, `distinct_text`."""

    user: IdColumn
    item: IdColumn
    side: tuple[str, ...]  # of action_hash, rating, split_code
    num_rows: tuple[int, ...]  # of each scan


def stage(
    connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan], splits: Sequence[int] | None
) -> Staged:
    """Make the table `staged` (user_key, item_key, event_time_us, ...) and what hashes stand for.

    splits: the split code of each scan, when split files were given.
    """
    user, item = (_id_column(connection, scans, name) for name in ("user_id", "item_id"))
    side = _side_columns(scans, splits)
    salt = 0
    while True:
        num_rows, num_odd = _copy(connection, scans, splits, (user, item), side, salt)
        if num_odd:  # a number in the sample, but not everywhere: "7" and "007", or "7" and "x"
            user, item = (_as_hash(column) for column in (user, item))
            continue
        _find_distinct(connection, scans, (user, item), salt, "action_hash" in side)
        if not _has_collision(connection):
            return Staged(user=user, item=item, side=tuple(side), num_rows=num_rows)
        salt += 1


def hash_sql(cell: str, salt: int) -> str:
    """SQL of a cell's 64-bit hash; NULL stays NULL."""
    hashed = f"hash({cell})" if salt == 0 else f"hash({cell}, {salt})"
    return f"CASE WHEN {cell} IS NOT NULL THEN {hashed} END"


def _is_plain(cell: str) -> str:
    """SQL of whether text is a whole number as one would write it: no zeros before, no plus."""
    return f"CAST(TRY_CAST({cell} AS BIGINT) AS VARCHAR) = {cell}"


def _as_hash(column: IdColumn) -> IdColumn:
    return dataclasses.replace(column, is_number=column.is_number and not column.is_text)


def _id_column(connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan], name: str) -> IdColumn:
    """How a column is staged: by its type in every file, and by the first rows of text."""
    types, plain = set(), True
    for scan in scans:
        with blaming(scan.label):
            found = connection.execute(
                f"SELECT {name} FROM ({scan.select}) LIMIT 0",  # noqa: S608
                scan.parameters,
            ).description
            kind = str((found or [])[0][1])
            types.add(kind)
            if kind == "VARCHAR" and plain:
                row = connection.execute(
                    f"SELECT bool_and(coalesce({_is_plain(name)}, {name} IS NULL)) "  # noqa: S608
                    f"FROM (SELECT {name} FROM ({scan.select}) LIMIT {_SAMPLE_ROWS})",
                    scan.parameters,
                ).fetchone()
                plain = bool(row and row[0])
    is_text = not types <= _INTEGERS
    return IdColumn(
        name=name, is_text=is_text, is_number=plain and types <= {*_INTEGERS, "VARCHAR"}
    )


def _side_columns(scans: Sequence[Scan], splits: Sequence[int] | None) -> dict[str, str]:
    """The columns beside ids and time that these files have, with their types."""
    columns = {}
    if any(scan.has_action for scan in scans):
        columns["action_hash"] = "UBIGINT"
    if any(scan.has_rating for scan in scans):
        columns["rating"] = "FLOAT"
    if splits is not None:
        columns["split_code"] = "UTINYINT"
    return columns


def _copy(
    connection: duckdb.DuckDBPyConnection,
    scans: Sequence[Scan],
    splits: Sequence[int] | None,
    ids: tuple[IdColumn, IdColumn],
    side: dict[str, str],
    salt: int,
) -> tuple[tuple[int, ...], int]:
    """Every row of every scan, in order; rows of each scan, and ids that are no plain number."""
    user, item = ids
    checked = [column for column in ids if column.is_number and column.is_text]
    more = "".join(f", {name} {kind}" for name, kind in side.items())
    more += ", is_odd BOOLEAN" if checked else ""
    connection.execute(
        f"CREATE OR REPLACE TABLE staged (user_key {user.key_type}, item_key {item.key_type}, "
        f"event_time_us BIGINT{more})"
    )
    odd = " OR ".join(
        f"({column.cell} IS NOT NULL AND {column.key_sql(salt)} IS NULL)" for column in checked
    )
    num_rows: list[int] = []
    for place, scan in enumerate(scans):
        cells = {"action_hash": hash_sql("action", salt), "rating": "rating"}
        cells["split_code"] = str(0 if splits is None else int(splits[place]))
        with blaming(scan.label):
            connection.execute(
                f"""
                INSERT INTO staged
                SELECT {user.key_sql(salt)}, {item.key_sql(salt)}, event_time_us
                    {"".join(f", {cells[name]}" for name in side)} {f", {odd}" if odd else ""}
                FROM ({scan.select})
                """,  # noqa: S608
                scan.parameters,
            )
        num_rows.append(count_of(connection, "SELECT count(*) FROM staged") - sum(num_rows))
    num_odd = count_of(connection, "SELECT count(*) FROM staged WHERE is_odd") if odd else 0
    return tuple(num_rows), num_odd


def _find_distinct(
    connection: duckdb.DuckDBPyConnection,
    scans: Sequence[Scan],
    ids: tuple[IdColumn, IdColumn],
    salt: int,
    with_actions: bool,
) -> None:
    """Table `distinct_text` (kind, id, hash): what every staged hash stands for; one scan."""
    cells = {column.name: column.cell for column in ids if not column.is_number}
    if with_actions:
        cells["action"] = "action"
    connection.execute(
        "CREATE OR REPLACE TABLE distinct_text (kind VARCHAR, id VARCHAR, hash UBIGINT)"
    )
    if not cells:
        return
    sources = " UNION ALL ".join(
        f"SELECT {', '.join(f'{cell} AS {name}' for name, cell in cells.items())} "  # noqa: S608
        f"FROM ({scan.select})"
        for scan in scans
    )
    parameters = {name: value for scan in scans for name, value in scan.parameters.items()}
    # in a grouping set of one column the others are NULL, so what is not NULL is the group's own
    kinds = " ".join(f"WHEN {name} IS NOT NULL THEN '{name}'" for name in cells)
    texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in cells)
    hashes = " ".join(f"WHEN {name} IS NOT NULL THEN {hash_sql(name, salt)}" for name in cells)
    with blaming(scans[0].label):
        connection.execute(
            f"""
            INSERT INTO distinct_text
            SELECT CASE {kinds} END AS kind, coalesce({texts}) AS id, CASE {hashes} END
            FROM ({sources})
            GROUP BY GROUPING SETS ({", ".join(f"({name})" for name in cells)})
            HAVING kind IS NOT NULL
            """,  # noqa: S608
            parameters,
        )


def _has_collision(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether two ids of a kind share a hash; among 100 million ids once in 3,700 files."""
    found = (
        "SELECT count(*) FROM (SELECT kind, hash FROM distinct_text GROUP BY kind, hash "
        "HAVING count(*) > 1)"
    )
    return count_of(connection, found) > 0
