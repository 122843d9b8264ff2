"""The landing zone: what was imported, as checked Parquet files, before the warehouse loads it.

Layout: `RUNS/telemetry/<import_id>/<table>.parquet`, one file a table of analytics/schema.py, its
rows sorted by their key and no key twice, and `manifest.json`, which is the import's dim_import.
A folder comes into being in one rename, so that it is whole whenever it is there; nothing in it is
ever changed. Files stay when the warehouse is made anew: they are the source, as journals are.

Before: the importers of analytics/telemetry/ and analytics/kineto/ fill the tables of a
connection of `landing_tables`.   After: analytics/warehouse.py loads every folder it does not
know yet.
Price: rows are checked in one pass, sorted once and written once; what a killed import left is
removed by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from analytics.contradictions import CONFLICTS, SAMPLES, contradictions_query
from analytics.ddl import quoted
from analytics.errors import InputError, WarehouseError
from analytics.records import Column, Scalar, columns, from_mapping, is_bulk, table_key, to_mapping
from analytics.schema import TABLES, DimImport
from analytics.workplace import working_folder

FOLDER = "telemetry"
MANIFEST = "manifest.json"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
# When a row came to us is when it first came; of every other figure the largest is kept.
_LEAST = ("ingested_unix_ns", "least_value")


@contextlib.contextmanager
def landing_tables(runs_dir: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a throw-away database with every table, empty and without constraints.

    It lies on disk beside the landing zone, so that a large import needs no memory for itself.
    Raises WarehouseError when the folder cannot be written.
    """
    with contextlib.ExitStack() as held_open:
        try:
            (runs_dir / FOLDER).mkdir(parents=True, exist_ok=True)
            folder = held_open.enter_context(working_folder(runs_dir / FOLDER))
        except OSError as error:
            raise _not_writable(runs_dir, error) from error
        con = duckdb.connect(folder / "import.duckdb", config=_CONFIG)
        held_open.callback(con.close)
        con.execute("BEGIN TRANSACTION")
        for name, record in TABLES.items():
            lines = ", ".join(f"{c.name} {c.sql_type}" for c in columns(record))
            con.execute(f"CREATE TABLE {name} ({lines})")
        con.execute("COMMIT")
        yield con


def insert(con: duckdb.DuckDBPyConnection, table: str, values: Mapping[str, Sequence[Any]]) -> None:
    """Add rows to a landing table, given column by column; columns left out are NULL.

    values: column -> sequences of one length; a numpy array, or a list in which None is NULL.
    """
    given = {name: TABLES_COLUMNS[table][name] for name in values}
    if not given or not len(next(iter(values.values()))):
        return
    picked = ", ".join(f"unnest(${name}::{c.sql_type}[]) AS {name}" for name, c in given.items())
    lists = {name: list(column) for name, column in values.items()}
    con.execute(f"INSERT INTO {table} BY NAME SELECT {picked}", lists)


def insert_arrow(con: duckdb.DuckDBPyConnection, table: str, rows: Any) -> None:
    """Add the rows of an Arrow table, batch or stream; columns it lacks are NULL.

    rows: anything with Arrow's C stream interface, whose columns are named as the table's.
    """
    con.register("given_rows", rows)
    try:
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given_rows")  # noqa: S608
    finally:
        con.unregister("given_rows")


def insert_records(con: duckdb.DuckDBPyConnection, records: Sequence[Any]) -> None:
    """Add records, all of one class, to their landing table."""
    if records:
        record: type = type(records[0])
        names = [c.name for c in columns(record)]
        values = {name: [getattr(record, name) for record in records] for name in names}
        insert(con, records[0].__table_name__, values)


