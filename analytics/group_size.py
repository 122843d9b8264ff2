"""What may be published of people's lengths: nothing that only a few of them stand behind.

A quantile is moved inwards to the nearest value that enough users reach, a histogram bin with too
few users is merged with a neighbour, the one longest history is only told as a power of two.
Fewer users than the minimum in all: nothing is told.
Statistical disclosure control calls it the threshold rule: Hundepool et al. 2012, Statistical
Disclosure Control, section 5.2.

Before: a store's true lengths.   After: profile, receipt, warehouse, export: all that leaves.
The engine's own sums (cost, placement, memory of a rank) use true values and stay inside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.errors import ConfigError

Ints = npt.NDArray[np.int64]

MIN_GROUP_USERS = 10  # the default; 1 publishes everything


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthSummary:
    """Shortest, median and longest history as they may be told; None where too few share them."""

    min_length: int | None  # at least the minimum group of users are this short or shorter [events]
    median_length: float | None
    max_length: int | None  # at least the minimum group of users are this long or longer [events]


def check_group_users(min_group_users: int) -> None:
    """Raise ConfigError unless the minimum group has at least one user."""
    if min_group_users < 1:
        raise ConfigError(
            f"The minimum group is {min_group_users} users; it must be at least 1 (1 publishes "
            "the values of single users). Change --min-group."
        )


def length_summary(
    length_U: npt.ArrayLike, min_group_users: int = MIN_GROUP_USERS
) -> LengthSummary:
    """What may be told of the lengths of histories; length_U: events per user, shape (num_users,).

    Raises ConfigError for a minimum group below 1.
    """
    found = group_quantiles(length_U, (0.0, 0.5, 1.0), min_group_users)
    if found is None:
        return LengthSummary(min_length=None, median_length=None, max_length=None)
    least, median, most = found
    return LengthSummary(min_length=int(least), median_length=median, max_length=int(most))


def group_quantiles(
    value_U: npt.ArrayLike, shares: Sequence[float], min_group_users: int
) -> list[float] | None:
    """Quantiles of one value a user, none of them further out than a minimum group reaches.

    value_U: shape (num_users,). A quantile (linear between neighbours) stays between the value that
    min_group_users users do not exceed and the value that as many reach. None when no value has so
    many users on either side: fewer than 2 x min_group_users - 1 users.
    Raises ConfigError for a minimum group below 1.
    """
    check_group_users(min_group_users)
    ordered_U = np.sort(np.asarray(value_U))
    first, last = min_group_users - 1, len(ordered_U) - min_group_users
    if first > last:
        return None
    found_Q = np.quantile(ordered_U, shares).clip(ordered_U[first], ordered_U[last])
    return [float(value) for value in found_Q]


def merged_bins(bins: Sequence[dict[str, Any]], min_group_users: int) -> list[dict[str, Any]]:
    """Neighbouring bins merged until none has fewer users than the minimum; [] for too few in all.

    bins: in order, each with `from`, `to` (exclusive), `num_users` and `num_events`. The smallest
    bin is merged first, with its smaller neighbour (of equals the lower).
    Raises ConfigError for a minimum group below 1.
    """
    check_group_users(min_group_users)
    merged = [dict(entry) for entry in bins]
    while len(merged) > 1:
        at = min(range(len(merged)), key=lambda place: int(merged[place]["num_users"]))
        if merged[at]["num_users"] >= min_group_users:
            break
        near = [place for place in (at - 1, at + 1) if 0 <= place < len(merged)]
        other = min(near, key=lambda place: int(merged[place]["num_users"]))
        low, high = merged[min(at, other)], merged[max(at, other)]
        merged[min(at, other)] = {
            "from": low["from"],
            "to": high["to"],
            "num_users": low["num_users"] + high["num_users"],
            "num_events": low["num_events"] + high["num_events"],
        }
        del merged[max(at, other)]
    if merged and merged[0]["num_users"] < min_group_users:
        return []
    return merged


def rounded_up(events: float) -> int:
    """The next power of two at or above a number of events: how the longest history is told."""
    return 1 << max(int(np.ceil(events)) - 1, 0).bit_length()
