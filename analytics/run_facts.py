"""What is known of a run when somebody asks what to change first: every figure, and how sure it is.

Before: the warehouse's tables and views.   After: run_advice.py and its rules.
Price: a few aggregates over the run's steps; the steps themselves stay in DuckDB.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb
import numpy as np

from analytics.compare import Estimate, Floats, ratio_of_sums
from analytics.errors import WarehouseError
from analytics.plain_rows import Row, plain_rows

NUM_GROUPS = 20  # consecutive steps that are resampled together
LATEST = "latest"
PARTS = (
    "busy", "straggler_wait", "exposed_comm", "exposed_copy", "data_wait", "host_wait",
    "kernel_gap", "unattributed",
)  # fmt: skip
KINDS = ("ids", "rows", "gradients", "dense")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank that takes longer than the others for the same work, step after step."""

    rank: int
    host: str
    device_id: str | None
    slowdown_ratio: float  # its time for a unit of work / the median of the others'
    slowest_share: float  # of the steps in which it was the slowest for its work
    saved_s: float  # rank-seconds that would go if it were as fast as the median
    last_share: float | None  # of the collectives it arrived at last; None: no arrivals known


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run's figures; None where nothing measured them."""

    run: Row  # its row of run_efficiency
    num_steps: int
    num_rank_steps: int
    window_s: float  # rank-seconds
    part_s: dict[str, float | None]
    unsplit_comm_s: float | None
    kind_s: dict[str, float | None]  # blocked communication by what was waited for
    overlapped_comm_s: float
    skipped_busy_s: float
    num_skipped_steps: int
    group_part_s: dict[str, Floats]  # of NUM_GROUPS groups of consecutive steps
    group_window_s: Floats
    slow_rank: SlowRank | None
    attempts_redone: list[Row]
    pipeline_window_s: float  # kept steps of all arms, rank-seconds
    spans: list[Row]  # of the kept attempt, by kind
    wall_s: float | None  # of the kept attempt
    states: list[Row]  # of the devices allocated to the pipeline
    prices: list[Row]  # on-demand hours with a spot price beside them
    savings: list[Row]  # view spot_saving

    @property
    def bubble_s(self) -> float:
        """Rank time that was not the ranks' own work."""
        return self.window_s - (self.part_s["busy"] or 0.0)

    def interval(self, *parts: str) -> Estimate:
        """The parts' share of rank time with a 95 % bootstrap interval over groups of steps."""
        total = np.sum([self.group_part_s[part] for part in parts], axis=0)
        return ratio_of_sums(total, self.group_window_s, seed=0)


