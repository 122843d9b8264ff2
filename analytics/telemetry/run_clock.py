"""Fits the clock of imported samples to the steps of the run they were taken in.

The offset is one for the whole log and is taken off every time. The rate at which the clocks drift
apart is told where it can be, and taken off no time.

Before: the samples lie in the landing tables, the run's steps in the published warehouse.
After: the samples' times are those of the run's clock, and the import tells by how much.
Price: reads the run's steps once; a log is fitted as a whole, by its device that moves the most.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import duckdb
import numpy as np

from analytics.errors import WarehouseError
from analytics.telemetry.clock_offset import ClockOffset, estimate_offset
from analytics.telemetry.clock_skew import ClockSkew, estimate_skew
from analytics.warehouse import open_published

MOST_OFFSET_NS = 6 * 3600 * 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedClock:
    """How far a log's clock was ahead of the run's, and how much faster it ran where that shows."""

    offset: ClockOffset
    skew: ClockSkew | None

    def note(self) -> str | None:
        """What a person should know of the rate: it moves times by more than the offset's error."""
        if self.skew is None or self.skew.drift_ns <= self.offset.uncertainty_ns:
            return None
        pace = "faster" if self.skew.skew_ppm > 0 else "slower"
        return (
            f"The log's clock ran {abs(self.skew.skew_ppm):.1f} ppm {pace} than the run's (error "
            f"{self.skew.uncertainty_ppm:.1f} ppm), {self.skew.drift_ns / 1e9:.1f} s over the log. "
            "One offset was taken off all of it, which leaves its ends wrong by up to half of "
            "that; import shorter pieces with --estimate-clock where this matters."
        )


def fit_to_run(
    con: duckdb.DuckDBPyConnection, runs_dir: Path, pipeline_id: str
) -> FittedClock | None:
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
    sampled = np.array([row[0] for row in found], dtype=np.int64)
    figures = np.array([row[1] for row in found], dtype=np.float64)
    offset = estimate_offset(times, shares, sampled, figures, most_ns=MOST_OFFSET_NS)
    if offset is None:
        return None
    con.execute(
        "UPDATE fact_device_sample SET sampled_unix_ns = sampled_unix_ns - ?", [offset.offset_ns]
    )
    return FittedClock(offset=offset, skew=estimate_skew(times, shares, sampled, figures, offset))


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
