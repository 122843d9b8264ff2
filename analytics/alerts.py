"""Tells when the newest run of a configuration is worse than the runs of it before.

A figure is worse when it lies beyond the median of the last runs by more than the larger of three
MAD (the median distance from that median) and a least share of it: with a handful of runs MAD can
be next to nothing. Fewer than three earlier runs judge nothing, and that is said.

Before: the views run_efficiency and run_device_names.   After: `seqscale alerts`.
Price: one query; configurations are told apart by hash, arm, data set, ranks and devices, versions
are not: a new version that is slower is what this is for.
"""

from __future__ import annotations

import dataclasses
import statistics

import duckdb

from analytics.named_runs import no_runs
from analytics.plain_rows import Row, plain_rows

NUM_LAST = 5
MIN_EARLIER = 3
MAD_FACTOR = 3.0
# figure of run_efficiency -> whether more is worse, and the least change that counts [share]
WATCHED: dict[str, tuple[bool, float]] = {
    "step_s": (True, 0.05),
    "bubble_share": (True, 0.05),
    "samples_per_s": (False, 0.05),
    "hr_at_10": (False, 0.05),
    "ndcg_at_10": (False, 0.05),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alert:
    """One figure of a newest run that is worse than before, with what that rests on."""

    run_id: str
    figure: str
    value: float
    median: float
    bound: float  # the worst that would have raised no alert
    earlier: dict[str, float]  # run -> the figure, oldest first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unjudged:
    """A newest run, or one figure of it, that has too few earlier runs to be judged by."""

    run_id: str
    figure: str | None  # None: any of them
    num_earlier: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlertReport:
    """What the newest run of each configuration showed; JSON-able."""

    num_last: int
    min_earlier: int
    judged: list[str]  # newest runs with enough earlier ones
    unjudged: list[Unjudged]
    alerts: list[Alert]


def find_alerts(con: duckdb.DuckDBPyConnection, *, num_last: int = NUM_LAST) -> AlertReport:
    """Judge the newest run of each configuration by the `num_last` runs of it before.

    Raises ValueError when num_last is below the least number of earlier runs, WarehouseError when
    no run has a recorded step.
    """
    if num_last < MIN_EARLIER:
        raise ValueError(f"num_last is {num_last}; at least {MIN_EARLIER} runs judge another")
    judged: list[str] = []
    unjudged: list[Unjudged] = []
    alerts: list[Alert] = []
    configurations = _by_configuration(con)
    if not configurations:
        raise no_runs()
    for runs in configurations:
        newest, earlier = runs[-1], runs[-1 - num_last : -1]
        run_id = newest["run_id"]
        if len(earlier) < MIN_EARLIER:
            unjudged.append(Unjudged(run_id=run_id, figure=None, num_earlier=len(earlier)))
            continue
        judged.append(run_id)
        for figure in WATCHED:
            if newest[figure] is None:
                continue
            told = {run["run_id"]: run[figure] for run in earlier if run[figure] is not None}
            if len(told) < MIN_EARLIER:
                unjudged.append(Unjudged(run_id=run_id, figure=figure, num_earlier=len(told)))
                continue
            alert = judge(run_id, figure, newest[figure], told)
            alerts.extend([alert] if alert else [])
    return AlertReport(
        num_last=num_last,
        min_earlier=MIN_EARLIER,
        judged=judged,
        unjudged=unjudged,
        alerts=alerts,
    )


def judge(run_id: str, figure: str, value: float, earlier: dict[str, float]) -> Alert | None:
    """An alert when the value is worse than the earlier runs' allow, else None."""
    more_is_worse, least_share = WATCHED[figure]
    median = statistics.median(earlier.values())
    mad = statistics.median(abs(other - median) for other in earlier.values())
    margin = max(MAD_FACTOR * mad, least_share * abs(median))
    bound = median + margin if more_is_worse else median - margin
    is_worse = value > bound if more_is_worse else value < bound
    if not is_worse:
        return None
    return Alert(
        run_id=run_id, figure=figure, value=value, median=median, bound=bound, earlier=earlier
    )


def _by_configuration(con: duckdb.DuckDBPyConnection) -> list[list[Row]]:
    """The runs of each configuration, oldest first; the newest configuration last."""
    query = """
        SELECT
            run_efficiency.*,
            [
                dim_run.config_sha256, dim_run.arm, dim_run.dataset_id, dim_run.placement,
                dim_run.schedule, dim_run.transport, CAST(dim_run.world_size AS VARCHAR),
                dim_run.device, run_device_names.device_name
            ] AS configuration
        FROM run_efficiency
        INNER JOIN dim_run ON run_efficiency.run_id = dim_run.run_id
        LEFT JOIN run_device_names ON run_efficiency.run_id = run_device_names.run_id
        WHERE run_efficiency.num_recorded_steps > 0
        ORDER BY dim_run.started_unix_ns, dim_run.run_id
    """
    found: dict[tuple[str | None, ...], list[Row]] = {}
    for row in plain_rows(con, query):
        found.setdefault(tuple(row["configuration"]), []).append(row)
    return sorted(found.values(), key=lambda runs: runs[-1]["started_unix_ns"])