def run_ids(con: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    """The runs that a run_id, a pipeline_id or 'latest' names, baseline first.

    Raises WarehouseError when there is none.
    """
    found = con.execute(
        """
        WITH named AS (
            SELECT
                CASE WHEN $name = $latest
                    THEN (SELECT arg_max(pipeline_id, (started_unix_ns, pipeline_id)) FROM dim_run)
                    ELSE $name
                END AS name
        )

        SELECT dim_run.run_id
        FROM dim_run
        INNER JOIN named ON dim_run.run_id = named.name OR dim_run.pipeline_id = named.name
        ORDER BY dim_run.arm <> 'baseline', dim_run.arm, dim_run.run_id
        """,
        {"name": name, "latest": LATEST},
    ).fetchall()
    if not found:
        known = con.execute(
            "SELECT DISTINCT pipeline_id FROM dim_run ORDER BY pipeline_id DESC LIMIT 5"
        ).fetchall()
        there = ", ".join(row[0] for row in known) or "none"
        raise WarehouseError(
            f"'{name}' is no run and no pipeline of the warehouse; the newest pipelines are: "
            f"{there}. Name one of them, one of their runs, or 'latest'; 'seqscale load' takes up "
            "runs that are not loaded yet."
        )
    return [row[0] for row in found]


def run_facts(con: duckdb.DuckDBPyConnection, run_id: str) -> RunFacts:
    """Everything that the rules of advice ask about a run that is there."""
    [run] = plain_rows(con, "SELECT * FROM run_efficiency WHERE run_id = ?", [run_id])
    [sums] = plain_rows(con, _SUMS, [run_id])
    groups = con.execute(_GROUPS, {"run_id": run_id, "num": NUM_GROUPS}).fetchnumpy()
    pipeline = [run["pipeline_id"]]
    [whole] = plain_rows(con, _PIPELINE, pipeline)
    return RunFacts(
        run=run,
        num_steps=sums["num_steps"],
        num_rank_steps=sums["num_rank_steps"],
        window_s=sums["window_s"] or 0.0,
        part_s={part: sums[part] for part in PARTS},
        unsplit_comm_s=sums["unsplit"],
        kind_s={kind: sums[kind] for kind in KINDS},
        overlapped_comm_s=sums["overlapped_comm_s"] or 0.0,
        skipped_busy_s=sums["skipped_busy_s"] or 0.0,
        num_skipped_steps=sums["num_skipped_steps"],
        group_part_s={part: _filled(groups[part]) for part in PARTS},
        group_window_s=_filled(groups["window_s"]),
        slow_rank=_slow_rank(con, run),
        attempts_redone=plain_rows(
            con, "SELECT * FROM attempt_redone WHERE pipeline_id = ?", pipeline
        ),
        pipeline_window_s=whole["window_s"] or 0.0,
        spans=plain_rows(con, _SPANS, pipeline),
        wall_s=whole["wall_s"],
        states=plain_rows(con, _STATES, pipeline),
        prices=plain_rows(con, _PRICES, pipeline),
        savings=plain_rows(con, "SELECT * FROM spot_saving WHERE pipeline_id = ?", pipeline),
    )


def _filled(values: Any) -> Floats:
    """A column as floats; what was not measured counts 0."""
    return np.ma.filled(np.ma.asarray(values, dtype=np.float64), 0.0)


def _slow_rank(con: duckdb.DuckDBPyConnection, run: Row) -> SlowRank | None:
    """The rank with the longest time for a unit of work, when ranks and work are known."""
    rates = plain_rows(con, _RATES, [run["run_id"]])
    if len(rates) < 2:
        return None
    slow, others = rates[0], [rate["work_rate_s"] for rate in rates[1:]]
    median = float(np.median(others))
    if median <= 0:
        return None
    ratio = slow["work_rate_s"] / median
    [saved] = plain_rows(
        con, _SAVED, {"run_id": run["run_id"], "rank": slow["rank"], "ratio": max(ratio, 1.0)}
    )
    [last] = plain_rows(con, _LAST, {"run_id": run["run_id"], "rank": slow["rank"]})
    return SlowRank(
        rank=slow["rank"],
        host=slow["host"],
        device_id=slow["device_id"],
        slowdown_ratio=ratio,
        slowest_share=saved["slowest_share"] or 0.0,
        saved_s=saved["saved_s"] or 0.0,
        last_share=last["last_share"],
    )


_PART_SUMS = """
    sum(busy_s) AS busy,
    sum(straggler_wait_s) FILTER (WHERE exposed_comm_s IS NOT NULL) AS straggler_wait,
    sum(exposed_comm_s) FILTER (WHERE straggler_wait_s IS NOT NULL) AS exposed_comm,
    sum(exposed_copy_s) AS exposed_copy,
    sum(data_wait_s) AS data_wait,
    sum(host_wait_s) AS host_wait,
    sum(kernel_gap_s) AS kernel_gap,
    sum(unattributed_s) AS unattributed,
    sum(window_s) AS window_s
"""

_SUMS = f"""
SELECT
    {_PART_SUMS},
    sum(exposed_comm_total_s)
        FILTER (WHERE straggler_wait_s IS NULL OR exposed_comm_s IS NULL) AS unsplit,
    sum(exposed_ids_s) AS ids,
    sum(exposed_rows_s) AS rows,
    sum(exposed_gradients_s) AS gradients,
    sum(exposed_dense_s) AS dense,
    sum(overlapped_comm_s) AS overlapped_comm_s,
    sum(busy_s) FILTER (WHERE was_skipped) AS skipped_busy_s,
    count(DISTINCT step) FILTER (WHERE was_skipped) AS num_skipped_steps,
    count(DISTINCT step) AS num_steps,
    count(*) AS num_rank_steps
FROM fact_step
WHERE run_id = ?
"""  # noqa: S608

_GROUPS = f"""
WITH grouped AS (
    SELECT step, ntile($num) OVER (ORDER BY step) AS step_group
    FROM (SELECT DISTINCT step FROM fact_step WHERE run_id = $run_id) AS steps
)

SELECT {_PART_SUMS}
FROM fact_step
INNER JOIN grouped ON fact_step.step = grouped.step
WHERE fact_step.run_id = $run_id
GROUP BY grouped.step_group
ORDER BY grouped.step_group
"""  # noqa: S608

# work is the cost model's time where it is known, else events
_RATES = """
SELECT
    fact_step.rank,
    coalesce(any_value(dim_rank.host), any_value(dim_run.host)) AS host,
    any_value(dim_rank.device_id) AS device_id,
    sum(busy_s) / sum(coalesce(predicted_cost_s, num_tokens)) AS work_rate_s
FROM fact_step
INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
LEFT JOIN dim_rank ON fact_step.run_id = dim_rank.run_id AND fact_step.rank = dim_rank.rank
WHERE fact_step.run_id = ?
GROUP BY fact_step.rank
HAVING sum(coalesce(predicted_cost_s, num_tokens)) > 0
ORDER BY work_rate_s DESC, fact_step.rank
"""

# what every rank of a step would save if the slow one took 1/ratio of its time
_SAVED = """
WITH steps AS (
    SELECT
        fact_step.step,
        count(*) AS num_ranks,
        max(busy_s) AS slowest_s,
        max(busy_s) FILTER (WHERE rank <> $rank) AS others_s,
        max(busy_s) FILTER (WHERE rank = $rank) AS own_s,
        arg_max(
            rank, busy_s / nullif(coalesce(predicted_cost_s, num_tokens), 0)
        ) AS slowest_rank
    FROM fact_step
    WHERE run_id = $run_id
    GROUP BY fact_step.step
    HAVING count(*) > 1
)

SELECT
    sum((num_ranks - 1) * (slowest_s - greatest(others_s, own_s / $ratio))) AS saved_s,
    count(*) FILTER (WHERE slowest_rank = $rank) / nullif(count(*), 0) AS slowest_share
FROM steps
"""

# of a collective every rank has a row that names the last one; the slow rank's own is counted
_LAST = """
SELECT count(*) FILTER (WHERE last_rank = $rank) / nullif(count(last_rank), 0) AS last_share
FROM fact_collective
WHERE run_id = $run_id AND rank = $rank
"""

_PIPELINE = """
WITH kept AS (
    SELECT pipeline_id, max(attempt) AS attempt FROM dim_run WHERE pipeline_id = ? GROUP BY 1
),

told AS (
    SELECT fact_step.started_unix_ns AS began_unix_ns, window_s AS duration_s, window_s
    FROM fact_step
    INNER JOIN kept ON fact_step.pipeline_id = kept.pipeline_id
    UNION ALL
    SELECT fact_span.began_unix_ns, fact_span.duration_s, NULL
    FROM fact_span
    INNER JOIN kept
        ON fact_span.pipeline_id = kept.pipeline_id AND fact_span.attempt = kept.attempt
)

SELECT
    sum(window_s) AS window_s,
    (max(began_unix_ns + CAST(duration_s * 1e9 AS BIGINT)) - min(began_unix_ns)) / 1e9 AS wall_s
FROM told
"""

# ranks do a thing at the same time: its wall time is that of the rank that took longest
_SPANS = """
WITH kept AS (
    SELECT pipeline_id, max(attempt) AS attempt FROM dim_run WHERE pipeline_id = ? GROUP BY 1
),

by_rank AS (
    SELECT
        fact_span.span_kind,
        fact_span.rank,
        count(*) AS num_spans,
        sum(fact_span.duration_s) AS duration_s
    FROM fact_span
    INNER JOIN kept
        ON fact_span.pipeline_id = kept.pipeline_id AND fact_span.attempt = kept.attempt
    GROUP BY fact_span.span_kind, fact_span.rank
)

SELECT span_kind, max(num_spans) AS num_spans, max(duration_s) AS duration_s
FROM by_rank
GROUP BY span_kind
ORDER BY span_kind
"""

_STATES = """
SELECT
    cause,
    sum(seconds) AS seconds,
    count(DISTINCT (host, device_id)) AS num_devices,
    CASE WHEN count(*) = count(cost) AND count(DISTINCT currency) = 1 THEN sum(cost) END AS cost,
    any_value(currency) AS currency
FROM allocation_state
WHERE pipeline_id = ?
GROUP BY cause, cause_rank
ORDER BY cause_rank
"""

_PRICES = """
WITH spot AS (
    SELECT pool_id, currency, event_unix_ns, min(device_hour_cost) AS device_hour_cost
    FROM fact_pool_event
    WHERE purchase = 'spot' AND device_hour_cost IS NOT NULL
    GROUP BY pool_id, currency, event_unix_ns
)

SELECT
    allocation.pool_id,
    allocation.currency,
    count(DISTINCT (allocation.host, allocation.device_id)) AS num_devices,
    sum(allocation.device_hours) AS device_hours,
    sum(allocation.device_hours * allocation.device_hour_cost) AS on_demand_cost,
    sum(allocation.device_hours * spot.device_hour_cost) AS spot_cost
FROM allocation
ASOF INNER JOIN spot
    ON allocation.pool_id = spot.pool_id
    AND allocation.currency = spot.currency
    AND allocation.began_unix_ns >= spot.event_unix_ns
WHERE allocation.pipeline_id = ? AND allocation.purchase = 'on_demand'
    AND allocation.device_hour_cost IS NOT NULL
GROUP BY allocation.pool_id, allocation.currency
ORDER BY allocation.pool_id, allocation.currency
"""
