"""The warehouse's tables and views as SQL, derived from the records and from the view files.

Tables come from analytics/schema.py: types, NOT NULL, bounds as CHECKs, keys, column comments.
Views come from analytics/sql/NNN_name.sql, one a file, made in the order of their numbers, and the
first, device_peak, from analytics/device_peaks.py; a head comment line `-- name [unit]: meaning`
documents a derived column and becomes its comment.

Before: schema.py, sql/*.sql.   After: warehouse.py makes them; export.py writes the docs out.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import duckdb

from analytics import device_peaks
from analytics.records import is_bulk
from analytics.schema import TABLES, Column, columns, table_key

SQL_DIR = Path(__file__).parent / "sql"
_FILE_NAME = re.compile(r"^\d{3}_(?P<name>[a-z0-9_]+)\.sql$")
_COLUMN_DOC = re.compile(r"^-- (?P<name>[a-z0-9_]+) \[(?P<unit>[^\]]*)\]: (?P<doc>.+)$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """One view file: its name, its query, and what its derived columns mean."""

    name: str
    query: str
    docs: dict[str, tuple[str, str]]  # column -> (unit, meaning)


def views() -> list[View]:
    """Every view, in the order in which they can be made: that of device peaks, then the files."""
    texts = {device_peaks.VIEW_NAME: device_peaks.view_text()}
    for path in sorted(SQL_DIR.glob("*.sql")):
        match = _FILE_NAME.match(path.name)
        assert match is not None, f"{path.name}: a view file is named NNN_name.sql"
        texts[match["name"]] = path.read_text(encoding="utf-8")
    return [_view(name, text) for name, text in texts.items()]


def _view(name: str, text: str) -> View:
    docs = {
        line["name"]: (line["unit"], line["doc"])
        for line in map(_COLUMN_DOC.match, text.splitlines())
        if line is not None
    }
    return View(name=name, query=text.rstrip().rstrip(";"), docs=docs)


def view_column_docs(view: str) -> dict[str, tuple[str, str]]:
    """Column -> (unit, meaning) of a view's columns, as far as anybody documented them.

    A column that is passed through keeps the words of the table or view it comes from: the first
    that the view's query names.
    """
    known = {found.name: found for found in views()}
    if view not in known:
        raise ValueError(f"'{view}' is not a view; known are {', '.join(known)}")
    docs = dict(known[view].docs)
    for name in dict.fromkeys(re.findall(r"(?:FROM|JOIN)\s+(\w+)", known[view].query)):
        if name in known:
            inherited = view_column_docs(name)
        elif name in TABLES:
            inherited = {c.name: (c.unit, c.doc) for c in columns(TABLES[name])}
        else:
            continue  # a common table expression; what it reads is named in the query too
        docs = inherited | docs
    return docs


def create_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Make every missing table, and bring those of an older version to today's layout.

    A column that is lacking is added, NULL in the rows that are there. Where the key has grown, or
    a column may be NULL today that could not be, the table is made anew with the rows it had.
    """
    for name, record in TABLES.items():
        con.execute(_create_table(name, record))
    keys, there = _keys(con), _columns_there(con)
    for name, record in TABLES.items():
        if _is_outgrown(record, keys[name], there[name]):
            _make_anew(con, name, record, set(there[name]))
    there = _columns_there(con)
    for name, record in TABLES.items():
        for spec in columns(record):
            if spec.name not in there[name]:
                con.execute(f"ALTER TABLE {name} ADD COLUMN {spec.name} {spec.sql_type}")
            comment = f"{spec.doc} [{spec.unit}]" if spec.unit else spec.doc
            if there[name].get(spec.name, _NO_COLUMN).comment != comment:
                con.execute(f"COMMENT ON COLUMN {name}.{spec.name} IS {quoted(comment)}")


