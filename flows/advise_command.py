"""`seqscale advise`: what to change first about a run, with what it is worth and why.

Before: the published warehouse.   After: a person, or a program that reads JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

MISSING = "-"


def advise(
    run: Annotated[str, typer.Argument(help="A run_id, a pipeline_id, or 'latest'.")] = "latest",
    runs_dir: Annotated[
        Path, typer.Option(help="Folder of warehouse, MLflow store and runs.")
    ] = Path("runs"),
    days: Annotated[
        int, typer.Option(min=1, max=3660, help="Also tell the money of so many days.")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document.")
    ] = False,
) -> None:
    """Rank what to change first: recoverable seconds and money, with evidence and confidence."""
    from analytics.metrics import query_errors
    from analytics.run_advice import advise as advise_on
    from analytics.warehouse import open_published

    con = open_published(runs_dir)
    try:
        with query_errors():
            found = [advice.plain(days) for advice in advise_on(con, run)]
    finally:
        con.close()
    if as_json:
        typer.echo(json.dumps({"runs": found}, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo("\n\n".join("\n".join(lines(one)) for one in found))


def lines(run: dict[str, Any]) -> list[str]:
    """A run's advice as lines for a person."""
    steps = f"{run['num_steps']:,} steps"
    text = [f"{run['run_id']} ({steps})"]
    if run["bubble_share"] is not None:
        text.append(
            f"bubble {run['bubble_share']:.1%} of the ranks' time; recoverable above stated floors "
            f"{run['recoverable_share']:.1%}"
        )
    if not run["advice"]:
        text.append("Nothing is advised.")
    for advice in run["advice"]:
        text += _advice_lines(advice, run["days"])
    for note in run["notes"]:
        text.append(f"  [{note['status'].replace('_', ' ')}] {note['kind']}: {note['text']}")
    return text


def _advice_lines(advice: dict[str, Any], days: int) -> list[str]:
    money = MISSING
    if advice["cost_per_day"] is not None:
        money = f"{advice['cost_per_day']:,.2f} {advice['currency']} a day"
        if days > 1:
            money += f", {advice['cost_over_days']:,.2f} in {days} days"
    time = MISSING
    if advice["recoverable_s_per_day"] is not None:
        time = (
            f"{advice['recoverable_s_per_day']:,.0f} device-seconds a day "
            f"({advice['recoverable_share']:.1%} of {advice['share_of']})"
        )
    evidence = "; ".join(_evidence(entry) for entry in advice["evidence"])
    sure = advice["confidence"]
    return [
        f"{advice['rank']}. {advice['recommendation']}",
        f"   worth: {time}; {money}",
        f"   floor: {advice['floor']}",
        f"   evidence: {evidence}",
        f"   confidence: {sure['level']} ({sure['reason']})",
    ]


def _evidence(entry: dict[str, Any]) -> str:
    picked = ", ".join(f"{name} {value}" for name, value in entry["rows"].items())
    figures = ", ".join(f"{name} {_figure(value)}" for name, value in entry["figures"].items())
    return f"{entry['view']} of {picked}: {figures}"


def _figure(value: Any) -> str:
    if value is None:
        return MISSING
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
