"""What the readers of the several formats hand on: cells of an event as SQL, not yet understood.

Before: delimited.py, lists.py, json_objects.py, parquet.py.   After: times.py, then scan.py.
Price: none; nothing is read before the statement runs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import duckdb

from analytics.sources.faults import blaming
from analytics.sources.unpacked import PlainFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """The events of one file. All SQL is ours, names in it are quoted, values are parameters.

    user, item: ids in their own type, NULL where missing. time: the cell, of type `time_type`;
    None when there is no time. frame: text of milliseconds to add to a `time` that is a day.
    """

    file: PlainFile
    source: str  # what stands after FROM; a trailing ORDER BY or WHERE may follow
    user: str
    item: str
    time: str | None
    time_type: str = "VARCHAR"
    frame: str | None = None
    action: str | None = None
    rating: str | None = None
    parameters: dict[str, object]
    decision: dict[str, str]  # without compression and encoding, which `file` knows
    warnings: tuple[str, ...] = ()
    deduplicate: bool = False
    locate: Callable[[int], str]
    empty: str = "holds no row"  # what to say when there is none
    time_name: str = ""

    def first(
        self, connection: duckdb.DuckDBPyConnection, statement: str
    ) -> tuple[Any, ...] | None:
        """The first row of a statement over this file; the file is blamed for what it causes."""
        with blaming(self.file.label):
            return connection.execute(statement, used(statement, self.parameters)).fetchone()


def used(statement: str, parameters: dict[str, object]) -> dict[str, object]:
    """Those of the parameters that a statement names; DuckDB refuses others."""
    names = set(re.findall(r"\$(\w+)", statement))
    return {name: value for name, value in parameters.items() if name in names}


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
