"""The numbers that the receipt, the dashboard and the CSV downloads show: one function a question.

Before: the views of analytics/sql/ on an open connection.   After: flows (receipt, MLflow) and
dashboard/. Every function returns plain rows (dicts of text, whole numbers, floats, None), ready
for JSON. Money is exact in the views (DECIMAL); here it is a float that prints the same six places.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb

from analytics.errors import QueryError
from analytics.plain_rows import Row, plain_rows

# Fixed order, one hue per cause on every page; words as a reader meets them.
CAUSE_LABELS: dict[str, str] = {
    "busy": "own work",
    "straggler_wait": "waiting for the slowest rank",
    "exposed_comm": "exchange on the wire",
    "exposed_comm_total": "blocked in exchange",
    "exposed_copy": "copies",
    "data_wait": "waiting for data",
    "host_wait": "late kernel launches",
    "kernel_gap": "gaps between kernels",
    "unattributed": "not attributed",
}


def pipelines(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """Which pipelines are there, newest first: pipeline_id, dataset_name, num_runs, start, end.

    `ended_unix_ns` is the end of the last recorded step, NULL when none was recorded.
    """
    return plain_rows(
        con,
        """
        WITH steps AS (
            SELECT
                pipeline_id,
                max(started_unix_ns + CAST(window_s * 1e9 AS BIGINT)) AS ended_unix_ns
            FROM fact_step
            GROUP BY pipeline_id
        )

        SELECT
            dim_run.pipeline_id,
            any_value(dim_dataset.dataset_name) AS dataset_name,
            any_value(dim_dataset.num_users) AS num_users,
            any_value(dim_dataset.num_items) AS num_items,
            any_value(dim_run.world_size) AS world_size,
            any_value(dim_run.device) AS device,
            any_value(dim_run.host) AS host,
            count(*) AS num_runs,
            min(dim_run.started_unix_ns) AS started_unix_ns,
            any_value(steps.ended_unix_ns) AS ended_unix_ns
        FROM dim_run
        LEFT JOIN dim_dataset ON dim_run.dataset_id = dim_dataset.dataset_id
        LEFT JOIN steps ON dim_run.pipeline_id = steps.pipeline_id
        GROUP BY dim_run.pipeline_id
        ORDER BY started_unix_ns DESC, dim_run.pipeline_id DESC
        """,
        [],
    )


def run_efficiency(con: duckdb.DuckDBPyConnection, pipeline_id: str | None = None) -> list[Row]:
    """How efficient was each run: the view run_efficiency, baseline first within a pipeline."""
    return plain_rows(
        con,
        """
        SELECT *
        FROM run_efficiency
        WHERE $pipeline_id IS NULL OR pipeline_id = $pipeline_id
        ORDER BY pipeline_id, arm <> 'baseline', arm
        """,
        {"pipeline_id": pipeline_id},
    )


def pipeline_causes(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """Where the rank time and money of each arm went: busy first, then every measured cause."""
    return plain_rows(
        con,
        """
        SELECT *
        FROM run_cause
        WHERE pipeline_id = $pipeline_id
        ORDER BY arm <> 'baseline', arm, cause_rank
        """,
        {"pipeline_id": pipeline_id},
    )


def step_series(con: duckdb.DuckDBPyConnection, run_id: str, max_points: int = 500) -> list[Row]:
    """How did a run's steps go: step time, loss and balance over at most `max_points` points.

    A point stands for consecutive steps; step times are means, the loss is the mean of the steps'
    losses per target, `straggler_share` is 1 - sum of means / sum of largest own work.
    Raises ValueError when max_points is below 1.
    """
    if max_points < 1:
        raise ValueError(f"max_points is {max_points}; at least one point is needed")
    return plain_rows(
        con,
        """
        WITH placed AS (
            SELECT
                *,
                (row_number() OVER (ORDER BY step) - 1) * $max_points
                // greatest(count(*) OVER (), $max_points) AS point
            FROM step_balance
            WHERE run_id = $run_id
        )

        SELECT
            min(step) AS step,
            count(*) AS num_points_steps,
            avg(step_s) AS step_s,
            avg(loss) AS loss,
            CASE WHEN max(num_ranks) > 1
                THEN 1 - sum(mean_busy_s) / nullif(sum(max_busy_s), 0)
            END AS straggler_share
        FROM placed
        GROUP BY point
        ORDER BY step
        """,
        {"run_id": run_id, "max_points": max_points},
    )


def quality(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """How good are the recommendations: every ranker of every arm on the test split."""
    return plain_rows(
        con,
        """
        SELECT
            fact_evaluation.run_id,
            dim_run.arm,
            fact_evaluation.ranker,
            fact_evaluation.split,
            fact_evaluation.num_users,
            fact_evaluation.num_cold_targets,
            fact_evaluation.hr_at_10,
            fact_evaluation.ndcg_at_10,
            fact_evaluation.mrr
        FROM fact_evaluation
        INNER JOIN dim_run ON fact_evaluation.run_id = dim_run.run_id
        WHERE fact_evaluation.pipeline_id = $pipeline_id AND fact_evaluation.split = 'test'
        ORDER BY dim_run.arm <> 'baseline', dim_run.arm, fact_evaluation.ranker
        """,
        {"pipeline_id": pipeline_id},
    )


def device_use(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """What the sampler saw of each device: time-weighted use, most memory, its own CPU share."""
    return plain_rows(
        con,
        "SELECT * FROM device_use WHERE pipeline_id = $pipeline_id ORDER BY host, device_id",
        {"pipeline_id": pipeline_id},
    )


def models(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """Where each arm stands in MLflow, and its registered version if it has one."""
    return plain_rows(
        con,
        "SELECT * FROM dim_model WHERE pipeline_id = $pipeline_id ORDER BY run_id",
        {"pipeline_id": pipeline_id},
    )


def schedule_trials(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """What each run of a pipeline that was to pick a schedule has tried, as it tried it."""
    query = """
        SELECT r.arm, t.* EXCLUDE (run_id, pipeline_id, attempt)
        FROM fact_schedule_trial AS t
        JOIN dim_run AS r USING (run_id)
        WHERE t.pipeline_id = ?
        ORDER BY r.arm, t.step, t.num_steps = 0, t.step_s, t.schedule
    """
    return plain_rows(con, query, [pipeline_id])


def transport_trials(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """What was measured of the transports when a pipeline's training started."""
    query = """
        SELECT DISTINCT t.* EXCLUDE (run_id, pipeline_id, attempt), r.transport AS label
        FROM fact_transport_trial AS t
        JOIN dim_run AS r USING (run_id)
        WHERE t.pipeline_id = ?
        ORDER BY t.is_chosen DESC, t.transport
    """
    return plain_rows(con, query, [pipeline_id])


