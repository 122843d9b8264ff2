"""Which rank holds which sequence of a global batch, and how good a placement is.

A placement is a permutation: every sequence of the batch on exactly one rank. Balance is judged by
cost alone; t_step is the same on every rank (training/planning/cost.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int64]


def random_equal(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Random placement, counts equal within one; returns the rank of each sequence, shape (N,).

    What a shuffling data loader does. When N is no multiple of the ranks, the ranks that hold one
    more are drawn too, so that a short batch does not always load the first ranks.
    """
    seats_N = np.arange(len(cost_N)) % num_ranks
    relabel_R = rng.permutation(num_ranks)
    rank_N: Ranks = relabel_R[rng.permutation(seats_N)].astype(np.int64)
    return rank_N


def lpt_free(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Longest processing time first, free counts; returns the rank of each sequence, shape (N,).

    Each sequence, dearest first, goes to the rank with the least load so far (ties: lowest rank).
    Graham 1969: at most 4/3 - 1/(3 num_ranks) of the best possible largest load.
    """
    del rng  # nothing is drawn
    rank_N = np.empty(len(cost_N), dtype=np.int64)
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for index in np.argsort(-cost_N, kind="stable"):
        load, rank = loads[0]
        rank_N[index] = rank
        heapq.heapreplace(loads, (load + float(cost_N[index]), rank))
    return rank_N


PLACEMENT_FUNCTIONS: dict[str, Callable[[Floats, int, np.random.Generator], Ranks]] = {
    "random_equal": random_equal,
    "lpt_free": lpt_free,
}


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
