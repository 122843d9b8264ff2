"""How much time lies between the events of a user, and how many events share a moment.

Before: a store's times.   After: profile.py; what it publishes went through group_size.py.
Price: at most 16 million gaps in memory, about half a GiB; of larger data a draw of users.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.batches import event_positions
from analytics.group_size import check_group_users
from analytics.lengths import share
from analytics.store import SequenceStore

Ints = npt.NDArray[np.int64]

GAP_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_MOST_GAPS = 1 << 24
_US = 1e6


def gap_profile(
    store: SequenceStore, *, seed: int, min_group_users: int, most_gaps: int = _MOST_GAPS
) -> dict[str, Any] | None:
    """Quantiles of the time between consecutive events of a user [s]; None without times.

    Over all gaps, or over those of a draw of users when there are more than most_gaps. `quantiles`
    is None when fewer than 2 x min_group_users - 1 users have a gap; else each lies between gaps
    that so many users have at most, and at least.
    """
    check_group_users(min_group_users)
    if not store.header.has_times:
        return None
    user_S = _users(store, seed=seed, most_gaps=most_gaps)
    if len(user_S) == 0:  # nobody has two events
        nobody = {"num_users": 0, "num_gaps": 0, "is_drawn": False}
        return nobody | {"zero_gap_share": None, "quantiles_s": None}
    length_S = np.diff(store.offsets)[user_S]
    time_N = store.times[event_positions(store.offsets[user_S], length_S)]
    gap_G = np.diff(time_N)
    is_within = np.ones(len(gap_G), dtype=np.bool_)
    is_within[np.cumsum(length_S)[:-1] - 1] = False  # from one user's last to another's first
    gap_G = gap_G[is_within]
    return {
        "num_users": len(user_S),
        "num_gaps": len(gap_G),
        "is_drawn": len(user_S) < int((store.lengths() > 1).sum()),
        "zero_gap_share": share(int((gap_G == 0).sum()), len(gap_G)),
        "quantiles_s": _quantiles_s(gap_G, length_S - 1, min_group_users),
    }


def _users(store: SequenceStore, *, seed: int, most_gaps: int) -> Ints:
    """Users with a gap, all or a seeded draw of about most_gaps gaps, in order."""
    length_U = store.lengths()
    user_S = np.flatnonzero(length_U > 1)
    num_gaps = int(length_U[user_S].sum()) - len(user_S)
    if num_gaps <= most_gaps:
        return user_S
    rng = np.random.default_rng([seed, 4])
    num_drawn = max(1, int(len(user_S) * most_gaps / num_gaps))
    return np.sort(rng.choice(user_S, size=num_drawn, replace=False))


def _quantiles_s(gap_G: Ints, num_gaps_S: Ints, min_group_users: int) -> dict[str, float] | None:
    """Quantiles of gaps [s], each with a minimum group of users on either side of it."""
    first, last = min_group_users - 1, len(num_gaps_S) - min_group_users
    if first > last:
        return None
    start_S = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(num_gaps_S)[:-1]])
    least = np.partition(np.minimum.reduceat(gap_G, start_S), first)[first]
    most = np.partition(np.maximum.reduceat(gap_G, start_S), last)[last]
    found_Q = np.quantile(gap_G, GAP_QUANTILES).clip(least, most)
    return {f"{q:g}": float(v) / _US for q, v in zip(GAP_QUANTILES, found_Q, strict=True)}
