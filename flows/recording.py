"""Puts a profile that no run has made into the warehouse: `seqscale profile --runs-dir RUNS`.

Before: flows/profiling.py has profiled a store or files.   After: analytics/warehouse.py; the view
forecast_gain and the tables fact_profile, fact_profile_advice and so on have it.
Price: a load and a publish. A profile has a folder of its own beside the runs', with a journal.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from analytics.interactions import dataset_records
from analytics.journal import JournalWriter
from analytics.prepared import PreparedData
from analytics.profile import Profile, profile_records
from analytics.schema import DimPrice
from analytics.warehouse import load, publish
from flows.request import new_pipeline_id
from flows.steps import check_runs_dir


def record_profile(
    prepared: PreparedData,
    profile: Profile,
    price: DimPrice,
    *,
    runs_dir: Path,
    min_group_users: int,
) -> str:
    """Write, load and publish a profile; the name it has in the warehouse.

    The prepared store is to be there. Raises ConfigError when runs_dir cannot be written.
    """
    runs_dir = runs_dir.resolve()
    check_runs_dir(runs_dir)
    name = f"profile-{new_pipeline_id()}"
    records = [
        *dataset_records(prepared, min_group_users=min_group_users),
        dataclasses.replace(price, pipeline_id=name),
        *profile_records(profile, pipeline_id=name, dataset_id=prepared.dataset_id),
    ]
    with JournalWriter(runs_dir / name / "journal", "profile") as journal:
        for record in records:
            journal.write(record)
    load(runs_dir, [name])
    publish(runs_dir)
    return name
