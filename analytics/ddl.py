"""The warehouse's tables and views as SQL, derived from the records and from the view files.

Tables come from analytics/schema.py: types, NOT NULL, bounds as CHECKs, keys, column comments.
Views come from analytics/sql/NNN_name.sql, one a file, made in the order of their numbers; a head
comment line `-- name [unit]: meaning` documents a derived column and becomes its comment.

Before: schema.py, sql/*.sql.   After: warehouse.py makes them; export.py writes the docs out.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import duckdb

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
    """Every view, in the order in which they can be made."""
    found = []
    for path in sorted(SQL_DIR.glob("*.sql")):
        match = _FILE_NAME.match(path.name)
        assert match is not None, f"{path.name}: a view file is named NNN_name.sql"
        text = path.read_text(encoding="utf-8")
        docs = {
            line["name"]: (line["unit"], line["doc"])
            for line in map(_COLUMN_DOC.match, text.splitlines())
            if line is not None
        }
        found.append(View(name=match["name"], query=text.rstrip().rstrip(";"), docs=docs))
    return found


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
    """Make every missing table, and every column that a table of an older version lacks."""
    for name, record in TABLES.items():
        con.execute(_create_table(name, record))
        present = {row[0] for row in con.execute(f"DESCRIBE {name}").fetchall()}
        for spec in columns(record):
            if spec.name not in present:
                con.execute(f"ALTER TABLE {name} ADD COLUMN {spec.name} {spec.sql_type}")
            comment = f"{spec.doc} [{spec.unit}]" if spec.unit else spec.doc
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


def _create_table(name: str, record: type) -> str:
    lines = [_column_line(spec) for spec in columns(record)]
    lines.append(f"PRIMARY KEY ({', '.join(table_key(record))})")
    return f"CREATE TABLE IF NOT EXISTS {name} (\n    " + ",\n    ".join(lines) + "\n)"


def _column_line(spec: Column) -> str:
    words = [spec.name, spec.sql_type]
    if not spec.nullable:
        words.append("NOT NULL")
    if spec.lower is not None:
        words.append(f"CHECK ({spec.name} >= {spec.lower!r})")
    if spec.upper is not None:
        words.append(f"CHECK ({spec.name} <= {spec.upper!r})")
    return " ".join(words)
