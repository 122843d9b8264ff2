"""`seqscale compare` and `seqscale alerts`: is one run better than another, or worse than before.

Before: flows/cli.py.   After: analytics/compare_runs.py and analytics/alerts.py answer from the
published warehouse. Standard output holds the result alone, with --json one JSON document.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Annotated

import typer

from flows.options import RUNS_DIR, AsJson, RunsDir

if typing.TYPE_CHECKING:  # imported inside, so that --help stays instant
    from analytics.alerts import AlertReport
    from analytics.compare_runs import RunComparison


def compare(
    run_a: Annotated[
        str, typer.Argument(help="A run, a pipeline for each of its arms, or 'latest'.")
    ],
    run_b: Annotated[str, typer.Argument(help="What to compare it with; ratios are a / b.")],
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: each figure's ratio with a 95 % interval; no difference inside of it."""
    from analytics.compare_runs import compare_runs, run_pairs
    from analytics.metrics import query_errors
    from analytics.warehouse import open_published

    con = open_published(runs_dir)
    try:
        with query_errors():
            found = [compare_runs(con, *pair) for pair in run_pairs(con, run_a, run_b)]
    finally:
        con.close()
    if as_json:
        _print_json({"comparisons": [dataclasses.asdict(comparison) for comparison in found]})
    else:
        typer.echo("\n\n".join("\n".join(_comparison_lines(c)) for c in found))


def alerts(
    last: Annotated[
        int, typer.Option(min=3, max=1000, help="Earlier runs of a configuration to judge by.")
    ] = 5,
    fail: Annotated[
        bool, typer.Option("--fail", help="End with code 1 when there is an alert, for CI.")
    ] = False,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Tell where the newest run of a configuration is worse than the runs of it before."""
    from analytics.alerts import find_alerts
    from analytics.metrics import query_errors
    from analytics.warehouse import open_published

    con = open_published(runs_dir)
    try:
        with query_errors():
            report = find_alerts(con, num_last=last)
    finally:
        con.close()
    if as_json:
        _print_json(dataclasses.asdict(report))
    else:
        typer.echo("\n".join(_alert_lines(report)))
    if fail and report.alerts:
        raise typer.Exit(1)


def _print_json(result: object) -> None:
    typer.echo(json.dumps(result, ensure_ascii=False, allow_nan=False))


def _comparison_lines(found: RunComparison) -> list[str]:
    lines = [
        f"a: {found.run_a} ({found.num_steps_a:,} steps)",
        f"b: {found.run_b} ({found.num_steps_b:,} steps)",
        f"{found.kind}: {found.reason}",
    ]
    if not (found.num_steps_a and found.num_steps_b):
        lines.append("nothing to compare: a step counts when every rank of its run recorded it")
    for name, (ours, theirs) in found.differs.items():
        lines.append(f"  {name}: {ours} against {theirs}")
    lines.append(f"{'':<22}{'a':>12}{'b':>12}{'a / b':>8}   95 %")
    for name, figure in found.figures.items():
        if figure.a is None and figure.b is None:
            continue
        ratio = figure.ratio
        interval = "" if ratio.lower is None else f"{ratio.lower:.3f} to {ratio.upper:.3f}"
        lines.append(
            f"{name:<22}{_number(figure.a):>12}{_number(figure.b):>12}"
            f"{'-' if ratio.value is None else f'{ratio.value:.3f}':>8}   "
            f"{interval:<18}{figure.verdict}"
        )
    return lines


def _alert_lines(report: AlertReport) -> list[str]:
    lines = []
    for alert in report.alerts:
        earlier = ", ".join(f"{run} {value:.6g}" for run, value in alert.earlier.items())
        lines.append(
            f"{alert.run_id}: {alert.figure} is {alert.value:.6g}; the median of the "
            f"{len(alert.earlier)} runs before is {alert.median:.6g}, the bound {alert.bound:.6g}"
        )
        lines.append(f"  {earlier}")
    if not lines:
        lines.append("no alert")
    lines.append(f"{len(report.judged)} newest runs were judged")
    for left in report.unjudged:
        what = "" if left.figure is None else f"{left.figure} of "
        lines.append(
            f"not judged: {what}{left.run_id}, {left.num_earlier} earlier runs of the same "
            f"configuration, {report.min_earlier} are needed"
        )
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
