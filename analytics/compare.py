"""Compares two arms of a pipeline block by block, each figure with a 95 % bootstrap interval.

Both arms ran the same global batches, interleaved in blocks of steps, so block k of one arm and
block k of the other hold the same work and met nearly the same machine noise: they are a pair, and
pairs are what is resampled.

Before: view run_block.   After: the receipt and the dashboard.
Price: 2,000 resamples as one matrix product, milliseconds for thousands of blocks.
"""

from __future__ import annotations

import dataclasses

import duckdb
import numpy as np
import numpy.typing as npt

from analytics.errors import WarehouseError

NUM_RESAMPLES = 2_000
_CONFIDENCE_SHARE = 0.95
_CHUNK = 250  # resamples at once, so that 100,000 blocks need 200 MB

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and its 95 % interval; None where it is undefined."""

    value: float | None
    lower: float | None
    upper: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """What the candidate did relative to the baseline, over the blocks both ran; JSON-able.

    Ratios are candidate / baseline of sums over blocks: below 1 the candidate is better.
    """

    pipeline_id: str
    baseline: str
    candidate: str
    num_blocks: int
    num_steps: int
    straggler_wait_ratio: Estimate  # seconds blocked before the last rank arrived
    cpu_imbalance_ratio: Estimate  # sum over steps of largest - mean CPU time of the ranks
    step_time_ratio: Estimate
    bubble_reduction_share: Estimate  # 1 - bubble seconds(candidate) / bubble seconds(baseline)


def compare_arms(
    con: duckdb.DuckDBPyConnection,
    pipeline_id: str,
    *,
    baseline: str = "baseline",
    candidate: str = "balanced",
    seed: int = 0,
) -> ArmComparison:
    """Compare two arms over the blocks of steps that both recorded whole.

    With no common block every figure is None; with one block there is a figure but no interval.
    Raises WarehouseError when the pipeline has no such arm.
    """
    _check_arms(con, pipeline_id, (baseline, candidate))
    rows = con.execute(_PAIRS, [pipeline_id, baseline, pipeline_id, candidate]).fetchall()
    table = np.array([[np.nan if v is None else v for v in row[1:]] for row in rows], dtype=float)
    table = table.reshape(len(rows), 9)
    ratios = [ratio_of_sums(table[:, 2 * k], table[:, 2 * k + 1], seed=seed) for k in range(4)]
    wait, imbalance, window, bubble = ratios
    return ArmComparison(
        pipeline_id=pipeline_id,
        baseline=baseline,
        candidate=candidate,
        num_blocks=len(rows),
        num_steps=int(table[:, 8].sum()),
        straggler_wait_ratio=wait,
        cpu_imbalance_ratio=imbalance,
        step_time_ratio=window,
        bubble_reduction_share=_one_minus(bubble),
    )


def ratio_of_sums(candidate_B: Floats, baseline_B: Floats, *, seed: int) -> Estimate:
    """sum(candidate) / sum(baseline) over B pairs, with a 95 % percentile bootstrap interval.

    NaN in either means not measured: the figure is None. A baseline that sums to 0 has no ratio;
    one that does so in some resample has no interval. Deterministic for a seed.
    """
    num = len(baseline_B)
    if num == 0 or np.isnan(candidate_B).any() or np.isnan(baseline_B).any():
        return Estimate(value=None, lower=None, upper=None)
    if baseline_B.sum() <= 0:
        return Estimate(value=None, lower=None, upper=None)
    value = float(candidate_B.sum() / baseline_B.sum())
    if num < 2:
        return Estimate(value=value, lower=None, upper=None)
    pairs_B2 = np.stack([candidate_B, baseline_B], axis=1)
    sums_R2 = _resampled_sums(pairs_B2, np.random.default_rng(seed))
    if (sums_R2[:, 1] <= 0).any():
        return Estimate(value=value, lower=None, upper=None)
    tail = (1 - _CONFIDENCE_SHARE) / 2
    lower, upper = np.quantile(sums_R2[:, 0] / sums_R2[:, 1], [tail, 1 - tail])
    return Estimate(value=value, lower=float(lower), upper=float(upper))


def _resampled_sums(pairs_B2: Floats, rng: np.random.Generator) -> Floats:
    """Sums over blocks drawn with replacement, (R, 2): how often each was drawn, times pairs."""
    num = len(pairs_B2)
    even_B = np.full(num, 1 / num)
    chunks = [
        rng.multinomial(num, even_B, size=_CHUNK).astype(np.float64) @ pairs_B2
        for _ in range(NUM_RESAMPLES // _CHUNK)
    ]
    return np.concatenate(chunks)


def _one_minus(ratio: Estimate) -> Estimate:
    """1 - ratio; the ends of the interval change places."""

    def flip(value: float | None) -> float | None:
        return None if value is None else 1 - value

    return Estimate(value=flip(ratio.value), lower=flip(ratio.upper), upper=flip(ratio.lower))


def _check_arms(con: duckdb.DuckDBPyConnection, pipeline_id: str, wanted: tuple[str, ...]) -> None:
    rows = con.execute(
        "SELECT arm FROM dim_run WHERE pipeline_id = ? ORDER BY arm", [pipeline_id]
    ).fetchall()
    arms = [row[0] for row in rows]
    for arm in wanted:
        if arm not in arms:
            raise WarehouseError(
                f"pipeline {pipeline_id}: there is no arm '{arm}' in the warehouse; there are "
                f"{', '.join(arms) or 'none'}. "
                "Run 'seqscale load --runs-dir DIR' on its runs folder, or name another arm."
            )


# One row per block that both arms recorded with the same complete steps.

_PAIRS = """
SELECT
    theirs.block,
    ours.straggler_wait_s,
    theirs.straggler_wait_s,
    CASE WHEN ours.world_size > 1 THEN ours.cpu_imbalance_s END,
    CASE WHEN theirs.world_size > 1 THEN theirs.cpu_imbalance_s END,
    ours.window_s,
    theirs.window_s,
    ours.bubble_s,
    theirs.bubble_s,
    theirs.num_block_steps
FROM (SELECT * FROM run_block WHERE pipeline_id = ? AND arm = ?) AS theirs
INNER JOIN (SELECT * FROM run_block WHERE pipeline_id = ? AND arm = ?) AS ours
    ON theirs.block = ours.block
    AND theirs.first_step = ours.first_step
    AND theirs.last_step = ours.last_step
    AND theirs.num_block_steps = ours.num_block_steps
ORDER BY theirs.block
"""
