"""The receipt: what a run read, did, found and cost, and where everything lies.

Before: the published warehouse.   After: the console, `receipt.md` and `receipt.json` in the
pipeline's folder, Prefect's artifact. Every figure comes from analytics/metrics.py or
analytics/compare.py, the same functions the dashboard calls.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from analytics import metrics
from analytics.compare import compare_arms
from analytics.interactions import PreparedData
from analytics.prepared import published
from analytics.warehouse import open_published
from flows.private import FILE_MODE, write_json
from flows.receipt_lines import (
    choice_lines,
    comparison_lines,
    device_lines,
    money_line,
    next_steps,
    quality_lines,
    reporting_lines,
    table_cells,
    title,
)
from flows.request import RunRequest
from flows.spans import reporting_times
from flows.tracking import tracking_uri

Json = dict[str, Any]


def receipt_step(request: RunRequest, prepared: PreparedData) -> Json:
    """Collect the receipt from the published warehouse and write both its files."""
    made = collect(request, prepared)
    write_json(request.pipeline_dir / "receipt.json", made)
    path = request.pipeline_dir / "receipt.md"
    aside = path.with_name(path.name + ".part")
    aside.touch(mode=FILE_MODE)
    aside.write_text(markdown(made), encoding="utf-8")
    aside.replace(path)
    return made


def efficiency_rows(request: RunRequest) -> list[Json]:
    """The rows of run_efficiency of this start, baseline first."""
    with open_published(request.runs) as con:
        return metrics.run_efficiency(con, request.pipeline_id)


def collect(request: RunRequest, prepared: PreparedData) -> Json:
    """The receipt as plain values."""
    with open_published(request.runs) as con:
        arms = metrics.run_efficiency(con, request.pipeline_id)
        names = [arm["arm"] for arm in arms]
        comparison = (
            dataclasses.asdict(compare_arms(con, request.pipeline_id))
            if {"baseline", "balanced"} <= set(names)
            else None
        )
        prices = metrics.price(con, request.pipeline_id)
        models = metrics.models(con, request.pipeline_id)
        devices = metrics.device_use(con, request.pipeline_id)
        schedules = metrics.schedule_trials(con, request.pipeline_id)
        transports = metrics.transport_trials(con, request.pipeline_id)
        fits = metrics.cost_fits(con, request.pipeline_id)
        recording = metrics.recording_share(con, request.pipeline_id)
    return {
        "pipeline_id": request.pipeline_id,
        "recipe": request.config.recipe,
        "dataset": published(prepared, request.min_group_users),
        "arms": arms,
        "comparison": comparison,
        "price": prices[0] if prices else None,
        "devices": devices,
        "schedule_trials": schedules,
        "transport_trials": transports,
        "cost_fits": fits,
        "recording_share": recording,
        "reporting": [
            {"label": label, "duration_s": length_s} for label, length_s in reporting_times(request)
        ],
        "mlflow": _mlflow(request, models),
        "paths": _paths(request),
        "next": next_steps(request),
    }


def markdown(receipt: Json) -> str:
    """The receipt as Markdown."""
    arms = receipt["arms"]
    header = ["figure", *(arm["arm"] for arm in arms)]
    lines = [f"# Receipt of {title(receipt)}", "", dataset_line(receipt), ""]
    lines += [f"| {' | '.join(header)} |", f"|---|{'---:|' * len(arms)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in table_cells(arms)]
    lines += ["", "## Balanced against baseline", ""]
    lines += [f"- {line}" for line in comparison_lines(receipt["comparison"])]
    lines += [f"- {line}" for line in choice_lines(receipt)]
    lines += [f"- {line}" for line in device_lines(receipt["devices"])]
    lines += [f"- {line}" for line in reporting_lines(receipt["reporting"])]
    lines += [f"- {line}" for line in quality_lines(arms)]
    lines += [
        f"- {money_line(receipt)}",
        "- what each figure means: docs/definitions.md",
        "",
        "## Where it is",
        "",
    ]
    lines += [f"- {line}" for line in place_lines(receipt)]
    lines += ["", "## What to run next", ""]
    lines += [f"- `{command}`: {why}" for command, why in receipt["next"]]
    return "\n".join(lines) + "\n"


def dataset_line(receipt: Json) -> str:
    """What was read, in one line."""
    data = receipt["dataset"]
    dropped = ", ".join(f"{n:,} {reason}" for reason, n in data["dropped_rows"].items() if n)
    lengths = ""
    if data["min_length"] is not None:
        lengths = (
            f", histories of {data['min_length']:,} to {data['max_length']:,} events (median "
            f"{data['median_length']:g})"
        )
    return (
        f"{data['dataset_name']}: {data['num_users']:,} users, {data['num_items']:,} items, "
        f"{data['num_rows_kept']:,} of {data['num_rows_read']:,} rows kept"
        f"{f' (dropped: {dropped})' if dropped else ''}{lengths}; terms: {data['terms']}"
    )


def place_lines(receipt: Json) -> list[str]:
    """Where everything lies and what it is called in MLflow."""
    mlflow = receipt["mlflow"]
    lines = [f"{name}: {path}" for name, path in receipt["paths"].items()]
    if mlflow is None:
        return [*lines, "MLflow: no run was registered"]
    lines.append(f"MLflow: {mlflow['tracking_uri']}, parent run {mlflow['parent_run_id']}")
    lines += [
        f"MLflow run of {run_id}: {mlflow_id}" for run_id, mlflow_id in mlflow["runs"].items()
    ]
    if mlflow["model_version"] is not None:
        name, version = mlflow["model_name"], mlflow["model_version"]
        lines.append(f"registered model: {name} version {version}, alias {mlflow['model_alias']}")
    return lines


def show(receipt: Json, *, width: int | None = None) -> None:
    """Print the receipt on standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=width)
    table = Table(title=f"seqscale run {title(receipt)}", title_justify="left")
    table.add_column("figure")
    for arm in receipt["arms"]:
        table.add_column(arm["arm"], justify="right")
    for cells in table_cells(receipt["arms"]):
        table.add_row(*cells)
    console.print(dataset_line(receipt), markup=False, highlight=False)
    console.print(table)
    remarks = [*comparison_lines(receipt["comparison"]), *choice_lines(receipt)]
    remarks += [*device_lines(receipt["devices"]), *reporting_lines(receipt["reporting"])]
    for line in (*remarks, *quality_lines(receipt["arms"]), money_line(receipt)):
        console.print(line, markup=False, highlight=False)
    console.print()
    for line in place_lines(receipt):
        # paths are for copying: a terminal may wrap them, we do not
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("\nnext:", markup=False)
    for command, why in receipt["next"]:
        console.print(f"  {command}   # {why}", markup=False, highlight=False, soft_wrap=True)


def _mlflow(request: RunRequest, models: list[Json]) -> Json | None:
    if not models:
        return None
    registered = next((row for row in models if row["model_name"] is not None), models[0])
    return {
        "tracking_uri": tracking_uri(request.runs),
        "parent_run_id": models[0]["mlflow_parent_run_id"],
        "runs": {row["run_id"]: row["mlflow_run_id"] for row in models},
        "model_name": registered["model_name"],
        "model_version": registered["model_version"],
        "model_alias": registered["model_alias"],
    }


def _paths(request: RunRequest) -> dict[str, str]:
    places: dict[str, Path] = {
        "warehouse": request.runs / "warehouse.duckdb",
        "exports": request.runs / "export",
        "records and parameters": request.pipeline_dir,
        "this receipt": request.pipeline_dir / "receipt.md",
    }
    return {name: str(path) for name, path in places.items()}