def cost_fits(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """Every refit of a cost model in a pipeline, in the order of steps."""
    query = """
        SELECT r.arm, f.* EXCLUDE (run_id, pipeline_id, attempt)
        FROM fact_cost_fit AS f
        JOIN dim_run AS r USING (run_id)
        WHERE f.pipeline_id = ?
        ORDER BY r.arm, f.step
    """
    return plain_rows(con, query, [pipeline_id])


def recording_share(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> float | None:
    """CPU time that recording took over the time of the steps recorded, 0..1; NULL when untold."""
    query = """
        SELECT
            sum(recorder_cpu_s + coalesce(recording_block_cpu_s, 0)) / sum(window_s)
                AS recording_share
        FROM fact_step
        WHERE pipeline_id = ? AND recorder_cpu_s IS NOT NULL
    """
    share: float | None = plain_rows(con, query, [pipeline_id])[0]["recording_share"]
    return share


def price(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """Which price was applied to a pipeline, from which list and of which day."""
    return plain_rows(
        con,
        "SELECT * FROM dim_price WHERE pipeline_id = $pipeline_id ORDER BY instance_type",
        {"pipeline_id": pipeline_id},
    )


@contextlib.contextmanager
def query_errors() -> Iterator[None]:
    """What DuckDB refuses becomes a QueryError, so that those who ask need not know DuckDB."""
    try:
        yield
    except duckdb.Error as error:
        raise QueryError(
            f"{str(error).splitlines()[0]} The warehouse was written by another version; run "
            "'seqscale load --runs-dir DIR' to bring it up to this one."
        ) from error