def create_views(con: duckdb.DuckDBPyConnection) -> None:
    """Make every view anew, so that a warehouse of an older version gets today's."""
    for view in views():
        con.execute(f"CREATE OR REPLACE VIEW {view.name} AS\n{view.query}")
        present = {row[0] for row in con.execute(f"DESCRIBE {view.name}").fetchall()}
        for column, (unit, doc) in view.docs.items():
            assert column in present, f"{view.name}: '{column}' is documented but not a column"
            comment = f"{doc} [{unit}]" if unit else doc
            con.execute(f"COMMENT ON COLUMN {view.name}.{column} IS {quoted(comment)}")


def reader_types(record: type) -> str:
    """The `columns` argument of DuckDB's read_json for a record's table."""
    pairs = (f"{c.name}: {quoted(c.sql_type)}" for c in columns(record))
    return "{" + ", ".join(pairs) + "}"


def quoted(text: str) -> str:
    """A text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ColumnThere:
    """A column of a table as the database has it."""

    is_nullable: bool
    comment: str | None


_NO_COLUMN = _ColumnThere(is_nullable=True, comment=None)


def _keys(con: duckdb.DuckDBPyConnection) -> dict[str, tuple[str, ...]]:
    """The primary key of every table that is there; none: the empty one."""
    found = con.execute(
        "SELECT table_name, constraint_column_names FROM duckdb_constraints() "
        "WHERE constraint_type = 'PRIMARY KEY' AND database_name = current_database()"
    ).fetchall()
    return dict.fromkeys(TABLES, ()) | {name: tuple(key) for name, key in found}


def _columns_there(con: duckdb.DuckDBPyConnection) -> dict[str, dict[str, _ColumnThere]]:
    """The columns of every table and view that is there, by their names."""
    found: dict[str, dict[str, _ColumnThere]] = {}
    for name, column, is_nullable, comment in con.execute(
        "SELECT table_name, column_name, is_nullable, comment FROM duckdb_columns() "
        "WHERE database_name = current_database()"
    ).fetchall():
        there = _ColumnThere(is_nullable=bool(is_nullable), comment=comment)
        found.setdefault(name, {})[column] = there
    return found


def _is_outgrown(record: type, key: tuple[str, ...], there: dict[str, _ColumnThere]) -> bool:
    """Whether the table there has another key, or refuses a NULL that today's record may hold."""
    refuses = any(
        spec.nullable and not there.get(spec.name, _NO_COLUMN).is_nullable
        for spec in columns(record)
    )
    return key != _index(record) or refuses


def _make_anew(con: duckdb.DuckDBPyConnection, name: str, record: type, there: set[str]) -> None:
    """Replace a table by one of today's layout with the same rows."""
    kept = ", ".join(spec.name for spec in columns(record) if spec.name in there)
    con.execute(f"CREATE TEMP TABLE rows_before AS SELECT * FROM {name}")  # noqa: S608
    con.execute(f"DROP TABLE {name}")
    con.execute(_create_table(name, record))
    con.execute(f"INSERT INTO {name} BY NAME SELECT {kept} FROM rows_before")  # noqa: S608
    con.execute("DROP TABLE rows_before")


def _create_table(name: str, record: type) -> str:
    # what is loaded in bulk was checked on its way: CHECKs take a tenth of the time of its load
    lines = [_column_line(spec, has_checks=not is_bulk(record)) for spec in columns(record)]
    if _index(record):
        lines.append(f"PRIMARY KEY ({', '.join(_index(record))})")
    return f"CREATE TABLE IF NOT EXISTS {name} (\n    " + ",\n    ".join(lines) + "\n)"


def _index(record: type) -> tuple[str, ...]:
    """The columns of the table's primary key; none where it is loaded in bulk."""
    return () if is_bulk(record) else table_key(record)


def _column_line(spec: Column, *, has_checks: bool) -> str:
    words = [spec.name, spec.sql_type]
    if not spec.nullable:
        words.append("NOT NULL")
    if has_checks and spec.lower is not None:
        words.append(f"CHECK ({spec.name} >= {spec.lower!r})")
    if has_checks and spec.upper is not None:
        words.append(f"CHECK ({spec.name} <= {spec.upper!r})")
    return " ".join(words)
