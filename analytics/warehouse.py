"""Loads journals and imports into DuckDB: the working warehouse, made only of what lies beside it.

Before: ranks, sampler and flow wrote journals (analytics/journal.py), importers landed Parquet
files (analytics/landing.py).   After: publishing.py copies it to `DIR/warehouse.duckdb`, which
metrics.py, compare.py, export.py and the dashboard read.
Price: a load is one transaction, so it is killed or done; journals are read line by line, imports
in bulk. docs/warehouse.md tells what lies where and who waits for whom.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path

import duckdb

from analytics import date_zone
from analytics.errors import WarehouseError
from analytics.import_loading import (
    LandedImport,
    known_imports,
    landed_imports,
    pipelines_in,
    take_up,
)
from analytics.landing import landed, sync
from analytics.pipeline_loading import (
    chosen_folders,
    insert_in_bulk,
    pipeline_folders,
    read_pipeline,
    replace_pipeline,
)
from analytics.publishing import OPEN_TIMEOUT_S, open_published, publish
from analytics.retention import apply_retention, has_unfinished_purge
from analytics.schema import TABLES, DimImport, columns
from analytics.versions import check_version, migrate
from analytics.working_copy import (
    CONFIG,
    LOCK_TIMEOUT_S,
    PUBLISHED_NAME,
    REBUILD_PREFIX,
    SCRATCH_PREFIX,
    WORK_NAME,
    alone,
    drop_damaged,
    opened,
    transaction,
    working_path,
)

__all__ = [
    "LOCK_TIMEOUT_S",
    "OPEN_TIMEOUT_S",
    "PUBLISHED_NAME",
    "WORK_NAME",
    "LoadReport",
    "load",
    "open_published",
    "publish",
    "rebuild",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What a load put into the warehouse; JSON-able."""

    runs_dir: str
    pipelines: dict[str, int | None]  # pipeline -> the attempt that was kept, None when none began
    rows: dict[str, int]  # table -> rows that these pipelines and new imports hold
    num_torn_lines: int  # half-written last lines of open segments, skipped
    num_repeated_records: int  # records that a later one with the same key replaced
    imports: list[str]  # landed imports that were not in it before
    num_conflicts: int  # figures of these that samples of before contradict; the larger is kept


