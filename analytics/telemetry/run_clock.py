"""Fits the clock of imported samples to the steps of the run they were taken in.

Before: the samples lie in the landing tables, the run's steps in the published warehouse.
After: the samples' times are those of the run's clock, and the import tells by how much.
Price: reads the run's steps once; a log is fitted as a whole, by its device that moves the most.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np

from analytics.errors import WarehouseError
from analytics.telemetry.clock_offset import ClockOffset, estimate_offset
from analytics.warehouse import open_published

MOST_OFFSET_NS = 6 * 3600 * 10**9


def fit_to_run(
    con: duckdb.DuckDBPyConnection, runs_dir: Path, pipeline_id: str
) -> ClockOffset | None:
    """Shift the samples in `con` onto the clock of a run; None, and no shift, if nothing decides.

    Raises WarehouseError when the warehouse has no step of this run.
    """
    with open_published(runs_dir) as published:
        steps = published.execute(
            "SELECT started_unix_ns, max(window_s), sum(busy_s) / nullif(sum(window_s), 0) "
            "FROM fact_step WHERE pipeline_id = ? GROUP BY started_unix_ns ORDER BY 1",
            [pipeline_id],
        ).fetchall()
    if not steps:
        raise WarehouseError(
            f"{runs_dir}: the warehouse has no step of {pipeline_id}, to which the clock could be "
            f"fitted. Run 'seqscale load --runs-dir {runs_dir}' first, or leave --estimate-clock "
            "out."
        )
    found = con.execute(
        "WITH figures AS (SELECT host, device_id, sampled_unix_ns AS t, "
        "coalesce(utilization_share, engine_active_share, power_w) AS v FROM fact_device_sample), "
        "liveliest AS (SELECT host, device_id FROM figures WHERE v IS NOT NULL "
        "GROUP BY ALL ORDER BY stddev_pop(v) DESC, 1, 2 LIMIT 1) "
        "SELECT t, max(v) FROM figures JOIN liveliest USING (host, device_id) "
        "WHERE v IS NOT NULL GROUP BY t ORDER BY t"
    ).fetchall()
    times, shares = _as_signal(steps)
    offset = estimate_offset(
        times,
        shares,
        np.array([row[0] for row in found], dtype=np.int64),
        np.array([row[1] for row in found], dtype=np.float64),
        most_ns=MOST_OFFSET_NS,
    )
    if offset is not None:
        con.execute(
            "UPDATE fact_device_sample SET sampled_unix_ns = sampled_unix_ns - ?",
            [offset.offset_ns],
        )
    return offset


def _as_signal(
    steps: list[tuple[int, float, float]],
) -> tuple[np.typing.NDArray[np.int64], np.typing.NDArray[np.float64]]:
    """Busy shares that hold from each step's start, and 0 from its end where no step follows."""
    points: dict[int, float] = {}
    for begin, window_s, share in steps:
        points[begin] = share or 0.0
        points.setdefault(begin + round(window_s * 1e9), 0.0)
    # before and after the run nothing of it is busy
    ordered = sorted(points.items())
    edge = 60 * 10**9
    ordered = [(ordered[0][0] - edge, 0.0), *ordered, (ordered[-1][0] + edge, 0.0)]
    return (
        np.array([time for time, _ in ordered], dtype=np.int64),
        np.array([value for _, value in ordered], dtype=np.float64),
    )
