"""Purges raw device samples older than so many days; what they say in sum stays.

Before: a warehouse with samples.   After: minute rows in their place, in the working warehouse.
Price: two loads, so that nothing that is about to come is left out.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from analytics.errors import ConfigError
from analytics.retention import raw_since, read_retention, remember_purge, utc_text
from analytics.warehouse import load
from analytics.working_copy import LOCK_TIMEOUT_S, alone, opened, working_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class PurgeReport:
    """What a purge has done; JSON-able."""

    runs_dir: str
    raw_since_unix_ns: int
    raw_since_utc: str
    num_samples_purged: int
    num_samples_kept: int
    num_minutes: int  # minute rows in all, those of earlier purges too
    is_dry_run: bool  # nothing was purged: this is what would be


def purge(
    runs_dir: Path,
    *,
    older_than_days: int,
    is_dry_run: bool = False,
    now_ns: int | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> PurgeReport:
    """Roll up what is older than `older_than_days`; a killed purge is finished by the next load.

    Age is the time from the moment a sample was taken, by its own clock, until now. Journals and
    landed imports stay. is_dry_run: load what has come, and tell what a purge would do;
    `num_minutes` is then how many there are. Raises ConfigError for a negative number of days, and
    the same as `warehouse.load` besides.
    """
    if older_than_days < 0:
        raise ConfigError(f"--older-than-days is {older_than_days}; give 0 or a whole number above")
    load(runs_dir, lock_timeout_s=lock_timeout_s)
    now = time.time_ns() if now_ns is None else now_ns
    num_before, num_minutes = _counts(runs_dir, lock_timeout_s)
    if is_dry_run:
        kept = read_retention(runs_dir)
        since = max(raw_since(older_than_days, now), 0 if kept is None else kept.raw_since_unix_ns)
        num_kept = _counts(runs_dir, lock_timeout_s, since)[0]
        return _report(runs_dir, since, num_before, num_kept, num_minutes, is_dry_run=True)
    since = remember_purge(runs_dir, older_than_days, now, lock_timeout_s)
    load(runs_dir, lock_timeout_s=lock_timeout_s)
    num_kept, num_minutes = _counts(runs_dir, lock_timeout_s)
    return _report(runs_dir, since, num_before, num_kept, num_minutes, is_dry_run=False)


def _report(
    runs_dir: Path,
    since: int,
    num_before: int,
    num_kept: int,
    num_minutes: int,
    *,
    is_dry_run: bool,
) -> PurgeReport:
    return PurgeReport(
        runs_dir=str(runs_dir),
        raw_since_unix_ns=since,
        raw_since_utc=utc_text(since),
        num_samples_purged=max(num_before - num_kept, 0),
        num_samples_kept=num_kept,
        num_minutes=num_minutes,
        is_dry_run=is_dry_run,
    )


def _counts(runs_dir: Path, lock_timeout_s: float, since: int = 0) -> tuple[int, int]:
    """Raw samples from a moment [ns] on, and minute rows, of the working warehouse."""
    with alone(runs_dir, lock_timeout_s), opened(working_path(runs_dir)) as con:
        found = con.execute(
            "SELECT (SELECT count(*) FROM fact_device_sample WHERE sampled_unix_ns >= ?), "
            "(SELECT count(*) FROM fact_device_minute)",
            [since],
        ).fetchall()[0]
    return int(found[0]), int(found[1])