def load(
    runs_dir: Path,
    pipeline_ids: list[str] | None = None,
    *,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> LoadReport:
    """Bring the working warehouse up to date with the journals of some or of all pipelines, and
    with every landed import that it does not hold.

    A pipeline's rows are replaced as a whole, so loading twice changes nothing; only the last
    attempt with any record counts. Pipelines whose folder is gone stay as they were loaded.
    Raises JournalError for a bad line (nothing is loaded then), and WarehouseError when another
    load holds the lock for too long, the folder holds no such pipeline and no import, an import
    cannot be read, a newer seqscale wrote the warehouse, or it cannot be written.
    """
    chosen_folders(runs_dir, pipeline_ids, has_imports=bool(landed(runs_dir)))
    with alone(runs_dir, lock_timeout_s):
        everything = drop_damaged(runs_dir)
        path = working_path(runs_dir)
        with opened(path) as con:
            check_version(con, path, runs_dir)
            return _load_into(con, runs_dir, None if everything else pipeline_ids)


def rebuild(
    runs_dir: Path, *, drop_gone: bool = False, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> LoadReport:
    """Make the working warehouse anew from all journals and landed imports, and nothing else.

    The one that is there serves until the new one is whole, and is then replaced in one rename.
    drop_gone: also when it holds pipelines or imports whose source is gone, which are lost then;
    without it that is a WarehouseError which names them. Raises the same as `load` besides.
    """
    chosen_folders(runs_dir, None, has_imports=bool(landed(runs_dir)))
    with alone(runs_dir, lock_timeout_s):
        working = working_path(runs_dir)
        imports = landed_imports(runs_dir)
        if not drop_gone:
            _check_sources(working, runs_dir, imports)
        fresh = working.with_name(f"{REBUILD_PREFIX}{os.getpid()}.duckdb")
        with opened(fresh) as con:
            report = _load_into(con, runs_dir, None)
        sync(fresh)
        # a log that a killed load left belongs to the old file
        working.with_name(working.name + ".wal").unlink(missing_ok=True)
        fresh.replace(working)
        sync(working.parent)
    return report


def _load_into(
    con: duckdb.DuckDBPyConnection, runs_dir: Path, pipeline_ids: list[str] | None
) -> LoadReport:
    """Load into an open warehouse; all of it in one transaction, after the layout's own."""
    with transaction(con):  # one sync to disk, not one for each of the comments
        migrate(con)
        date_zone.record(con, runs_dir)
    scratch_folder = tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=runs_dir / WORK_NAME)
    with transaction(con), scratch_folder as scratch:
        imports = landed_imports(runs_dir)
        known = known_imports(con)
        pending = [one for one in imports if one.about.import_id not in known]
        if pipeline_ids is not None and has_unfinished_purge(con, runs_dir):
            pipeline_ids = None
        folders = chosen_folders(runs_dir, pipeline_ids, has_imports=True)
        there = pipeline_folders(runs_dir)
        for name in sorted(pipelines_in(con, pending) & there.keys()):
            folders.setdefault(name, there[name])  # what journals say of it comes before
        report = _load_pipelines(con, runs_dir, folders, Path(scratch))
        found = take_up(
            con,
            imports,
            known=known,
            replaced=list(folders),
            journaled={name for name, number in report.rows.items() if number},
        )
        insert_in_bulk(con, "dim_import", [one.about for one in pending], Path(scratch))
        apply_retention(con, runs_dir, imports)
    con.execute("CHECKPOINT")
    rows = found.rows | {"dim_import": len(pending)}
    return dataclasses.replace(
        report,
        rows={name: number + rows.get(name, 0) for name, number in report.rows.items()},
        imports=[one.about.import_id for one in pending],
        num_conflicts=found.num_conflicts,
    )


def _load_pipelines(
    con: duckdb.DuckDBPyConnection, runs_dir: Path, folders: dict[str, Path], scratch: Path
) -> LoadReport:
    rows: dict[str, int] = dict.fromkeys(TABLES, 0)
    attempts: dict[str, int | None] = {}
    num_torn = num_repeated = 0
    for name, folder in folders.items():
        read = read_pipeline(folder)
        replace_pipeline(con, name, read, scratch)
        attempts[name] = read.attempt
        num_torn += read.num_torn
        num_repeated += read.num_repeated
        for table, found in read.records.items():
            rows[table] += len(found)
    return LoadReport(
        runs_dir=str(runs_dir),
        pipelines=attempts,
        rows=rows,
        num_torn_lines=num_torn,
        num_repeated_records=num_repeated,
        imports=[],
        num_conflicts=0,
    )


def _check_sources(working: Path, runs_dir: Path, imports: list[LandedImport]) -> None:
    """Raise WarehouseError when the warehouse holds what is nowhere else any more."""
    if not working.is_file():
        return
    sources = set(pipeline_folders(runs_dir)) | {one.about.import_id for one in imports}
    try:
        with contextlib.closing(duckdb.connect(working, config=CONFIG)) as con:
            held = _held_sources(con)
            sources |= pipelines_in(con, imports)
    except duckdb.Error as error:
        if "not a valid DuckDB database" in str(error):
            return  # damaged: it holds nothing that could be lost
        raise
    gone = sorted(held - sources)
    if gone:
        raise WarehouseError(
            f"{working}: it holds {len(gone)} pipelines or imports whose source is gone, such as "
            f"{', '.join(gone[:3])}; made anew it would lose them. Put their folders back into "
            f"{runs_dir}, or run 'seqscale load --rebuild --drop-gone --runs-dir {runs_dir}'."
        )


def _held_sources(con: duckdb.DuckDBPyConnection) -> set[str]:
    """Every pipeline and import that any table of the warehouse names."""
    there = {
        (table, column)
        for table, column in con.execute(
            "SELECT table_name, column_name FROM duckdb_columns() "
            "WHERE database_name = current_database()"
        ).fetchall()
    }
    held: set[str] = set()
    for name, record in TABLES.items():
        column = "import_id" if record is DimImport else "pipeline_id"
        if (name, column) in there and any(c.name == column for c in columns(record)):
            rows = con.execute(f"SELECT DISTINCT {column} FROM {name}").fetchall()  # noqa: S608
            held |= {source for (source,) in rows if source}
    return held
