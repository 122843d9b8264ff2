"""The working warehouse: one file with one writer at a time; a killed writer leaves it whole.

DuckDB writes a transaction whole or not at all, so a load that is killed has loaded nothing. What
else a killed process leaves in the folder (half a published copy, a scratch folder) is removed by
the next one, which holds the lock and so knows that nobody is at work there.

Before: warehouse.py, publishing.py and retention.py want to write.   After: `RUNS/.work/`.
Price: one at a time; the others queue for as long as their time-out says.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb

from analytics.errors import WarehouseError
from analytics.locks import held

PUBLISHED_NAME = "warehouse.duckdb"
WORK_NAME = ".work"
LOCK_TIMEOUT_S = 60.0
SCRATCH_PREFIX = "load-"
FRESH_PREFIX = "publish-"
REBUILD_PREFIX = "rebuild-"
# Nothing is fetched or loaded behind the user's back; JSON and Parquet are built into the wheel.
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def working_path(runs_dir: Path) -> Path:
    """Where the working warehouse of a runs folder lies, there or not."""
    return runs_dir / WORK_NAME / PUBLISHED_NAME


@contextlib.contextmanager
def alone(runs_dir: Path, timeout_s: float) -> Iterator[None]:
    """Nobody else writes the warehouse of this folder while the block runs.

    Raises WarehouseError when another process holds the lock for longer than `timeout_s`, and for
    whatever the disk or DuckDB refuses inside the block.
    """
    with _writable(runs_dir), _lock(runs_dir, timeout_s):
        _sweep(runs_dir / WORK_NAME)
        yield


@contextlib.contextmanager
def opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A warehouse open for writing; closed when the block ends."""
    con = duckdb.connect(path, config=CONFIG)
    try:
        yield con
    finally:
        con.close()


@contextlib.contextmanager
def transaction(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All of the block or nothing of it."""
    con.execute("BEGIN TRANSACTION")
    try:
        yield
    except BaseException:
        con.execute("ROLLBACK")
        raise
    con.execute("COMMIT")


def drop_damaged(runs_dir: Path) -> bool:
    """Remove a working warehouse that a full disk has left unreadable.

    It holds nothing that journals and imports do not: True tells that all are to be loaded anew.
    """
    path = working_path(runs_dir)
    if not path.exists():
        return False
    try:
        duckdb.connect(path, config=CONFIG).close()
    except duckdb.Error as error:
        if "not a valid DuckDB database" not in str(error):
            raise
        path.unlink()
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        return True
    return False


def _sweep(folder: Path) -> None:
    """Remove what killed processes left; whoever calls holds the lock."""
    for prefix in (SCRATCH_PREFIX, FRESH_PREFIX, REBUILD_PREFIX, f"{PUBLISHED_NAME}.tmp"):
        for left in folder.glob(f"{prefix}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


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
            f"lost, the journals and imports are whole. If the working copy itself is damaged, "
            f"run 'seqscale load --rebuild --runs-dir {runs_dir}'."
        ) from error
