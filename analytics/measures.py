"""Where a run's, a rank's, a device's, a pool's and a day's time went, and what it was worth.

Before: the views 100 to 142 of analytics/sql/ on an open connection.   After: the command line,
the dashboard and advice. One function a question; every one returns plain rows, ready for JSON.
Price: each is one query over the recorded steps, none over device samples.
"""

from __future__ import annotations

import duckdb

from analytics.errors import WarehouseError
from analytics.plain_rows import Row, plain_rows

DIMENSIONS = ("date_key", "pool_id", "pipeline_id", "run_id", "rank", "host", "device_id")


def run_parts(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Where did the rank time of a run go: its parts in seconds; no row without a step."""
    return _of_run(con, "run_parts", run_id, "run_id")


def rank_parts(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """The same for each rank of the run, with its bubble."""
    return _of_run(con, "run_rank_parts", run_id, "rank")


def device_parts(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """The same for each device that the run was given; no other device of its hosts."""
    return _of_run(con, "run_device_parts", run_id, "host, device_id")


def pool_parts(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """The same for each pool of devices, all runs together; pool_id None: no pool is told."""
    return plain_rows(con, "SELECT * FROM pool_parts ORDER BY pool_id NULLS LAST")


def day_parts(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """The same for each UTC day, all runs together, oldest first."""
    return plain_rows(con, "SELECT * FROM day_parts ORDER BY date_key")


def straggler_ranking(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Which rank did the others wait for, how often, how long, and why; the worst first."""
    return _of_run(con, "straggler_ranking", run_id, "waited_for_s DESC, num_last DESC, rank")


def collective_exposure(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """Which collectives did compute not cover; the most exposed first."""
    order = "exposed_s DESC NULLS LAST, kind, label"
    return _of_run(con, "collective_exposure", run_id, order)


def run_mfu(con: duckdb.DuckDBPyConnection, run_id: str) -> Row:
    """How much of the devices' peak did the model's operations use, or why nobody can tell.

    Raises WarehouseError when there is no such run.
    """
    return _one(_of_run(con, "run_mfu", run_id, "run_id"), "run", run_id)


def mfu_by(con: duckdb.DuckDBPyConnection, *dimensions: str) -> list[Row]:
    """Model FLOPs against the devices' peak, by any of DIMENSIONS; mfu_share None: no peak known.

    A row in which the peak of some rank is unknown has no share. Raises ValueError for another
    dimension.
    """
    sums = """
        sum(told_s) AS told_s, sum(model_flops) AS model_flops,
        CASE WHEN count(peak_flops) = count(*) THEN sum(peak_flops) END AS peak_flops,
        CASE WHEN count(peak_flops) = count(*)
            THEN sum(model_flops) / nullif(sum(peak_flops), 0)
        END AS mfu_share
    """
    return _by(con, "rank_day_mfu", dimensions, sums)


def energy_by(con: duckdb.DuckDBPyConnection, *dimensions: str) -> list[Row]:
    """Energy of recorded steps in joules, by any of DIMENSIONS; None where none is known.

    Raises ValueError for another dimension.
    """
    sums = """
        sum(window_s) AS window_s, sum(energy_observed_s) AS energy_observed_s,
        sum(energy_j) AS energy_j
    """
    return _by(con, "rank_day_energy", dimensions, sums)


def noise_scale(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """How noisy the run's gradients were: up to which batch size more samples still pay.

    No row for a run that did not measure it: one rank, balanced ranks, or a run of before.
    """
    return _of_run(con, "run_noise", run_id, "run_id")


def goodput(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> Row:
    """How much of a job's wall time went into steps that were kept; None when it is not told.

    Raises WarehouseError when there is no such pipeline.
    """
    query = "SELECT * FROM run_goodput WHERE pipeline_id = ?"
    return _one(plain_rows(con, query, [pipeline_id]), "pipeline", pipeline_id)


def badput_causes(con: duckdb.DuckDBPyConnection, pipeline_id: str) -> list[Row]:
    """What was a job's wall time lost to: nine causes that add up to it; none when not told."""
    query = "SELECT * FROM job_cause WHERE pipeline_id = ? ORDER BY cause_rank"
    return plain_rows(con, query, [pipeline_id])


def scaling(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """What is left of a rank's worth in every run comparable with this one, small to large."""
    query = """
        SELECT s.*
        FROM run_scaling AS s
        WHERE s.run_id = $run_id OR (s.scaling_kind, s.scaling_key, s.held_sequences) IN (
            SELECT (scaling_kind, scaling_key, held_sequences)
            FROM run_scaling
            WHERE run_id = $run_id AND scaling_key IS NOT NULL AND held_sequences IS NOT NULL
        )
        ORDER BY s.scaling_kind, s.world_size, s.run_id
    """
    return plain_rows(con, query, {"run_id": run_id})


def step_deviation(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Row]:
    """How many steps of a run took far longer than its usual one; no row without a whole step."""
    return _of_run(con, "step_deviation", run_id, "run_id")


def _of_run(con: duckdb.DuckDBPyConnection, view: str, run_id: str, order: str) -> list[Row]:
    # view and order are words of this module, never from outside
    query = f"SELECT * FROM {view} WHERE run_id = ? ORDER BY {order}"  # noqa: S608
    return plain_rows(con, query, [run_id])


def _by(
    con: duckdb.DuckDBPyConnection, view: str, dimensions: tuple[str, ...], sums: str
) -> list[Row]:
    for name in dimensions:
        if name not in DIMENSIONS:
            raise ValueError(f"'{name}' is no dimension of {view}; known are {DIMENSIONS}")
    names = ", ".join(dimensions)
    picked, grouped = (f"{names}, ", f"GROUP BY {names} ORDER BY {names}") if names else ("", "")
    return plain_rows(con, f"SELECT {picked}{sums} FROM {view} {grouped}")  # noqa: S608


def _one(rows: list[Row], kind: str, name: str) -> Row:
    if not rows:
        raise WarehouseError(
            f"{kind} {name}: there is no such {kind} in the warehouse. "
            "Run 'seqscale load --runs-dir DIR' on its runs folder, or name another one."
        )
    return rows[0]
