"""How uneven histories are in length: quantiles, histogram, tail, and what padding would waste.

Before: a store's training lengths.   After: profile.py; what it publishes went through
group_size.py.
Price: one sort of the users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.group_size import group_quantiles, merged_bins, rounded_up

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
LONGEST_SHARE = 0.01
_LEAST_TAIL_USERS = 50  # a Hill estimate over k users is off by about 1/sqrt(k): 14 %
_LEAST_THRESHOLD = 10  # events; below, whole numbers are too coarse for a continuous law
_MOST_AT_TOP = 0.1  # of the tail at one longest value: the histories were cut off there
_MOST_DRIFT = 3.0  # standard errors between the estimates over k and k/2 users
_PADDED_SEQUENCES = 1 << 21  # sequences drawn for one padding share
_MOST_PADDED_BATCHES = 2048


def length_profile(length_U: Ints, *, min_group_users: int) -> dict[str, Any] | None:
    """What may be told of history lengths; None for fewer users than the minimum group.

    length_U: events per user, shape (num_users,). histogram: users and events with a length in
    [from, to), bounds are powers of two. The longest 1 % are at least a minimum group.
    """
    num_users = len(length_U)
    if num_users < min_group_users:
        return None
    ordered_U = np.sort(length_U)[::-1].astype(np.float64)
    num_longest = min(max(round(num_users * LONGEST_SHARE), min_group_users, 1), num_users)
    quantiles = group_quantiles(length_U, QUANTILES, min_group_users)
    bins = length_bins(length_U)
    merged = merged_bins(bins, min_group_users)
    longest = rounded_up(ordered_U[0])
    return {
        "num_users": num_users,
        "quantiles": None
        if quantiles is None
        else {f"{q:g}": value for q, value in zip(QUANTILES, quantiles, strict=True)},
        "mean": float(length_U.mean()),
        "longest_rounded_up": longest,
        "num_longest": num_longest,
        "longest_event_share": share(ordered_U[:num_longest].sum(), ordered_U.sum()),
        "longest_pair_share": share((ordered_U[:num_longest] ** 2).sum(), (ordered_U**2).sum()),
        "padded_to_longest_share": 1.0 - share(ordered_U.sum(), longest * num_users),
        "tail": tail_index(length_U, min_group_users=min_group_users),
        "histogram": merged,
        "num_merged_bins": len(bins) - len(merged),
    }


def length_bins(length_U: Ints) -> list[dict[str, Any]]:
    """Users and events by length, in bins [0, 1), [1, 2), [2, 4), [4, 8) ...; empty bins left out.

    length_U: events per user, shape (num_users,). The true counts, to be merged before they leave.
    """
    # 0 -> 0, 1 -> 1, 2..3 -> 2, 4..7 -> 3: exact, as a float holds these whole numbers
    power_U = np.frexp(length_U.astype(np.float64))[1]
    user_B = np.bincount(power_U)
    event_B = np.bincount(power_U, weights=length_U)
    return [
        {
            "from": 0 if power == 0 else 1 << (int(power) - 1),
            "to": 1 << int(power),
            "num_users": int(user_B[power]),
            "num_events": int(event_B[power]),
        }
        for power in np.flatnonzero(user_B)
    ]


def tail_index(length_U: Ints, *, min_group_users: int = 1) -> dict[str, Any]:
    """The tail index of lengths by Hill's estimator, or the reason why there is none to defend.

    length_U: events per user, shape (num_users,). P(length > x) ~ x^-index far out: below 2 the
    lengths have no finite variance, below 1 no finite mean. Over the k longest histories
    index = 1 / mean(ln(length / threshold)), the threshold being the next shorter history (Hill
    1975, A simple general approach to inference about the tail of a distribution).
    k is 1 % of the users, but at least 50 and a minimum group, and at most 10 %.
    """
    num_tail = max(round(len(length_U) * 0.01), _LEAST_TAIL_USERS, min_group_users)
    found: dict[str, Any] = {"index": None, "error": None, "num_users": num_tail, "reason": None}
    if num_tail > len(length_U) // 10:
        return found | {"reason": f"{num_tail} users would be more than a tenth of all"}
    longest_K = np.partition(length_U, -num_tail - 1)[-num_tail - 1 :]
    tail_K: Floats = np.sort(longest_K)[::-1].astype(np.float64)
    threshold = tail_K[-1]
    if threshold < _LEAST_THRESHOLD:
        return found | {"reason": f"the tail begins below {_LEAST_THRESHOLD} events"}
    if (tail_K[:-1] == tail_K[0]).mean() > _MOST_AT_TOP:
        return found | {"reason": "many histories share the longest length: they were cut there"}
    index = _hill(tail_K)
    half = _hill(tail_K[: num_tail // 2 + 1])
    error = index / np.sqrt(num_tail)  # also of the difference to the nested estimate over k/2
    if not np.isfinite(index) or abs(half - index) > _MOST_DRIFT * error:
        return found | {"reason": "it changes with the number of users taken: no power law"}
    return found | {"index": float(index), "error": float(error)}


def padding_share(length_U: Ints, *, batch_sequences: int, seed: int) -> float | None:
    """Share of the places that would hold padding if each random batch were padded to its longest.

    length_U: events per user, shape (num_users,). Batches are parts of seeded permutations;
    1 - sum of lengths / sum of places, over at most 2,048 batches. None when a batch would hold
    more than half of the users: then it tells of its longest alone.
    """
    per_pass = len(length_U) // batch_sequences
    if per_pass < 2:
        return None
    num_batches = max(20, min(_MOST_PADDED_BATCHES, _PADDED_SEQUENCES // batch_sequences))
    rng = np.random.default_rng([seed, batch_sequences, 3])
    num_events = num_places = num_done = 0
    while num_done < num_batches:
        length_BS = rng.permutation(length_U)[: per_pass * batch_sequences]
        length_BS = length_BS.reshape(per_pass, batch_sequences)[: num_batches - num_done]
        num_events += int(length_BS.sum())
        num_places += int(length_BS.max(axis=1).sum()) * batch_sequences
        num_done += len(length_BS)
    return 1.0 - share(num_events, num_places)


def share(part: float, whole: float) -> float:
    """Part of a whole, 0 of nothing."""
    return float(part) / float(whole) if whole else 0.0


def _hill(tail_K: Floats) -> float:
    """Hill's estimate; tail_K: lengths, longest first, the last being the threshold."""
    mean_log = float(np.log(tail_K[:-1] / tail_K[-1]).mean())
    return 1.0 / mean_log if mean_log > 0 else float("inf")
