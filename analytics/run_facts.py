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
from analytics.measures import straggler_ranking
from analytics.plain_rows import Row, plain_rows

NUM_GROUPS = 20  # consecutive steps that are resampled together
PARTS = (
    "busy", "straggler_wait", "exposed_comm", "exposed_copy", "data_wait", "host_wait",
    "kernel_gap", "unattributed",
)  # fmt: skip
KINDS = ("ids", "rows", "gradients", "dense")


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
    stragglers: list[Row]  # view straggler_ranking, most waited for first
    slow_saved_s: float  # waiting of the other ranks that persistent stragglers alone cause
    imbalance_s: float | None  # waiting that the predicted costs of the ranks' work explain
    attempts_redone: list[Row]
    pipeline_window_s: float  # kept steps of all arms, rank-seconds
    evaluations: list[Row]  # of the kept attempt: none, or one row of their sums
    wall_s: float | None  # of the kept attempt
    goodput: Row  # its pipeline's row of run_goodput
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


def run_facts(con: duckdb.DuckDBPyConnection, run_id: str) -> RunFacts:
    """Everything that the rules of advice ask about a run that is there."""
    [run] = plain_rows(con, "SELECT * FROM run_efficiency WHERE run_id = ?", [run_id])
    [sums] = plain_rows(con, _SUMS, [run_id])
    groups = con.execute(_GROUPS, {"run_id": run_id, "num": NUM_GROUPS}).fetchnumpy()
    pipeline = [run["pipeline_id"]]
    [whole] = plain_rows(con, _PIPELINE, pipeline)
    [goodput] = plain_rows(con, "SELECT * FROM run_goodput WHERE pipeline_id = ?", pipeline)
    stragglers = straggler_ranking(con, run_id)
    [imbalance] = plain_rows(con, _IMBALANCE, [run_id])
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
        stragglers=stragglers,
        slow_saved_s=_slow_saved_s(con, run_id, slow_ranks(stragglers)),
        imbalance_s=imbalance["imbalance_s"],
        attempts_redone=plain_rows(
            con, "SELECT * FROM attempt_redone WHERE pipeline_id = ?", pipeline
        ),
        pipeline_window_s=whole["window_s"] or 0.0,
        evaluations=plain_rows(con, _EVALUATIONS, pipeline),
        wall_s=whole["wall_s"],
        goodput=goodput,
        states=plain_rows(con, _STATES, {"pipeline_id": run["pipeline_id"]}),
        prices=plain_rows(con, _PRICES, pipeline),
        savings=plain_rows(con, "SELECT * FROM spot_saving WHERE pipeline_id = ?", pipeline),
    )


def slow_ranks(stragglers: list[Row]) -> list[Row]:
    """The ranks that are slower than the others for the same work, step after step."""
    return [
        row for row in stragglers if row["straggler_kind"] == "persistent" and row["cost_ratio"]
    ]


def _slow_saved_s(con: duckdb.DuckDBPyConnection, run_id: str, slow: list[Row]) -> float:
    """Waiting of the others that goes when the slow ranks are as fast; 0 without any."""
    if not slow:
        return 0.0
    told = {
        "run_id": run_id,
        "ranks": [row["rank"] for row in slow],
        "ratios": [row["cost_ratio"] for row in slow],
        "share": sum(row["waited_for_share"] or 0.0 for row in slow),
    }
    [saved] = plain_rows(con, _SLOW_SAVED, told)
    return saved["saved_s"] or 0.0


def _filled(values: Any) -> Floats:
    """A column as floats; what was not measured counts 0."""
    return np.ma.filled(np.ma.asarray(values, dtype=np.float64), 0.0)


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

# what the other ranks would wait less if each slow one took 1/cost_ratio of its time; no more than
# what they waited for the slow ones, as far as arrivals tell
_SLOW_SAVED = """
WITH slow AS (
    SELECT unnest($ranks) AS rank, unnest($ratios) AS cost_ratio
),

steps AS (
    SELECT
        count(*) FILTER (WHERE slow.rank IS NULL) AS num_others,
        max(busy_s) AS slowest_s,
        max(busy_s / coalesce(slow.cost_ratio, 1)) AS mended_s,
        sum(straggler_wait_s) AS wait_s
    FROM fact_step
    INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
    LEFT JOIN slow ON fact_step.rank = slow.rank
    WHERE fact_step.run_id = $run_id
    GROUP BY fact_step.step
    HAVING count(*) = any_value(dim_run.world_size)
)

SELECT least(sum(num_others * (slowest_s - mended_s)), sum(wait_s) * $share) AS saved_s
FROM steps
"""

# seconds of the cost model are brought to those that the ranks took for their work
_IMBALANCE = """
SELECT
    CASE WHEN bool_and(mean_predicted_cost_s IS NOT NULL)
        THEN sum(num_ranks * (max_predicted_cost_s - mean_predicted_cost_s))
            * sum(num_ranks * mean_busy_s)
            / nullif(sum(num_ranks * mean_predicted_cost_s), 0)
    END AS imbalance_s
FROM step_balance
WHERE run_id = ? AND is_complete
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
    WHERE fact_span.span_kind <> 'reporting'
)

SELECT
    sum(window_s) AS window_s,
    (max(began_unix_ns + CAST(duration_s * 1e9 AS BIGINT)) - min(began_unix_ns)) / 1e9 AS wall_s
FROM told
"""

# an evaluation is repeated when its run and label come again; ranks evaluate at the same time: the
# wall time is that of the rank that took longest
_EVALUATIONS = """
WITH kept AS (
    SELECT pipeline_id, max(attempt) AS attempt FROM dim_run WHERE pipeline_id = ? GROUP BY 1
),

told AS (
    SELECT
        fact_span.rank,
        count(*) AS num_spans,
        sum(fact_span.duration_s) AS duration_s,
        arg_max(fact_span.duration_s, fact_span.began_unix_ns) AS last_s
    FROM fact_span
    INNER JOIN kept
        ON fact_span.pipeline_id = kept.pipeline_id AND fact_span.attempt = kept.attempt
    WHERE fact_span.span_kind = 'evaluation'
    GROUP BY fact_span.rank, fact_span.run_id, fact_span.label
)

SELECT
    CAST(sum(num_spans) AS BIGINT) AS num_spans,
    CAST(sum(num_spans - 1) AS BIGINT) AS num_repeated,
    sum(duration_s) AS duration_s,
    sum(duration_s - last_s) AS repeated_s
FROM told
GROUP BY rank
ORDER BY duration_s DESC, rank
LIMIT 1
"""

_STATES = """
SELECT
    cause,
    sum(seconds) AS seconds,
    count(DISTINCT (host, device_id)) AS num_devices,
    (
        SELECT count(DISTINCT (host, device_id))
        FROM allocation_state
        WHERE pipeline_id = $pipeline_id
    ) AS num_all_devices,
    CASE WHEN count(*) = count(cost) AND count(DISTINCT currency) = 1 THEN sum(cost) END AS cost,
    any_value(currency) AS currency
FROM allocation_state
WHERE pipeline_id = $pipeline_id
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
