"""`seqscale purge`: raw device samples become minute rows after so many days.

Before: flows/cli.py registers it.   After: analytics/purging.py does it; a copy is published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def purge(
    older_than_days: Annotated[
        int,
        typer.Option(
            min=0,
            help="Samples taken more than so many days ago, by their own times, become minutes.",
        ),
    ],
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be rolled up.")
    ] = False,
    runs_dir: Annotated[
        Path, typer.Option(help="Folder of warehouse, MLflow store and runs.")
    ] = Path("runs"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document.")
    ] = False,
) -> None:
    """Roll old device samples up into minutes; totals stay, and so do journals and imports."""
    import dataclasses

    from analytics.purging import purge as purge_samples
    from analytics.warehouse import publish

    report = purge_samples(runs_dir, older_than_days=older_than_days, is_dry_run=is_dry_run)
    path = publish(runs_dir)
    if as_json:
        plain = {**dataclasses.asdict(report), "warehouse": str(path)}
        typer.echo(json.dumps(plain, allow_nan=False))
        return
    if is_dry_run:
        typer.echo(
            f"nothing was purged: raw samples would be kept since {report.raw_since_utc}\n"
            f"{report.num_samples_purged:,} samples would be rolled up into minutes, "
            f"{report.num_samples_kept:,} would stay"
        )
        return
    typer.echo(
        f"raw samples are kept since {report.raw_since_utc}\n"
        f"{report.num_samples_purged:,} samples were rolled up, {report.num_samples_kept:,} stay\n"
        f"fact_device_minute: {report.num_minutes:,} rows\npublished: {path}"
    )
