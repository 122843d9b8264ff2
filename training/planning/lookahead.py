"""Look-ahead: deal the sequences of a few consecutive global batches anew over these batches.

A batch that happens to hold much of the long histories cannot be balanced, while its neighbour
lacks them. Within a window of W batches the sequences are dealt so that every batch costs the same;
a sequence that is more than a rank's share of that raises its batch's target, and others like it
join it there, since a step waits for its slowest rank only once.

What it changes in the statistics: each sequence is still in each epoch once, and which ones share
a window is as random as before. Within the window the batches are stratified by cost: their events
vary less than in random batches, and long histories meet in a step less often (or, when longer than
a rank's share, more often) than chance would have it. So gradients of consecutive steps are not
exchangeable, and a noise scale must not be estimated on them (docs/definitions.md). It is a
property of the plan, the same for every arm; a window of 1 is no look-ahead.

Before: plan.py's seeded batches.   After: every arm's placement of the same batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from training.planning.balance import Floats

Ints = npt.NDArray[np.int64]
_ABOVE = 1.0 + 1e-9


def look_ahead(
    batches: Sequence[Ints],
    cost_N: Floats,
    *,
    num_ranks: int,
    window: int,
    rng: np.random.Generator,
    token_N: Ints | None = None,
    max_tokens: int | None = None,
) -> list[Ints]:
    """The batches of one epoch, dealt anew in windows of `window` of them; sizes stay.

    batches: sequences of each global batch; cost_N: cost of every sequence, by its number. Within
    a batch sequences keep the order they had in the window. A last window may have fewer batches.
    Where batches of equal cost would have more than max_tokens events (token_N: of every sequence),
    the window stays as it was.
    """
    if window == 1:
        return list(batches)
    dealt: list[Ints] = []
    for start in range(0, len(batches), window):
        group = list(batches[start : start + window])
        sizes = [len(batch) for batch in group]
        together_M = np.concatenate(group)
        batch_M = deal_evenly(cost_N[together_M], sizes, num_ranks)
        if max_tokens is not None and token_N is not None:
            tokens_W = np.bincount(batch_M, weights=token_N[together_M])
            if tokens_W.max() > max_tokens:
                dealt += group
                continue
        for number in _shuffled_within_sizes(sizes, rng):
            dealt.append(together_M[batch_M == number])
    return dealt


def deal_evenly(cost_M: Floats, sizes: Sequence[int], num_ranks: int) -> Ints:
    """The batch of each of M sequences so that each can be balanced; shape (M,).

    sizes: sequences of each batch, summing to M. Dearest first to the batch that lacks most cost of
    its target and has a seat; ties: the first batch.
    """
    dearest_first = np.argsort(-cost_M, kind="stable")
    sorted_M = cost_M[dearest_first]
    target_W = _targets(sorted_M, sizes, num_ranks)
    lacking = [(-float(target), batch) for batch, target in enumerate(target_W) if sizes[batch]]
    heapq.heapify(lacking)
    left = list(sizes)
    chosen: list[int] = []
    for cost in sorted_M.tolist():
        lack, batch = lacking[0]
        chosen.append(batch)
        left[batch] -= 1
        if left[batch]:
            heapq.heapreplace(lacking, (lack + cost, batch))
        else:
            heapq.heappop(lacking)
    batch_M = np.empty(len(cost_M), dtype=np.int64)
    batch_M[dearest_first] = chosen
    return batch_M


def _targets(sorted_M: Floats, sizes: Sequence[int], num_ranks: int) -> Floats:
    """What each batch shall cost: alike per sequence, but enough around giants; shape (W,).

    A batch whose dearest sequence is above a rank's share is to have num_ranks times that sequence,
    so that the other ranks have as much to do; up to num_ranks giants go to it.
    """
    target_W = np.zeros(len(sizes))
    open_batches = sorted(range(len(sizes)), key=lambda batch: -sizes[batch])
    cost, seats, first = float(sorted_M.sum()), sum(sizes), 0

    def share(batch: int) -> float:
        return cost * sizes[batch] / seats

    while len(open_batches) > 1:
        batch = open_batches[0]
        giants = sorted_M[first : first + min(num_ranks, sizes[batch])] * num_ranks
        num_giants = int((giants > share(batch) * _ABOVE).sum())
        if num_giants == 0:
            break
        target_W[batch] = min(float(giants[0]), cost)
        cost -= target_W[batch]
        seats -= sizes[batch]
        first += num_giants
        open_batches.pop(0)
    for batch in open_batches:
        target_W[batch] = share(batch) if seats else 0.0
    return target_W


def _shuffled_within_sizes(sizes: Sequence[int], rng: np.random.Generator) -> list[int]:
    """An order of the batches in which every place keeps its size.

    Else the batch with the giants would come first in every window.
    """
    order = np.arange(len(sizes))
    for size in sorted(set(sizes)):
        places = np.flatnonzero(np.array(sizes) == size)
        order[places] = rng.permutation(places)
    return [int(number) for number in order]
