"""A second limit beside cost: no rank may hold more events than its memory takes.

Whether sequences fit at all is bin packing, so no rule finds every placement that fits in bounded
time. In turn: the placement itself; what is too much moved to ranks with room; longest first with
room; most events first where least room is left; and for what is left a search of bounded length.

Before: placement.py balances cost.   After: plan.py, one global batch after another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analytics.errors import PlanError
from training.planning.balance import Floats, Ranks, load_of_ranks
from training.planning.placement import Place

Ints = npt.NDArray[np.int64]
_SEARCH_NODES = 100_000  # about a tenth of a second
_LIMIT = "--max-tokens-per-rank (max_tokens_per_rank)"


def place_within_tokens(
    place: Place,
    cost_N: Floats,
    token_N: Ints,
    num_ranks: int,
    rng: np.random.Generator,
    *,
    max_tokens: int,
) -> Ranks:
    """`place`, but with at most `max_tokens` events on any rank; the rank of each, shape (N,).

    token_N: events of each sequence, shape (N,). Where `place` itself fits it stays as it is; else
    counts need no longer be equal, and of the placements found the one with the least largest load
    is taken.
    Raises PlanError when a sequence is larger, the batch is too large, or no placement is found.
    """
    _check_totals(token_N, num_ranks, max_tokens)
    rank_N = place(cost_N, num_ranks, rng)
    over_N = load_of_ranks(token_N.astype(np.float64), rank_N, num_ranks)[rank_N] > max_tokens
    if not over_N.any():
        return rank_N
    dearest_first = np.argsort(-cost_N, kind="stable")
    alone = np.full(len(cost_N), -1, dtype=np.int64)
    found = [
        _with_room(dearest_first, start_N, cost_N, token_N, num_ranks, max_tokens)
        for start_N in (_without_excess(rank_N, cost_N, token_N, num_ranks, max_tokens), alone)
    ]
    fitting = [rank_N for rank_N in found if rank_N is not None]
    if fitting:
        return min(fitting, key=lambda r_N: float(load_of_ranks(cost_N, r_N, num_ranks).max()))
    packed_N = _packed(token_N, num_ranks, max_tokens)
    if packed_N is None:
        raise PlanError(
            f"No placement was found of {len(token_N)} sequences with {int(token_N.sum()):,} "
            f"events on {num_ranks} ranks of at most {max_tokens:,} each. Raise {_LIMIT} a little "
            "or lower --batch."
        )
    return packed_N


def _check_totals(token_N: Ints, num_ranks: int, max_tokens: int) -> None:
    largest, total = int(token_N.max(initial=0)), int(token_N.sum())
    if largest > max_tokens:
        raise PlanError(
            f"A sequence has {largest:,} events, more than the {max_tokens:,} that a rank may "
            f"hold. Raise {_LIMIT} to at least {largest}, lower max_length, or let --cut-giants "
            "(split_giants) cut it."
        )
    if total > num_ranks * max_tokens:
        raise PlanError(
            f"A global batch has {total:,} events, more than {num_ranks} ranks of at most "
            f"{max_tokens:,} each hold ({num_ranks * max_tokens:,}). Raise {_LIMIT} to at least "
            f"{-(-total // num_ranks)}, lower --batch or raise --ranks."
        )


def _without_excess(
    rank_N: Ranks, cost_N: Floats, token_N: Ints, num_ranks: int, max_tokens: int
) -> Ranks:
    """Take from ranks that hold too much, cheapest first, until they fit; those taken are -1."""
    kept_N = rank_N.copy()
    token_R = load_of_ranks(token_N.astype(np.float64), rank_N, num_ranks)
    for rank in np.flatnonzero(token_R > max_tokens):
        mine = np.flatnonzero(rank_N == rank)
        mine = mine[np.argsort(cost_N[mine], kind="stable")]
        taken = np.cumsum(token_N[mine]) - token_N[mine] < token_R[rank] - max_tokens
        kept_N[mine[taken]] = -1
    return kept_N


def _with_room(
    dearest_first: Ints,
    start_N: Ranks,
    cost_N: Floats,
    token_N: Ints,
    num_ranks: int,
    max_tokens: int,
) -> Ranks | None:
    """Those at -1 in start_N, dearest first, to the least load with room; None without room."""
    rank_N = start_N.copy()
    is_set_N = start_N >= 0
    load_R = load_of_ranks(cost_N[is_set_N], start_N[is_set_N], num_ranks)
    tokens = token_N[is_set_N].astype(np.float64)
    room_R = max_tokens - load_of_ranks(tokens, start_N[is_set_N], num_ranks)
    for index in dearest_first[~is_set_N[dearest_first]]:
        rank = int(np.argmin(np.where(room_R >= token_N[index], load_R, np.inf)))
        if room_R[rank] < token_N[index]:
            return None
        rank_N[index] = rank
        load_R[rank] += cost_N[index]
        room_R[rank] -= token_N[index]
    return rank_N


def _packed(token_N: Ints, num_ranks: int, max_tokens: int) -> Ranks | None:
    """Any placement that fits: most events first where least room is left, with going back.

    Depth-first; ranks with equal room are tried once. None when there is none, or when none was
    found in _SEARCH_NODES tries (four a sequence when that is more).
    """
    order = np.argsort(-token_N, kind="stable").tolist()
    size = [int(token_N[index]) for index in order]
    room = [max_tokens] * num_ranks
    chosen: list[int] = []
    choices = [_choices(room, size[0])] if size else []
    for _ in range(max(_SEARCH_NODES, 4 * len(size))):
        if len(chosen) == len(size):
            rank_N = np.empty(len(size), dtype=np.int64)
            rank_N[order] = chosen
            return rank_N
        if not choices[-1]:
            choices.pop()
            if not chosen:
                return None
            rank = chosen.pop()
            room[rank] += size[len(chosen)]
            continue
        rank = choices[-1].pop()
        room[rank] -= size[len(chosen)]
        chosen.append(rank)
        if len(chosen) < len(size):
            choices.append(_choices(room, size[len(chosen)]))
        else:
            choices.append([])
    return None


def _choices(room: list[int], size: int) -> list[int]:
    """One rank of each distinct room that is enough, the tightest last."""
    distinct = {left: rank for rank, left in reversed(list(enumerate(room))) if left >= size}
    return [distinct[left] for left in sorted(distinct, reverse=True)]
