"""Rolls raw device samples that are older than wanted up into minute rows; no total changes.

`RUNS/telemetry/retention.json` holds the moment before which samples are kept as minutes only. The
sources (journals, landed Parquet) stay, so that minutes are always made of all there is: a load
that brings late or repeated samples of a purged time makes the minutes of that device anew, and
each sample counts once. A sample counts in the minute in which it was taken.

Before: warehouse.py has put all rows in.   After: fact_device_minute has what fact_device_sample no
longer has; the views device_use and device_energy read both.
Price: a late sample costs one look through its device's purged rows.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb

from analytics.errors import WarehouseError
from analytics.import_loading import LandedImport, landed_rows, merge_samples
from analytics.landing import FOLDER, sync
from analytics.schema import FactDeviceMinute, columns
from analytics.working_copy import LOCK_TIMEOUT_S, alone, opened, working_path

FILE_NAME = "retention.json"
_MINUTE_NS = 60 * 10**9
_DAY_NS = 86_400 * 10**9
_SAMPLES = "fact_device_sample"
_SAME = (
    "{0}.pipeline_id = {1}.pipeline_id AND {0}.host = {1}.host AND {0}.device_id = {1}.device_id"
)
# how far a sample reaches over a gap, for each device as it was when its samples were purged
Limits = dict[tuple[str, str, str], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """Which samples are kept as minutes, and what their intervals were made with."""

    raw_since_unix_ns: int
    gap_limits: Limits


def read_retention(runs_dir: Path) -> Retention | None:
    """What was purged of a runs folder; None when nothing was.

    Raises WarehouseError when its file cannot be read.
    """
    path = runs_dir / FOLDER / FILE_NAME
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Retention(
            raw_since_unix_ns=int(said["raw_since_unix_ns"]),
            gap_limits={(p, h, d): float(limit) for p, h, d, limit in said["gap_limits"]},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WarehouseError(
            f"{path}: this does not tell which samples were purged ({error}). Delete it and run "
            f"'seqscale load --rebuild --runs-dir {runs_dir}'; every sample is back then."
        ) from error


def raw_since(older_than_days: int, now_ns: int) -> int:
    """The moment [ns], a full minute, before which samples are that old."""
    return (now_ns - older_than_days * _DAY_NS) // _MINUTE_NS * _MINUTE_NS


def remember_purge(runs_dir: Path, older_than_days: int, now_ns: int, lock_timeout_s: float) -> int:
    """Write down that older samples are kept as minutes only; the moment [ns], a full minute.

    The moment never goes back. Raises WarehouseError when the folder cannot be written.
    """
    since = raw_since(older_than_days, now_ns)
    with alone(runs_dir, lock_timeout_s):
        before = read_retention(runs_dir)
        if before is not None and before.raw_since_unix_ns >= since:
            return before.raw_since_unix_ns
        with opened(working_path(runs_dir)) as con:
            limits = _limits_now(con, since)
        limits |= {} if before is None else before.gap_limits
        _write(runs_dir, Retention(raw_since_unix_ns=since, gap_limits=limits))
    return since


def has_unfinished_purge(con: duckdb.DuckDBPyConnection, runs_dir: Path) -> bool:
    """Whether samples are still there that a purge was to roll up when it was killed."""
    kept = read_retention(runs_dir)
    return kept is not None and bool(_are_older(con, kept.raw_since_unix_ns))


def apply_retention(
    con: duckdb.DuckDBPyConnection, runs_dir: Path, imports: Sequence[LandedImport]
) -> None:
    """Roll up what is older than the retention allows; the last thing in a load's transaction.

    Every row of the pipelines that are loaded, and of all imports that are new, is in its table.
    """
    kept = read_retention(runs_dir)
    if kept is None:
        return
    for device, limit in kept.gap_limits.items():
        con.execute(
            "INSERT OR REPLACE INTO dim_device_retention VALUES (?, ?, ?, ?)", [*device, limit]
        )
    since = kept.raw_since_unix_ns
    if not _are_older(con, since):
        return
    con.execute(
        "CREATE OR REPLACE TEMP TABLE late AS "  # noqa: S608
        f"SELECT DISTINCT pipeline_id, host, device_id FROM {_SAMPLES} "
        f"WHERE sampled_unix_ns < {since}"
    )
    files = [path for one in imports if (path := one.file(_SAMPLES)) is not None]
    if files:
        rows = (
            f"SELECT landed.* FROM ({landed_rows(files)}) AS landed "  # noqa: S608
            f"SEMI JOIN late ON {_SAME.format('landed', 'late')} WHERE sampled_unix_ns < {since}"
        )
        merge_samples(con, _SAMPLES, rows, is_distinct=False)
    _forget_limits(con, kept.gap_limits)
    _roll_up(con, since)


def _roll_up(con: duckdb.DuckDBPyConnection, since: int) -> None:
    """Turn the samples of the devices in `late` that are older into minutes."""
    wanted = {c.name for c in columns(FactDeviceMinute)}
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE rolled AS
        SELECT sums.* FROM device_sample_minute AS sums
        SEMI JOIN late ON {_SAME.format("sums", "late")}
        WHERE minute_unix_ns < {since}
        """  # noqa: S608
    )
    made = {row[0] for row in con.execute("DESCRIBE rolled").fetchall()}
    assert made == wanted, f"device_sample_minute and fact_device_minute differ: {made ^ wanted}"
    con.execute(
        "INSERT OR REPLACE INTO dim_device_retention BY NAME "  # noqa: S608
        "SELECT limits.* FROM device_gap_limit AS limits "
        f"SEMI JOIN late ON {_SAME.format('limits', 'late')} WHERE gap_limit_s IS NOT NULL"
    )
    con.execute(
        "DELETE FROM fact_device_minute AS there USING rolled "  # noqa: S608
        f"WHERE {_SAME.format('there', 'rolled')} "
        "AND there.minute_unix_ns = rolled.minute_unix_ns"
    )
    con.execute("INSERT INTO fact_device_minute BY NAME SELECT * FROM rolled")
    con.execute(f"DELETE FROM {_SAMPLES} WHERE sampled_unix_ns < {since}")  # noqa: S608
    con.execute("DROP TABLE rolled")
    con.execute("DROP TABLE late")


