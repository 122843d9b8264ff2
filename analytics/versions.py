"""Which version of the layout a warehouse has, and the way from each older one to today's.

A warehouse carries its version in the table `warehouse_version`; one without that table is of
version 1. A step forward runs inside the transaction of a load, so a crash leaves the old layout
or the new one. Added columns and grown keys need no step of their own: ddl.py sees to them.

| version | what came with it |
|---|---|
| 1 | runs, steps, evaluations, profiles, device samples under a key |
| 2 | imports, collectives, ranks, pools, bills; device samples without an index; dim_attempt |

Before: warehouse.py has opened the working copy.   After: today's tables and views, rows as before.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import duckdb

from analytics.ddl import create_tables, create_views, views
from analytics.errors import WarehouseError
from analytics.schema import TABLES, columns, table_key

VERSION = 2
_TABLE = "warehouse_version"


def version_of(con: duckdb.DuckDBPyConnection) -> int | None:
    """The version of the layout of a connection's database; None when it holds no table yet."""
    names = {
        name
        for (name,) in con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
        ).fetchall()
    }
    if _TABLE in names:
        found = con.execute(f"SELECT max(version) FROM {_TABLE}").fetchall()[0][0]  # noqa: S608
        return 1 if found is None else int(found)
    return 1 if names else None


def check_version(con: duckdb.DuckDBPyConnection, path: Path, runs_dir: Path) -> None:
    """Raise WarehouseError when a newer seqscale wrote the warehouse."""
    found = version_of(con)
    if found is not None and found > VERSION:
        raise WarehouseError(
            f"{path}: a newer seqscale wrote this warehouse: its layout has version {found}, this "
            f"seqscale knows versions up to {VERSION}. Use that seqscale, or run 'seqscale load "
            f"--rebuild --runs-dir {runs_dir}' to make it anew from journals and imports."
        )


def migrate(con: duckdb.DuckDBPyConnection) -> None:
    """Bring a warehouse of any older version to today's tables and views; its rows stay.

    One whose layout is today's to the letter is left alone: making every view and comment anew
    takes most of a small load.
    """
    found, layout = version_of(con), layout_sha256()
    if found == VERSION and _layout_of(con) == layout:
        return
    create_tables(con)
    create_views(con)
    for version in range(found or VERSION, VERSION):
        _STEPS[version](con)
    con.execute(f"DROP TABLE IF EXISTS {_TABLE}")
    con.execute(f"CREATE TABLE {_TABLE} (version BIGINT NOT NULL, layout_sha256 VARCHAR)")
    con.execute(f"INSERT INTO {_TABLE} VALUES (?, ?)", [VERSION, layout])  # noqa: S608


@functools.cache
def layout_sha256() -> str:
    """Hash of every table, column and view of this seqscale, words included."""
    tables = [(name, table_key(record), columns(record)) for name, record in TABLES.items()]
    said = repr(tables) + "".join(f"{view.name}\n{view.query}\n" for view in views())
    return hashlib.sha256(said.encode()).hexdigest()


def _layout_of(con: duckdb.DuckDBPyConnection) -> str | None:
    """What a warehouse says of its layout; None when it does not."""
    cursor = con.execute(f"SELECT * FROM {_TABLE}")  # noqa: S608
    names = [column[0] for column in cursor.description or []]
    row = cursor.fetchone()
    return None if row is None else dict(zip(names, row, strict=True)).get("layout_sha256")


def _attempts_from_steps(con: duckdb.DuckDBPyConnection) -> None:
    """1 to 2: the attempt that was kept of each pipeline, as far as its steps tell of it.

    A pipeline whose folder is there still gets all its attempts when it is loaded next.
    """
    con.execute(
        """
        INSERT OR IGNORE INTO dim_attempt BY NAME
        SELECT
            pipeline_id,
            attempt,
            min(started_unix_ns) AS began_unix_ns,
            max(started_unix_ns + CAST(round(window_s * 1e9) AS BIGINT)) AS ended_unix_ns,
            TRUE AS is_kept,
            count(DISTINCT rank) AS num_ranks,
            count(*) AS num_rank_steps,
            sum(window_s) AS window_s
        FROM fact_step
        GROUP BY pipeline_id, attempt
        """
    )


_STEPS: dict[int, Callable[[duckdb.DuckDBPyConnection], None]] = {1: _attempts_from_steps}
