"""The arithmetic of the benches: medians over steps, what is removed, intervals.

A run is blocks of steps; arms take turns block by block on the same batches. A figure of an arm is
the median over its blocks of each block's median step; spread is the least and the largest block.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FIRST_STEPS, LAST_STEPS = 2, 1  # of a block: the pipeline fills and drains; not counted
_NUM_DRAWS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure and how far its blocks lie apart."""

    middle: float
    low: float
    high: float


def counted(steps: Sequence[float]) -> list[float]:
    """The steps of a block that count: a full pipeline before and after them."""
    kept = list(steps)[FIRST_STEPS : len(steps) - LAST_STEPS]
    assert kept, "a block needs more steps than those that are not counted"
    return kept


def over_blocks(blocks: Sequence[Sequence[float]]) -> Spread:
    """Median over blocks of each block's median step, and the blocks' range."""
    medians = [statistics.median(counted(block)) for block in blocks]
    return Spread(middle=statistics.median(medians), low=min(medians), high=max(medians))


def removed_share(ours_s: float, baseline_s: float) -> float | None:
    """Share of the baseline's seconds that is gone, 1 - ours / baseline; None without any."""
    return 1.0 - ours_s / baseline_s if baseline_s > 0 else None


def interval_of_mean(values: npt.ArrayLike, *, seed: int = 1) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of blocks, each drawn with equal chance."""
    value_N = np.asarray(values, dtype=np.float64)
    drawn = value_N[_drawn(len(value_N), seed)].mean(axis=1)
    return _middle_95(drawn)


def interval_of_removed(
    ours: npt.ArrayLike, baseline: npt.ArrayLike, *, seed: int = 1
) -> tuple[float, float]:
    """95 % bootstrap interval of 1 - sum(ours) / sum(baseline); the same blocks of both drawn."""
    ours_N, baseline_N = (np.asarray(v, dtype=np.float64) for v in (ours, baseline))
    chosen = _drawn(len(ours_N), seed)
    return _middle_95(1.0 - ours_N[chosen].sum(axis=1) / baseline_N[chosen].sum(axis=1))


def per_cent(share: float | None, digits: int = 1) -> str:
    """A share as a cell of a table."""
    return "-" if share is None else f"{share:.{digits}%}"


def milliseconds(seconds: float | None, digits: int = 1) -> str:
    """Seconds as a cell of a table of milliseconds."""
    return "-" if seconds is None else f"{1e3 * seconds:.{digits}f}"


def _drawn(num_blocks: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, num_blocks, (_NUM_DRAWS, num_blocks))


def _middle_95(drawn: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