def _are_older(con: duckdb.DuckDBPyConnection, since: int) -> bool:
    query = f"SELECT 1 FROM {_SAMPLES} WHERE sampled_unix_ns < {since} LIMIT 1"  # noqa: S608
    return bool(con.execute(query).fetchall())


def _forget_limits(con: duckdb.DuckDBPyConnection, fixed: Limits) -> None:
    """Limits that no purge has written down follow from all samples there are, not from some."""
    late = con.execute("SELECT pipeline_id, host, device_id FROM late").fetchall()
    for device in late:
        if tuple(device) not in fixed:
            con.execute(
                "DELETE FROM dim_device_retention "
                "WHERE pipeline_id = ? AND host = ? AND device_id = ?",
                list(device),
            )


def _limits_now(con: duckdb.DuckDBPyConnection, since: int) -> Limits:
    """The gap limit of every device that has samples which are to be purged."""
    rows = con.execute(
        "SELECT limits.pipeline_id, limits.host, limits.device_id, limits.gap_limit_s "  # noqa: S608
        "FROM device_gap_limit AS limits "
        f"SEMI JOIN (SELECT * FROM {_SAMPLES} WHERE sampled_unix_ns < {since}) AS old "
        f"ON {_SAME.format('limits', 'old')} WHERE limits.gap_limit_s IS NOT NULL"
    ).fetchall()
    return {(p, h, d): limit for p, h, d, limit in rows}


def _write(runs_dir: Path, retention: Retention) -> None:
    """Replace the file in one rename."""
    folder = runs_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    limits = [[*device, limit] for device, limit in sorted(retention.gap_limits.items())]
    said = {
        "raw_since_unix_ns": retention.raw_since_unix_ns,
        "raw_since_utc": utc_text(retention.raw_since_unix_ns),
        "gap_limits": limits,
    }
    handle, fresh = tempfile.mkstemp(prefix=f".{FILE_NAME}-", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(said, allow_nan=False, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    Path(fresh).chmod(0o644)
    Path(fresh).replace(folder / FILE_NAME)
    sync(folder)


def utc_text(unix_ns: int) -> str:
    """A moment as ISO 8601 in UTC, to the second."""
    moment = datetime.datetime.fromtimestamp(unix_ns // 10**9, tz=datetime.UTC)
    return moment.isoformat(timespec="seconds")


__all__ = [
    "LOCK_TIMEOUT_S",
    "Retention",
    "apply_retention",
    "has_unfinished_purge",
    "read_retention",
    "remember_purge",
    "utc_text",
]
