"""Loads journals into DuckDB, and publishes a read-only copy by atomic rename.

Before: ranks, sampler and flow wrote journals (analytics/journal.py).   After: metrics.py,
compare.py, export.py and the dashboard read `DIR/warehouse.duckdb`.
Price: every line is checked in Python before DuckDB reads it in bulk, most of a load's time;
publishing copies the whole warehouse, so that an open reader never blocks a writer:
DuckDB refuses a writer while a reader of another process holds the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from analytics.ddl import create_tables, create_views, quoted, reader_types
from analytics.errors import JournalError, WarehouseError
from analytics.journal import read_journal, tables_in
from analytics.locks import held
from analytics.schema import TABLES, columns, table_key, to_mapping

PUBLISHED_NAME = "warehouse.duckdb"
WORK_NAME = ".work"
LOCK_TIMEOUT_S = 60.0
OPEN_TIMEOUT_S = 5.0
_POLL_S = 0.05
_ATTEMPT = re.compile(r"^attempt-(\d+)$")
# Nothing is fetched or loaded behind the user's back; JSON is built into the wheel.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What a load put into the warehouse; JSON-able."""

    runs_dir: str
    pipelines: dict[str, int | None]  # pipeline -> the attempt that was kept, None when none began
    rows: dict[str, int]  # table -> rows that these pipelines now have
    num_torn_lines: int  # half-written last lines of open segments, skipped
    num_repeated_records: int  # records that a later one with the same key replaced


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PipelineRead:
    attempt: int | None
    records: dict[str, dict[tuple[Any, ...], Any]]  # table -> key -> record
    num_torn: int
    num_repeated: int


