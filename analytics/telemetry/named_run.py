"""Sees that the run which a person names with --pipeline is one that is known.

A mistyped name would be taken as it is: its rows would belong to a run that never was, and no view
of the run that was meant would show them.

Before: the command line.   After: importing.py gives the rows this name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from analytics.errors import ConfigError
from analytics.pipeline_loading import pipeline_folders
from analytics.publishing import open_published
from analytics.working_copy import PUBLISHED_NAME

_MOST_SHOWN = 8


def check_run(runs_dir: Path, pipeline_id: str) -> None:
    """See that a run has a folder in a runs folder, or rows in its published warehouse.

    Raises ConfigError naming the newest of those that are known, WarehouseError when the published
    warehouse cannot be read.
    """
    known = set(pipeline_folders(runs_dir))
    if pipeline_id not in known and (runs_dir / PUBLISHED_NAME).is_file():
        with contextlib.closing(open_published(runs_dir)) as con:
            rows = con.execute("SELECT DISTINCT pipeline_id FROM dim_run").fetchall()
        known |= {name for (name,) in rows}
    if pipeline_id in known:
        return
    newest = sorted(known, reverse=True)  # names begin with the time of the start
    there = ", ".join(newest[:_MOST_SHOWN]) or "none"
    more = f" and {len(newest) - _MOST_SHOWN} more" if len(newest) > _MOST_SHOWN else ""
    raise ConfigError(
        f"--pipeline is {pipeline_id!r}, and {runs_dir} knows no such run; known are: {there}"
        f"{more}. Name one of them, name the folder of its runs with --runs-dir, or leave "
        "--pipeline out."
    )
