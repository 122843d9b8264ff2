"""The rules that decide, from whole histories, which events a store keeps.

Applied in this order, each counting what it drops: target_before_history (only of given split
files), exact_duplicate, repeated_pair, outside_core, user_too_short, beyond_max_history. What needs
one row only (a missing id, an unreadable time) was decided in ordering.py. The same function serves
a first preparation, an appended day and an erasure, so these cannot come to different stores.

Before: events.py's columns.   After: store_making.py writes what is kept and what is set aside.
Price: a pass a rule; the k-core repeats until nothing changes (a handful of rounds).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.errors import ConfigError
from analytics.events import Events, Longs, Mask
from analytics.reasons import TOO_SHORT

KEPT = 0
REASONS = (
    "target_before_history",
    "exact_duplicate",
    "repeated_pair",
    "outside_core",
    TOO_SHORT,
    "beyond_max_history",
)
REPEATS = ("keep", "first", "last")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryRules:
    """What a history must be like; the defaults drop nothing but short users."""

    min_history: int = 5  # users with fewer events are dropped
    max_history: int = 1_000_000  # of longer histories the newest events stay
    core: int = 1  # k-core: users and items with fewer events are dropped, until none is left
    repeats: str = "keep"  # of several events of one user with one item: keep all, first or last
    drop_exact_duplicates: bool = False  # rows equal in user, item, time, action and rating

    def __post_init__(self) -> None:
        if not 1 <= self.min_history <= self.max_history:
            raise ConfigError(
                f"min_history is {self.min_history} and max_history is {self.max_history}; needed "
                "is 1 <= min_history <= max_history. Change one of them."
            )
        if self.core < 1:
            raise ConfigError(f"core is {self.core}; it must be at least 1 (1 drops nothing).")
        if self.repeats not in REPEATS:
            raise ConfigError(f"repeats is '{self.repeats}'; known are {', '.join(REPEATS)}.")


def reasons_of(events: Events, rules: HistoryRules) -> npt.NDArray[np.uint8]:
    """Why each event is dropped: 1 + its place in REASONS, or KEPT; shape (N,)."""
    reason_N = np.zeros(len(events), dtype=np.uint8)
    if events.given_splits is not None:
        _drop(reason_N, "target_before_history", _before_history(events, events.given_splits))
    if rules.drop_exact_duplicates:
        _drop(reason_N, "exact_duplicate", _exact_duplicates(events))
    if rules.repeats != "keep":
        _drop(reason_N, "repeated_pair", _repeated_pairs(events, reason_N == KEPT, rules.repeats))
    if rules.core > 1:
        _drop(reason_N, "outside_core", ~_core(events, reason_N == KEPT, rules))
    length_U = _lengths_of(events, reason_N == KEPT) if reason_N.any() else events.lengths()
    too_short_U = (length_U > 0) & (length_U < rules.min_history)
    if too_short_U.any():
        _drop(reason_N, TOO_SHORT, np.repeat(too_short_U, events.lengths()))
        length_U[too_short_U] = 0
    if (length_U > rules.max_history).any():
        _drop(reason_N, "beyond_max_history", _too_old(events, reason_N == KEPT, rules.max_history))
    return reason_N


def counts_of(reason_N: npt.NDArray[np.uint8]) -> dict[str, int]:
    """Events dropped for each reason, every reason named."""
    count = np.bincount(reason_N, minlength=len(REASONS) + 1)
    return {reason: int(count[place + 1]) for place, reason in enumerate(REASONS)}


def _drop(reason_N: npt.NDArray[np.uint8], reason: str, mask_N: Mask) -> None:
    reason_N[mask_N & (reason_N == KEPT)] = 1 + REASONS.index(reason)


def _lengths_of(events: Events, kept_N: Mask) -> Longs:
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(kept_N, dtype=np.int64)])
    return np.diff(before[events.offsets])


def _before_history(events: Events, split_N: npt.NDArray[np.uint8]) -> Mask:
    """Events of a later split that are older than the last event of an earlier one, or that stand
    in an earlier one themselves (validation and test repeat nothing); shape (N,).

    Events lie by user, split and time, so the last of a split is its newest.
    """
    owner_N = events.users()
    newest_U = np.full(events.num_users, np.iinfo(np.int64).min)
    wrong_N = np.zeros(len(events), dtype=np.bool_)
    for split in range(int(split_N.max()) + 1 if len(split_N) else 0):
        at = np.flatnonzero(split_N == split)
        wrong_N[at] = events.times[at] < newest_U[owner_N[at]]
        right = at[~wrong_N[at]]
        np.maximum.at(newest_U, owner_N[right], events.times[right])
    if events.times.any():  # events lie by split, so of equals the earlier split stands first
        wrong_N |= _repeats([events.items, events.times], owner_N) & (split_N > 0)
    return wrong_N


def _exact_duplicates(events: Events) -> Mask:
    """Events that repeat an earlier one of the same user in every column."""
    keys: list[npt.NDArray[Any]] = [events.items, events.times]
    if events.actions is not None:
        keys.append(events.actions)
    if events.ratings is not None:  # as bits: NaN equals NaN
        keys.append(events.ratings.view(np.int32))
    if events.given_splits is not None:
        keys.append(events.given_splits)
    return _repeats(keys, events.users())


def _repeated_pairs(events: Events, kept_N: Mask, which: str) -> Mask:
    """Kept events of a user with an item that has another, but for the first (or the last)."""
    at = np.flatnonzero(kept_N)
    if which == "last":
        at = at[::-1]
    repeated = np.zeros(len(events), dtype=np.bool_)
    repeated[at] = _repeats([events.items[at]], events.users()[at])
    return repeated


def _repeats(keys: list[npt.NDArray[Any]], owner_N: npt.NDArray[np.int32]) -> Mask:
    """Rows that equal an earlier row in owner and in every key; shape (N,)."""
    order = np.lexsort((*keys, owner_N))  # stable: of equals the earlier row stands first
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for key in (*keys, owner_N):
        column = key[order]
        same &= column[1:] == column[:-1]
    repeated = np.zeros(len(order), dtype=np.bool_)
    repeated[order[1:]] = same
    return repeated


def _core(events: Events, kept_N: Mask, rules: HistoryRules) -> Mask:
    """The largest set in which every item has `core` events and every user enough; shape (N,)."""
    least_of_user = max(rules.core, rules.min_history)
    owner_N = events.users()
    kept_N = kept_N.copy()
    num_items = int(events.items.max()) + 1 if len(events) else 0
    while True:
        user_count = np.bincount(owner_N[kept_N], minlength=events.num_users)
        item_count = np.bincount(events.items[kept_N], minlength=num_items)
        stays_N = kept_N & (user_count[owner_N] >= least_of_user)
        stays_N &= item_count[events.items] >= rules.core
        if stays_N.sum() == kept_N.sum():
            return kept_N
        kept_N = stays_N


def _too_old(events: Events, kept_N: Mask, longest: int) -> Mask:
    """Kept events with `longest` or more kept ones of their user after them."""
    before = np.cumsum(kept_N, dtype=np.int64)  # kept events up to and with this one
    total_at_end = np.concatenate([np.zeros(1, dtype=np.int64), before])[events.offsets[1:]]
    return kept_N & (np.repeat(total_at_end, events.lengths()) - before >= longest)
