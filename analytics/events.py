"""Events of all users in order, as columns of numbers: what rules, splits and merges work on.

Users and items are codes of a working dictionary; of equal times the earlier row stands first.
numpy only; every function returns new columns.

Shape letters: N events, M events to be added, U users.

Before: coding.py (from files) and store_events.py (from a store).   After: rules.py, splits.py.
Price: 13 to 19 bytes an event, all in memory: 100 million events take 1.3 GB.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Events:
    """Columns of events, user by user in the order of user codes, oldest first."""

    items: Codes  # shape (N,), item codes
    times: Longs  # shape (N,) [us since 1970]
    offsets: Longs  # shape (U + 1,); a user may have no event
    actions: npt.NDArray[np.uint16] | None = None
    ratings: npt.NDArray[np.float32] | None = None
    given_splits: npt.NDArray[np.uint8] | None = None  # when split files were given

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_users(self) -> int:
        """Users of the dictionary, those without an event too."""
        return len(self.offsets) - 1

    def lengths(self) -> Longs:
        """Events per user; shape (U,)."""
        return np.diff(self.offsets)

    def users(self) -> Codes:
        """The user of each event; shape (N,)."""
        return np.repeat(np.arange(self.num_users, dtype=np.int32), self.lengths())

    def places(self) -> Longs:
        """Where each event stands among its user's, from 0; shape (N,)."""
        return np.arange(len(self), dtype=np.int64) - np.repeat(self.offsets[:-1], self.lengths())

    def chosen(self, mask_N: Mask) -> Events:
        """Only the events of the mask, in the same order, over the same users."""
        if mask_N.all():
            return self
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(mask_N, dtype=np.int64)])
        splits, actions, ratings = self.given_splits, self.actions, self.ratings
        return Events(
            items=self.items[mask_N],
            times=self.times[mask_N],
            offsets=before[self.offsets],
            actions=None if actions is None else actions[mask_N],
            ratings=None if ratings is None else ratings[mask_N],
            given_splits=None if splits is None else splits[mask_N],
        )

    def recoded(self, item_of_item: Codes, user_of_user: Codes, num_users: int) -> Events:
        """The same events over another dictionary.

        item_of_item, user_of_user: the new code of each old one; users keep their relative order.
        """
        lengths_V = np.zeros(num_users, dtype=np.int64)
        lengths_V[user_of_user] = self.lengths()
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths_V)])
        return dataclasses.replace(self, items=item_of_item[self.items], offsets=offsets)


def insertion_places(base: Events, extra: Events) -> Longs:
    """How many events of its user in `base` stand before each event of `extra`; shape (M,).

    Both over the same dictionary. Equal times: `base` first, as the older file. Without times (all
    0) everything of `base` comes first. A binary search in all segments at once.
    """
    owner_M = extra.users()
    start_M = base.offsets[owner_M]
    low_M, high_M = start_M.copy(), base.offsets[owner_M + 1]
    while (open_M := low_M < high_M).any():
        middle_M = (low_M + high_M) // 2
        probe_M = np.minimum(middle_M, max(len(base) - 1, 0))
        goes_after_M = open_M & (base.times[probe_M] <= extra.times)
        low_M = np.where(goes_after_M, middle_M + 1, low_M)
        high_M = np.where(open_M & ~goes_after_M, middle_M, high_M)
    return low_M - start_M


def interleaved(base: Events, extra: Events, before_M: Longs) -> Events:
    """Both sets of events as one; before_M says how many of `base` precede each of `extra`.

    before_M: shape (M,), of the same user, never falling within a user. Columns that only one of
    the two has are an error of ours.
    """
    offsets = base.offsets + extra.offsets
    owner_M = extra.users()
    target_M = offsets[owner_M] + before_M + extra.places()
    from_base = np.ones(len(base) + len(extra), dtype=np.bool_)
    from_base[target_M] = False
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for name in ("items", "times", "actions", "ratings", "given_splits"):
        mine, theirs = getattr(base, name), getattr(extra, name)
        assert (mine is None) == (theirs is None), f"only one side has {name}"
        if mine is not None:
            merged = np.empty(len(from_base), dtype=mine.dtype)
            merged[from_base] = mine
            merged[target_M] = theirs
            columns[name] = merged
    return dataclasses.replace(base, **columns, offsets=offsets)  # type: ignore[arg-type]
