"""A warehouse that a test fills with records itself: the real tables and views, no journals.

The layout is made once and copied, for making it takes longer than most tests.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import duckdb

from analytics.ddl import create_tables, create_views
from analytics.landing import insert_records
from analytics.records import table_name


@functools.cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.duckdb"
        with duckdb.connect(path) as con:
            con.execute("BEGIN TRANSACTION")
            create_tables(con)
            create_views(con)
            con.execute("COMMIT")
        return path.read_bytes()


class FilledWarehouse:
    """Holds what is written to it, as the loader would have put it there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "filled.duckdb"
        path.write_bytes(_empty())
        self.con = duckdb.connect(path)
        self._tables: set[str] = set()

    def write(self, records) -> None:
        by_table: dict[type, list] = {}
        for record in records:
            by_table.setdefault(type(record), []).append(record)
        for found in by_table.values():
            insert_records(self.con, found)
            self._tables.add(table_name(type(found[0])))

    def clear(self) -> None:
        """Take every row out again."""
        for name in self._tables:
            self.con.execute(f"DELETE FROM {name}")
