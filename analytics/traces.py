"""Searches files for what should no longer be in them: the bytes of an id or a pseudonym.

Before: flows/forgetting.py has erased a person.   After: a person is told where something is left.
Price: every file is read once, Parquet and DuckDB files a second time for what their compression
hides; one pass over memory for each needle.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceSearch:
    """What a search of files found, and what it could not look into."""

    holding: list[Path]  # files that hold a needle
    unsearched: list[Path]  # files and folders that could not be read, or not in all their columns


def files_with(roots: Iterable[Path], needles: Sequence[str]) -> TraceSearch:
    """The files under these folders that hold a needle: as bytes, or in a column.

    Columns are searched of Parquet files and of DuckDB's own. A file that vanishes meanwhile is
    passed over; links are not followed.
    """
    wanted = [needle.encode() for needle in needles]
    holding: list[Path] = []
    unsearched: list[Path] = []
    with duckdb.connect() as connection:
        for path in _files(roots, unsearched):
            try:
                holds = _in_bytes(path, wanted)
                if not holds and path.suffix == ".parquet":
                    holds = _in_columns(connection, path, needles)
                if not holds and path.suffix == ".duckdb":
                    holds = _in_database(path, needles)
            except FileNotFoundError:
                continue
            except (OSError, duckdb.Error):
                if path.exists():
                    unsearched.append(path)
                continue
            if holds:
                holding.append(path)
    return TraceSearch(holding=holding, unsearched=unsearched)


def _files(roots: Iterable[Path], unsearched: list[Path]) -> Iterator[Path]:
    """Every file, once; a folder that cannot be listed is added to `unsearched`."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            unsearched.append(Path(str(error.filename)))

    seen = set()
    for root in roots:
        for folder, subfolders, names in os.walk(root, onerror=note):
            subfolders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if path.is_file() and not path.is_symlink() and path.resolve() not in seen:
                    seen.add(path.resolve())
                    yield path


def _in_bytes(path: Path, needles: list[bytes]) -> bool:
    with path.open("rb") as file:
        if path.stat().st_size == 0:  # cannot be mapped
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(needle) >= 0 for needle in needles)


def _in_columns(connection: duckdb.DuckDBPyConnection, path: Path, needles: Sequence[str]) -> bool:
    opened = connection.execute("SELECT * FROM read_parquet($path) LIMIT 0", {"path": str(path)})
    names = [_quoted(name) for name, *_ in opened.description or []]
    holds = " OR ".join(f"contains(CAST({name} AS VARCHAR), needle)" for name in names)
    found = connection.execute(
        "SELECT count(*) FROM read_parquet($path), (SELECT unnest($needles) AS needle) AS needles "  # noqa: S608
        f"WHERE {holds}",
        {"needles": list(needles), "path": str(path)},
    ).fetchall()
    return bool(found[0][0])


def _in_database(path: Path, needles: Sequence[str]) -> bool:
    """Whether a table of a DuckDB file holds a needle; its compression hides bytes."""
    with duckdb.connect(str(path), read_only=True) as database:
        columns = database.execute(
            "SELECT schema_name, table_name, column_name FROM duckdb_columns() "
            "JOIN duckdb_tables() USING (database_name, schema_name, table_name) "
            "WHERE database_name = current_database() AND contains(data_type, 'VARCHAR')"
        ).fetchall()
        for schema, table, column in columns:
            place, name = f"{_quoted(schema)}.{_quoted(table)}", _quoted(column)
            found = database.execute(
                f"SELECT count(*) FROM {place}, (SELECT unnest($needles) AS needle) AS needles "  # noqa: S608
                f"WHERE contains(CAST({place}.{name} AS VARCHAR), needle)",
                {"needles": list(needles)},
            ).fetchall()
            if found[0][0]:
                return True
    return False


def _quoted(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'
