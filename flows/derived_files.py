"""What a runs folder keeps that was derived from a store's version, and goes when that goes.

Plans say which user stands where in which batch; prepared/*.json and Prefect's stored results say
how many rows and how long the histories were. None names a person, all may be made again at any
time. A plan's name is a hash: whose it is stands in the job files of the attempts, and a plan that
none of them names goes too.

Before: flows/forgetting.py has recorded which versions were erased.   After: the next run makes
them again.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from analytics.schema import FactErasure

_ACTIVE_S = 600  # an open segment written to within this time belongs to a living training


def remove_derived(runs_dir: Path, erased: list[FactErasure]) -> int:
    """Remove what was derived, before they were erased, from these versions; how many things."""
    if not erased:
        return 0
    last_ns = max(record.erased_unix_ns for record in erased)
    gone = {record.dataset_id for record in erased}
    work = runs_dir / ".work"
    found = [*_prepared(work / "prepared", gone), *_plans(runs_dir, gone)]
    found += [path for path in (work / "prefect" / "storage").rglob("*") if path.is_file()]
    old = [path for path in found if path.exists() and path.stat().st_mtime_ns <= last_ns]
    for path in old:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return len(old)


def training_now(runs_dir: Path, dataset_ids: set[str]) -> list[str]:
    """The pipelines that seem to be training on these versions at this moment."""
    found = set()
    for path, job in _jobs(runs_dir):
        opened = (path.parent / "journal").glob("*/*.jsonl.open")
        newest = max((segment.stat().st_mtime for segment in opened), default=0.0)
        if job.get("dataset_id") in dataset_ids and time.time() - newest < _ACTIVE_S:
            found.add(path.parent.parent.name)
    return sorted(found)


def _prepared(folder: Path, gone: set[str]) -> list[Path]:
    """The answers of earlier preparations that point to a version that is gone."""
    return [
        path
        for path in folder.glob("*")
        if (raw := _json(path)) is None or raw.get("dataset_id") in gone
    ]


def _plans(runs_dir: Path, gone: set[str]) -> list[Path]:
    """Every plan but those that a job file ascribes to a version that is still kept."""
    kept = {
        Path(str(job.get("plan_dir"))).name
        for _, job in _jobs(runs_dir)
        if job.get("dataset_id") not in gone
    }
    return [path for path in (runs_dir / ".work" / "plans").glob("*") if path.name not in kept]


def _jobs(runs_dir: Path) -> list[tuple[Path, dict[str, Any]]]:
    files = sorted(runs_dir.glob("*/attempt-*/job.json"))
    return [(path, job) for path in files if (job := _json(path)) is not None]


def _json(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None
