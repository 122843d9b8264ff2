"""Longest processing time first (LPT): the dearest sequence goes to the rank with the least load.

Three forms: free counts, equal counts, and a fast one for large global batches that deals most
sequences by array operations. One global batch of 64 ranks x 512: bench/planning.py.

Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies.
"""

from __future__ import annotations

import heapq

import numpy as np

from training.planning.balance import Floats, Ranks, bound_load, load_of_ranks

_AT_BOUND = 1.0 + 1e-12  # of the bound: no placement is better
_FAST_FROM = 4096  # sequences; below, the heap takes under 4 ms
_FAST_AT_BOUND = 1.0 + 1e-5  # of the bound: far below what any cost model knows
_HEAD_PER_RANK = 32  # of the dearest sequences, dealt one by one
_RESERVE_PER_RANK = 32  # of the others, kept back to level the ranks


def lpt_free(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Longest first, free counts; returns the rank of each sequence, shape (N,).

    Never worse than lpt_equal by largest load, by construction: where it misses the bound the
    equal-count placement is tried as well and the better one kept. (Greedy need not gain from more
    freedom, though in 340,000 random small batches it never lost.) From 4,096 sequences on lpt_fast
    is tried first, and kept when it is within 1e-5 of the bound. Draws nothing.
    Graham 1969: at most 4/3 - 1/(3 num_ranks) of the best possible largest load.
    """
    bound = bound_load(cost_N, num_ranks)
    is_large = len(cost_N) >= _FAST_FROM
    enough = bound * (_FAST_AT_BOUND if is_large else _AT_BOUND)
    best_N, least = np.zeros(0, dtype=np.int64), np.inf
    for place in (lpt_fast, _lpt, lpt_equal) if is_large else (_lpt, lpt_equal):
        rank_N = place(cost_N, num_ranks, rng)
        largest = float(load_of_ranks(cost_N, rank_N, num_ranks).max())
        if largest < least:
            best_N, least = rank_N, largest
        if least <= enough:
            break
    return best_N


def lpt_equal(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Longest first, counts equal within one; returns the rank of each sequence, shape (N,).

    A rank whose seats are taken gets no more; the N mod num_ranks seats that are over go to the
    ranks that ask first. Ties: lowest rank. Draws nothing.
    """
    del rng
    least, extra = divmod(len(cost_N), num_ranks)
    dearest_first = np.argsort(-cost_N, kind="stable")
    ranks: list[int] = []
    loads = [(0.0, rank) for rank in range(num_ranks)]
    count = [0] * num_ranks
    for cost in cost_N[dearest_first].tolist():
        load, rank = loads[0]
        while count[rank] >= least:  # full, unless a seat is over
            if count[rank] == least and extra > 0:
                extra -= 1
                break
            heapq.heappop(loads)
            load, rank = loads[0]
        ranks.append(rank)
        count[rank] += 1
        heapq.heapreplace(loads, (load + cost, rank))
    rank_N = np.empty(len(cost_N), dtype=np.int64)
    rank_N[dearest_first] = ranks
    return rank_N


def lpt_fast(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Longest first for large batches, free counts; returns the rank of each sequence, shape (N,).

    The dearest 32 a rank are dealt by a heap. Of the others 32 a rank, evenly spaced by cost, are
    kept back; the rest, strided so that every run of them holds long and short ones alike, is cut
    into one run a rank, as long as brings all ranks to one level. Those kept back then level what
    is left, by the heap. A batch of up to 64 a rank is dealt by the heap alone. Draws nothing.
    """
    num_sequences = len(cost_N)
    num_head, num_reserve = _HEAD_PER_RANK * num_ranks, _RESERVE_PER_RANK * num_ranks
    if num_sequences <= num_head + num_reserve:
        return _lpt(cost_N, num_ranks, rng)
    dearest_first = np.argsort(-cost_N, kind="stable")
    sorted_N = cost_N[dearest_first]
    rank_N = np.empty(num_sequences, dtype=np.int64)
    load_R = np.zeros(num_ranks)
    rank_N[:num_head] = _deal(sorted_N[:num_head], load_R)
    every = -(-(num_sequences - num_head) // num_reserve)
    is_kept_N = np.zeros(num_sequences, dtype=np.bool_)
    is_kept_N[num_head + every // 2 :: every] = True
    bulk, kept = np.flatnonzero(~is_kept_N)[num_head:], np.flatnonzero(is_kept_N)
    strided = np.concatenate([bulk[start::num_ranks] for start in range(num_ranks)])
    run_N = _cut_into_runs(sorted_N[strided], load_R, later=float(sorted_N[kept].sum()))
    rank_N[strided] = run_N
    load_R += load_of_ranks(sorted_N[strided], run_N, num_ranks)
    rank_N[kept] = _deal(sorted_N[kept], load_R)
    placed_N = np.empty_like(rank_N)
    placed_N[dearest_first] = rank_N
    return placed_N


def _lpt(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Graham's rule itself; ties go to the lowest rank."""
    del rng
    dearest_first = np.argsort(-cost_N, kind="stable")
    rank_N = np.empty(len(cost_N), dtype=np.int64)
    rank_N[dearest_first] = _deal(cost_N[dearest_first], np.zeros(num_ranks))
    return rank_N


def _deal(sorted_N: Floats, load_R: Floats) -> Ranks:
    """Each to the rank with the least load so far, in the order given; updates load_R."""
    loads = [(load, rank) for rank, load in enumerate(load_R.tolist())]
    heapq.heapify(loads)
    ranks: list[int] = []
    replace = heapq.heapreplace
    for cost in sorted_N.tolist():
        load, rank = loads[0]
        ranks.append(rank)
        replace(loads, (load + cost, rank))
    for load, rank in loads:
        load_R[rank] = load
    return np.array(ranks, dtype=np.int64)


def _cut_into_runs(cost_N: Floats, load_R: Floats, *, later: float) -> Ranks:
    """Consecutive sequences to each rank, so many as lift all ranks towards one level.

    later: cost still to come after these; the level counts it in. A rank above it gets none.
    """
    total = float(cost_N.sum())
    missing_R = np.maximum(_level(load_R, total + later) - load_R, 0.0)
    edge_R = np.cumsum(missing_R)
    if edge_R[-1] == 0.0:  # every cost is zero
        return np.arange(len(cost_N), dtype=np.int64) % len(load_R)
    middle_N = np.cumsum(cost_N) - cost_N / 2
    end_R = np.searchsorted(middle_N, edge_R * (total / edge_R[-1]))
    end_R[np.flatnonzero(missing_R)[-1] :] = len(cost_N)  # rounding must not lose the last
    return np.repeat(np.arange(len(load_R)), np.diff(end_R, prepend=0))


def _level(load_R: Floats, amount: float) -> float:
    """The height to which `amount` fills the ranks that lie lowest."""
    sorted_R = np.sort(load_R)
    heights_R = (np.cumsum(sorted_R) + amount) / np.arange(1, len(sorted_R) + 1)
    # with the k lowest filled the level must not lie above the next one
    above_R = np.append(sorted_R[1:], np.inf)
    return float(heights_R[np.flatnonzero(heights_R <= above_R)[0]])
