"""In which time zone a day begins: one setting of a runs folder, UTC until somebody sets another.

Instants stay UTC everywhere; the zone decides `date_key` alone. It lies in `RUNS/settings.json`, so
that a warehouse that is made anew has it too, and as a row of dim_setting, so that a published,
read-only warehouse knows it.

Before: `seqscale load --time-zone`.   After: warehouse.py calls `record` in every load; the views
of sql/15x to 17x read dim_setting.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import duckdb

from analytics.errors import ConfigError

DEFAULT_ZONE = "UTC"
SETTINGS_NAME = "settings.json"
_SETTING = "time_zone"


def set_time_zone(runs_dir: Path, zone: str) -> None:
    """Keep the zone in which the days of a runs folder begin, from the next load on.

    Raises ConfigError for a zone that the time zone database lacks, a folder that is not there, or
    when it cannot be written.
    """
    if not _is_known(zone):
        raise ConfigError(
            f"--time-zone is '{zone}', which is no zone of the time zone database. Give one such "
            "as UTC, Europe/Madrid or America/New_York."
        )
    if not runs_dir.is_dir():
        raise ConfigError(
            f"{runs_dir}: there is no such folder, so its time zone cannot be kept. Name the "
            "folder of the runs with --runs-dir."
        )
    path = runs_dir / SETTINGS_NAME
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        fresh.write_text(json.dumps({_SETTING: zone}, allow_nan=False) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: the time zone cannot be kept ({error}). See that the folder is yours and the "
            "disk has room."
        ) from error


def time_zone(runs_dir: Path) -> str:
    """The zone in which the days of a runs folder begin.

    Raises ConfigError when the setting is there and cannot be read.
    """
    path = runs_dir / SETTINGS_NAME
    if not path.exists():
        return DEFAULT_ZONE
    try:
        zone = json.loads(path.read_text(encoding="utf-8"))[_SETTING]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: the setting cannot be read ({error!r}). Set it again with "
            "'seqscale load --time-zone ZONE', or delete the file for UTC."
        ) from error
    if not isinstance(zone, str) or not _is_known(zone):
        raise ConfigError(
            f"{path}: time_zone is {zone!r}, which is no zone of the time zone database. Set it "
            "again with 'seqscale load --time-zone ZONE', or delete the file for UTC."
        )
    return zone


def record(con: duckdb.DuckDBPyConnection, runs_dir: Path) -> None:
    """Put the setting into the warehouse that `con` writes."""
    con.execute("INSERT OR REPLACE INTO dim_setting VALUES (?, ?)", [_SETTING, time_zone(runs_dir)])


def _is_known(zone: str) -> bool:
    with duckdb.connect(":memory:") as con:
        found = con.execute(
            "SELECT count(*) FROM pg_timezone_names() WHERE name = ?", [zone]
        ).fetchall()
    return bool(found[0][0])
