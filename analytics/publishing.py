"""Publishes the working warehouse by atomic rename, and opens the published copy for reading.

A reader opens `RUNS/warehouse.duckdb` only, which nobody ever writes: DuckDB refuses a writer while
a reader of another process holds the file, and the other way round. A reader that is open while a
new copy is published keeps the old one to its end.

Before: warehouse.py has loaded.   After: metrics.py, compare.py, export.py and the dashboard read.
Price: the whole file is copied, at the speed of the disk; with many samples, materialising.py's.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import duckdb

from analytics.ddl import quoted
from analytics.errors import WarehouseError
from analytics.landing import sync
from analytics.materialising import has_many_samples, materialise
from analytics.versions import check_version
from analytics.working_copy import (
    CONFIG,
    FRESH_PREFIX,
    LOCK_TIMEOUT_S,
    PUBLISHED_NAME,
    alone,
    opened,
    transaction,
    working_path,
)

OPEN_TIMEOUT_S = 5.0
_POLL_S = 0.05


def publish(runs_dir: Path, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Path:
    """Copy the working warehouse to `DIR/warehouse.duckdb` in one rename; returns its path.

    A reader that has the old copy open keeps it. Raises WarehouseError when nothing was loaded
    yet, the lock is held for too long, or the folder cannot be written.
    """
    working = working_path(runs_dir)
    if not working.is_file():
        raise WarehouseError(
            f"{working}: there is nothing to publish. "
            f"Run 'seqscale load --runs-dir {runs_dir}' first."
        )
    fresh = working.with_name(f"{FRESH_PREFIX}{os.getpid()}.duckdb")
    published = runs_dir / PUBLISHED_NAME
    with alone(runs_dir, lock_timeout_s):
        try:
            with opened(working) as con:  # what a killed load left in the log goes into the file
                check_version(con, working, runs_dir)
                con.execute("CHECKPOINT")
                is_large = has_many_samples(con)
            _check_closed(working)
            shutil.copyfile(working, fresh)
            if is_large:
                with opened(fresh) as con, transaction(con):
                    materialise(con)
                _check_closed(fresh)
            sync(fresh)
            fresh.replace(published)
            sync(runs_dir)
        finally:
            for left in (fresh, fresh.with_name(fresh.name + ".wal")):
                left.unlink(missing_ok=True)
    return published


def open_published(
    runs_dir: Path, *, timeout_s: float = OPEN_TIMEOUT_S
) -> duckdb.DuckDBPyConnection:
    """A read-only connection to the published warehouse; the caller closes it.

    The file is attached to an in-memory database rather than opened: a second open of a path in
    one process would return the old file for as long as any handle to it lives.
    Raises WarehouseError, naming the command that mends it, when the file is missing, is not a
    warehouse, was written by a newer version, or stays locked by another process for `timeout_s`.
    """
    path = runs_dir / PUBLISHED_NAME
    if not path.is_file():
        raise WarehouseError(
            f"{path}: there is no warehouse. Run 'seqscale run --runs-dir {runs_dir}' to make one, "
            f"or 'seqscale load --runs-dir {runs_dir}' when the runs are there already."
        )
    deadline = time.monotonic() + timeout_s
    while True:
        con = duckdb.connect(":memory:", config=CONFIG)
        try:
            con.execute(f"ATTACH {quoted(str(path))} AS warehouse (READ_ONLY)")
            con.execute("USE warehouse")
            check_version(con, path, runs_dir)
            return con
        except WarehouseError:
            con.close()
            raise
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


def _check_closed(working: Path) -> None:
    """A file that still has a log beside it is not whole by itself."""
    log = working.with_name(working.name + ".wal")
    if log.exists() and log.stat().st_size > 0:
        raise WarehouseError(
            f"{working}: another program has the working warehouse open. Close it and publish "
            "again; the copy that is published already stays."
        )