def land(con: duckdb.DuckDBPyConnection, runs_dir: Path, about: DimImport) -> Path:
    """Check what a landing connection holds and put it into the landing zone; its folder.

    Rows of one key become one, each figure the largest that is told; what they contradict each
    other in is kept in fact_sample_conflict. An import that is there
    already stays as it is. Raises InputError naming table, column and value when a row breaks a
    bound: importers refuse such rows with a reason before. Raises WarehouseError when the folder
    cannot be written.
    """
    final = runs_dir / FOLDER / about.import_id
    if (final / MANIFEST).is_file():
        return final
    try:
        with working_folder(runs_dir / FOLDER) as work:
            fresh = work / about.import_id
            fresh.mkdir()
            # contradictions are known once the samples have been written
            for name, record in sorted(TABLES.items(), key=lambda table: table[0] == CONFLICTS):
                if name != "dim_import" and _has_rows(con, name):
                    _check(con, name, record)
                    _write(con, name, record, fresh / f"{name}.parquet")
            said = json.dumps(_checked(about), allow_nan=False, indent=1)
            (fresh / MANIFEST).write_text(said, encoding="utf-8")
            for path in [*fresh.iterdir(), fresh]:
                sync(path)
            with contextlib.suppress(OSError):  # another process may have been faster
                fresh.rename(final)
            if not (final / MANIFEST).is_file():
                raise _not_writable(runs_dir, f"{final} is in the way")
            sync(final.parent)
    except (OSError, duckdb.IOException) as error:
        raise _not_writable(runs_dir, error) from error
    return final


def landed(runs_dir: Path) -> list[Path]:
    """The folder of every import, sorted by id."""
    zone = runs_dir / FOLDER
    if not zone.is_dir():
        return []
    return sorted(path for path in zone.iterdir() if (path / MANIFEST).is_file())


