"""How evenly a global batch lies on its ranks: loads, the bound, the share lost to the slowest.

Balance is judged by cost alone; t_step is the same on every rank (training/planning/cost.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int64]


def load_of_ranks(cost_N: Floats, rank_N: Ranks, num_ranks: int) -> Floats:
    """Summed cost of each rank; shape (num_ranks,)."""
    return np.bincount(rank_N, weights=cost_N, minlength=num_ranks).astype(np.float64)


def bound_load(cost_N: Floats, num_ranks: int) -> float:
    """The least largest load that any placement of whole sequences can have: max(largest, mean)."""
    if len(cost_N) == 0:
        return 0.0
    return max(float(cost_N.max()), float(cost_N.sum()) / num_ranks)


def straggler_share(load_SR: Sequence[Floats] | Floats) -> float | None:
    """Share of rank time lost to waiting for the slowest rank, 0..1.

    load_SR: shape (S, R), load of each rank in each step. Over steps it is a ratio of sums:
    1 - sum of means / sum of largest. None for one rank: it never waits.
    """
    load = np.asarray(load_SR, dtype=np.float64)
    if load.shape[1] < 2:
        return None
    largest = load.max(axis=1).sum()
    return 0.0 if largest == 0 else float(max(0.0, 1.0 - load.mean(axis=1).sum() / largest))


def bound_share(costs: Sequence[Floats], num_ranks: int) -> float | None:
    """The straggler share of placements that all reach their bound, 0..1; None for one rank.

    costs: of each global batch, the cost of its sequences. No placement of whole sequences has
    less on the same batches; other batches (look-ahead, cut giants) may.
    """
    if num_ranks < 2:
        return None
    mean = sum(float(cost_N.sum()) / num_ranks for cost_N in costs)
    bound = sum(bound_load(cost_N, num_ranks) for cost_N in costs)
    return max(0.0, 1.0 - mean / max(bound, 1e-300))
