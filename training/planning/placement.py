"""Which rank holds which sequence of a global batch: every placement by its name.

A placement is a permutation: every sequence of the batch on exactly one rank. How good one is:
balance.py; a limit of events a rank: memory.py; which sequences share a batch: lookahead.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from training.planning.balance import (
    Floats,
    Ranks,
    bound_load,
    bound_share,
    load_of_ranks,
    straggler_share,
)
from training.planning.karmarkar_karp import karmarkar_karp
from training.planning.longest_first import lpt_equal, lpt_fast, lpt_free

__all__ = [
    "PLACEMENT_FUNCTIONS",
    "Place",
    "bound_load",
    "bound_share",
    "karmarkar_karp",
    "load_of_ranks",
    "lpt_equal",
    "lpt_fast",
    "lpt_free",
    "random_equal",
    "serpentine",
    "straggler_share",
]

Place = Callable[[Floats, int, np.random.Generator], Ranks]


def random_equal(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Random placement, counts equal within one; returns the rank of each sequence, shape (N,).

    What a shuffling data loader does. When N is no multiple of the ranks, the ranks that hold one
    more are drawn too, so that a short batch does not always load the first ranks.
    """
    seats_N = np.arange(len(cost_N)) % num_ranks
    relabel_R = rng.permutation(num_ranks)
    rank_N: Ranks = relabel_R[rng.permutation(seats_N)].astype(np.int64)
    return rank_N


def serpentine(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Dealt by length to and fro, counts equal within one; the rank of each sequence, shape (N,).

    The dearest go to ranks 0, 1, .. R-1, the next to R-1, .. 1, 0, and so on. Draws nothing.
    """
    del rng
    row_N, column_N = np.divmod(np.arange(len(cost_N)), num_ranks)
    rank_N = np.empty(len(cost_N), dtype=np.int64)
    rank_N[np.argsort(-cost_N, kind="stable")] = np.where(
        row_N % 2 == 0, column_N, num_ranks - 1 - column_N
    )
    return rank_N


PLACEMENT_FUNCTIONS: dict[str, Place] = {
    "random_equal": random_equal,
    "serpentine": serpentine,
    "lpt_equal": lpt_equal,
    "lpt_free": lpt_free,
    "lpt_fast": lpt_fast,
    "karmarkar_karp": karmarkar_karp,
}