def manifest(folder: Path) -> DimImport:
    """What an import says of itself.

    Raises WarehouseError when its manifest cannot be read.
    """
    path = folder / MANIFEST
    try:
        return from_mapping(DimImport, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise WarehouseError(
            f"{path}: this is not the manifest of an import ({error}). Delete the folder "
            f"{folder} and import its source again."
        ) from error


def find(runs_dir: Path, import_id: str) -> DimImport | None:
    """The import of this id, or None when it was not imported yet."""
    folder = runs_dir / FOLDER / import_id
    return manifest(folder) if (folder / MANIFEST).is_file() else None


def rejected(runs_dir: Path, import_id: str) -> dict[str, int]:
    """Reason -> rejected rows of an import, the most frequent reason first."""
    path = runs_dir / FOLDER / import_id / "fact_import_reject.parquet"
    if not path.is_file():
        return {}
    with duckdb.connect(":memory:", config=_CONFIG) as con:
        found = con.execute(
            "SELECT reason, count(*) FROM read_parquet(?) WHERE NOT starts_with(reason, 'cell_') "
            "GROUP BY reason ORDER BY 2 DESC, 1",
            [str(path)],
        ).fetchall()
    return dict(found)


def none_usable(where: str, rejected: Mapping[str, int], docs: str) -> InputError:
    """The answer to a source of which no row can be used.

    rejected: reason -> rows; docs: the page that tells what each reason means.
    """
    if not rejected:
        return InputError(f"{where}: it has no row to import.")
    counted = sorted(rejected.items(), key=lambda pair: -pair[1])[:5]
    reasons = ", ".join(f"{name}: {num:,}" for name, num in counted)
    return InputError(
        f"{where}: none of its {sum(rejected.values()):,} rows can be used ({reasons}). See "
        f"{docs} for what each reason means."
    )


def options_text(told: Mapping[str, object]) -> str | None:
    """Options that change what rows mean as DimImport keeps them; untold ones are left out."""
    given = [f"{name}={value}" for name, value in sorted(told.items()) if value not in (None, ())]
    return ", ".join(given) or None


def check_same_options(
    known: DimImport, told: Mapping[str, object], where: str, runs_dir: Path
) -> None:
    """Refuse to pass over other options for bytes that were imported before.

    Raises InputError naming both, and what to do to import them anew.
    """
    now = options_text(told)
    if now is not None and now != known.options_text:
        raise InputError(
            f"{where}: the same bytes were imported before with other options "
            f"({known.options_text or 'none'}; now {now}). To import them anew, delete the folder "
            f"{runs_dir / FOLDER / known.import_id}, run 'seqscale load --rebuild --drop-gone "
            f"--runs-dir {runs_dir}' and then this command again."
        )


def merged_query(name: str, source: str) -> str:
    """SQL that makes one row of all rows of a key: of each figure the largest that is told.

    The largest of all does not depend on the order in which rows came, nor on how often.
    """
    record = TABLES[name]
    key = table_key(record)
    picked = [
        c.name if c.name in key else f"{'min' if c.name in _LEAST else 'max'}({c.name}) AS {c.name}"
        for c in columns(record)
    ]
    return f"SELECT {', '.join(picked)} FROM {source} GROUP BY {', '.join(key)}"  # noqa: S608


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


TABLES_COLUMNS: dict[str, dict[str, Column]] = {
    name: {c.name: c for c in columns(record)} for name, record in TABLES.items()
}


def _not_writable(runs_dir: Path, error: object) -> WarehouseError:
    return WarehouseError(
        f"{runs_dir}: imports cannot be written here ({error}). See that the disk has room "
        "and the folder is yours, or name another one with --runs-dir; nothing was imported."
    )


def _has_rows(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    return bool(con.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall())  # noqa: S608


def _checked(about: DimImport) -> dict[str, Scalar]:
    """A manifest's keys and values, which can be read again."""
    said = to_mapping(about)
    try:
        from_mapping(DimImport, said)
    except ValueError as error:
        raise InputError(f"{about.source_name}: what it tells cannot be kept: {error}") from error
    return said


def _check(con: duckdb.DuckDBPyConnection, name: str, record: type) -> None:
    """Raise InputError when a value is missing where it may not be, or out of its bounds."""
    wrong = {spec.name: what for spec in columns(record) if (what := _is_wrong(spec))}
    if not wrong:
        return
    counts = ", ".join(f"count(*) FILTER (WHERE {what})" for what in wrong.values())
    found = con.execute(f"SELECT {counts} FROM {name}").fetchall()[0]  # noqa: S608
    for spec_name, num_wrong in zip(wrong, found, strict=True):
        if num_wrong:
            value = con.execute(
                f"SELECT {spec_name} FROM {name} WHERE {wrong[spec_name]} LIMIT 1"  # noqa: S608
            ).fetchall()[0][0]
            raise InputError(
                f"{name}: '{spec_name}' is {value!r}, which is not allowed there "
                f"({TABLES_COLUMNS[name][spec_name].doc}). The source tells something that cannot "
                "be; nothing was imported."
            )


def _is_wrong(spec: Column) -> str:
    """SQL for a value that a column may not hold; empty when it may hold any."""
    wrong = [] if spec.nullable else [f"{spec.name} IS NULL"]
    if spec.lower is not None:
        wrong.append(f"{spec.name} < {spec.lower!r}")
    if spec.upper is not None:
        wrong.append(f"{spec.name} > {spec.upper!r}")
    if spec.sql_type == "DOUBLE":
        wrong.append(f"NOT isfinite({spec.name})")
    return " OR ".join(wrong)


def _write(con: duckdb.DuckDBPyConnection, name: str, record: type, path: Path) -> None:
    """One table as Parquet: sorted by its key, no key twice."""
    key = ", ".join(table_key(record))
    _copy(con, f"SELECT * FROM {name} ORDER BY {key}", path)  # noqa: S608
    if _has_twins(con, path, table_key(record)):
        assert is_bulk(record), f"{name}: an importer made a key twice"
        if name == SAMPLES:
            con.execute(f"INSERT INTO {CONFLICTS} BY NAME {contradictions_query(name)}")
        _copy(con, f"{merged_query(name, name)} ORDER BY {key}", path)


def _copy(con: duckdb.DuckDBPyConnection, rows: str, path: Path) -> None:
    con.execute(f"COPY ({rows}) TO {quoted(str(path))} (FORMAT parquet, COMPRESSION zstd)")


def _has_twins(con: duckdb.DuckDBPyConnection, path: Path, key: tuple[str, ...]) -> bool:
    """Whether a key comes twice in a sorted file: then its rows lie side by side."""
    same = " AND ".join(f"{name} = lag({name}) OVER ()" for name in key)
    query = f"SELECT bool_or(twin) FROM (SELECT {same} AS twin FROM {quoted(str(path))})"  # noqa: S608
    return bool(con.execute(query).fetchall()[0][0])