def load(
    runs_dir: Path,
    pipeline_ids: list[str] | None = None,
    *,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> LoadReport:
    """Bring the working warehouse up to date with the journals of some or of all pipelines.

    A pipeline's rows are replaced as a whole, so loading twice changes nothing; only the last
    attempt with any record counts. Pipelines whose folder is gone stay as they were loaded.
    Raises JournalError for a bad line (nothing is loaded then), and WarehouseError when another
    load holds the lock for too long, the folder holds no such pipeline, or it cannot be written.
    """
    folders = _pipeline_folders(runs_dir, pipeline_ids)
    rows: dict[str, int] = dict.fromkeys(TABLES, 0)
    attempts: dict[str, int | None] = {}
    num_torn = num_repeated = 0
    with contextlib.ExitStack() as held_open:
        held_open.enter_context(_writable(runs_dir))
        held_open.enter_context(_lock(runs_dir, lock_timeout_s))
        if _drop_damaged(runs_dir):
            folders = _pipeline_folders(runs_dir, None)
        con = held_open.enter_context(_working(runs_dir))
        with _transaction(con):  # one sync to disk, not one for each of the comments
            create_tables(con)
            create_views(con)
        with _transaction(con), tempfile.TemporaryDirectory(dir=runs_dir / WORK_NAME) as scratch:
            for folder in folders:
                read = _read_pipeline(folder)
                _replace_pipeline(con, folder.name, read, Path(scratch))
                attempts[folder.name] = read.attempt
                num_torn += read.num_torn
                num_repeated += read.num_repeated
                for name, found in read.records.items():
                    rows[name] += len(found)
        con.execute("CHECKPOINT")
    return LoadReport(
        runs_dir=str(runs_dir),
        pipelines=attempts,
        rows=rows,
        num_torn_lines=num_torn,
        num_repeated_records=num_repeated,
    )


def publish(runs_dir: Path, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Path:
    """Copy the working warehouse to `DIR/warehouse.duckdb` in one rename; returns its path.

    A reader that has the old copy open keeps it. Raises WarehouseError when nothing was loaded
    yet, the lock is held for too long, or the folder cannot be written.
    """
    working = runs_dir / WORK_NAME / PUBLISHED_NAME
    if not working.is_file():
        raise WarehouseError(
            f"{working}: there is nothing to publish. "
            f"Run 'seqscale load --runs-dir {runs_dir}' first."
        )
    fresh = working.with_name(f"publish-{os.getpid()}.duckdb")
    published = runs_dir / PUBLISHED_NAME
    with _writable(runs_dir), _lock(runs_dir, lock_timeout_s):
        try:
            with _working(runs_dir) as con:
                source = con.execute("SELECT current_database()").fetchall()[0][0]
                con.execute(f"ATTACH {quoted(str(fresh))} AS fresh")
                con.execute(f'COPY FROM DATABASE "{source}" TO fresh')
                con.execute("CHECKPOINT fresh")
                con.execute("DETACH fresh")
            _sync(fresh)
            fresh.replace(published)
            _sync(runs_dir)
        finally:
            for left in working.parent.glob(f"{fresh.name}*"):
                left.unlink()
    return published


def open_published(
    runs_dir: Path, *, timeout_s: float = OPEN_TIMEOUT_S
) -> duckdb.DuckDBPyConnection:
    """A read-only connection to the published warehouse; the caller closes it.

    The file is attached to an in-memory database rather than opened: a second open of a path in
    one process would return the old file for as long as any handle to it lives.
    Raises WarehouseError, naming the command that mends it, when the file is missing, is not a
    warehouse, or stays locked by another process for `timeout_s`.
    """
    path = runs_dir / PUBLISHED_NAME
    if not path.is_file():
        raise WarehouseError(
            f"{path}: there is no warehouse. Run 'seqscale run --runs-dir {runs_dir}' to make one, "
            f"or 'seqscale load --runs-dir {runs_dir}' when the runs are there already."
        )
    deadline = time.monotonic() + timeout_s
    while True:
        con = duckdb.connect(":memory:", config=_CONFIG)
        try:
            con.execute(f"ATTACH {quoted(str(path))} AS warehouse (READ_ONLY)")
            con.execute("USE warehouse")
            return con
        except duckdb.Error as error:
            con.close()
            is_busy = "Could not set lock" in str(error)
            if not is_busy:
                raise WarehouseError(
                    f"{path}: this is not a warehouse that DuckDB can read ({error}). "
                    f"Run 'seqscale load --runs-dir {runs_dir}' to publish it anew."
                ) from error
            if time.monotonic() >= deadline:
                raise WarehouseError(
                    f"{path}: the warehouse is busy, another program has it open for writing "
                    f"({error}). Close that program, or run "
                    f"'seqscale load --runs-dir {runs_dir}' to publish a fresh copy."
                ) from error
        time.sleep(_POLL_S)  # between two tries to open, until the deadline


def _pipeline_folders(runs_dir: Path, pipeline_ids: list[str] | None) -> list[Path]:
    """The folders to load, oldest first; a folder with a journal or an attempt is a pipeline."""
    known: dict[str, Path] = {}
    if runs_dir.is_dir():
        for folder in sorted(runs_dir.iterdir()):
            if folder.is_dir() and ((folder / "journal").is_dir() or _attempts(folder)):
                known[folder.name] = folder
    if not known:
        raise WarehouseError(
            f"{runs_dir}: no pipeline has run here. Run 'seqscale run --runs-dir {runs_dir}' first."
        )
    if pipeline_ids is None:
        return list(known.values())
    for name in pipeline_ids:
        if name not in known:
            raise WarehouseError(
                f"{runs_dir / name}: there is no such pipeline; there are {', '.join(known)}. "
                f"Run 'seqscale load --runs-dir {runs_dir}' to load all of them."
            )
    return [known[name] for name in dict.fromkeys(pipeline_ids)]


def _attempts(folder: Path) -> list[tuple[int, Path]]:
    """(number, journal) of every attempt of a pipeline, in order."""
    found = []
    for child in folder.iterdir():
        match = _ATTEMPT.match(child.name)
        if match and child.is_dir():
            found.append((int(match[1]), child / "journal"))
    return sorted(found)


def _read_pipeline(folder: Path) -> _PipelineRead:
    """Every record of a pipeline: its own journal, and that of its last attempt."""
    journals: list[tuple[int | None, Path]] = [(None, folder / "journal")]
    begun = [(n, journal) for n, journal in _attempts(folder) if tables_in(journal)]
    journals.extend(begun[-1:])
    records: dict[str, dict[tuple[Any, ...], Any]] = {}
    num_torn = num_read = 0
    for attempt, journal in journals:
        for name in tables_in(journal):
            read = read_journal(journal, TABLES[name], hint=f"seqscale load {folder}")
            num_torn += read.num_torn_lines
            num_read += len(read.records)
            keyed = records.setdefault(name, {})
            for record in read.records:
                _check_belongs(record, name, folder.name, attempt, journal)
                keyed[tuple(getattr(record, k) for k in table_key(TABLES[name]))] = record
    num_kept = sum(len(keyed) for keyed in records.values())
    return _PipelineRead(
        attempt=begun[-1][0] if begun else None,
        records=records,
        num_torn=num_torn,
        num_repeated=num_read - num_kept,
    )


def _check_belongs(
    record: Any, name: str, pipeline_id: str, attempt: int | None, journal: Path
) -> None:
    """A record of another pipeline or attempt would outlive its own folder's reload."""
    for field, expected in (("pipeline_id", pipeline_id), ("attempt", attempt)):
        found = getattr(record, field, None)
        if expected is not None and found is not None and found != expected:
            raise JournalError(
                f"{journal / name}: a record has {field} {found!r}, but its folder belongs to "
                f"{expected!r}. Move the segment to the folder it came from."
            )


def _replace_pipeline(
    con: duckdb.DuckDBPyConnection, pipeline_id: str, read: _PipelineRead, scratch: Path
) -> None:
    """Delete what the warehouse has of a pipeline and insert what was read."""
    for name, record in TABLES.items():
        if any(c.name == "pipeline_id" for c in columns(record)):
            # Names come from schema.py, never from outside.
            con.execute(f"DELETE FROM {name} WHERE pipeline_id = ?", [pipeline_id])  # noqa: S608
        found = read.records.get(name, {})
        if not found:
            continue
        path = scratch / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for row in found.values():
                file.write(json.dumps(to_mapping(row), allow_nan=False) + "\n")
        rows = (
            f"SELECT * FROM read_json({quoted(str(path))}, "  # noqa: S608
            f"format = 'newline_delimited', columns = {reader_types(record)})"
        )
        con.execute(f"INSERT OR REPLACE INTO {name} BY NAME {rows}")


def _drop_damaged(runs_dir: Path) -> bool:
    """Remove a working warehouse that a full disk or a crash has left unreadable.

    It holds nothing that the journals do not: True tells that every pipeline is to be loaded anew.
    """
    path = runs_dir / WORK_NAME / PUBLISHED_NAME
    if not path.exists():
        return False
    try:
        duckdb.connect(path, config=_CONFIG).close()
    except duckdb.Error as error:
        if "not a valid DuckDB database" not in str(error):
            raise
        path.unlink()
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        return True
    return False


@contextlib.contextmanager
def _working(runs_dir: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect(runs_dir / WORK_NAME / PUBLISHED_NAME, config=_CONFIG)
    try:
        yield con
    finally:
        con.close()


@contextlib.contextmanager
def _transaction(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All of the block or nothing of it."""
    con.execute("BEGIN TRANSACTION")
    try:
        yield
    except BaseException:
        con.execute("ROLLBACK")
        raise
    con.execute("COMMIT")


@contextlib.contextmanager
def _lock(runs_dir: Path, timeout_s: float) -> Iterator[None]:
    """Holds the loader's lock; one process at a time writes the warehouse of a folder."""
    path = runs_dir / WORK_NAME / "load.lock"
    path.parent.mkdir(parents=True, exist_ok=True)

    def late() -> WarehouseError:
        return WarehouseError(
            f"{path}: another load has held the lock for {timeout_s:g} s. Wait until it ends and "
            f"run 'seqscale load --runs-dir {runs_dir}' again."
        )

    with held(path, timeout_s=timeout_s, late=late):
        yield


@contextlib.contextmanager
def _writable(runs_dir: Path) -> Iterator[None]:
    """What the disk or DuckDB refuses becomes a WarehouseError that says where."""
    try:
        yield
    except (OSError, duckdb.Error) as error:
        raise WarehouseError(
            f"{runs_dir}: the warehouse cannot be written ({error}). See that the disk has room "
            f"and the folder is yours, then run 'seqscale load --runs-dir {runs_dir}'; nothing is "
            f"lost, the journals are whole. If the working copy itself is damaged, delete "
            f"{runs_dir / WORK_NAME / PUBLISHED_NAME} first."
        ) from error


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
