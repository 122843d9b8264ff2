"""What consecutive global batches share: collisions, repeated rows, and rows hot enough to copy.

A row is marked in an array of one byte an item, so a batch costs its ids and one pass over the
marks; nothing is sorted and nobody loops over users.

Before: a store and a run's own seeded batches.   After: profile.py, advice.py.
Price: four million ids at a time, five bytes an item; about 100 million ids drawn a batch size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.lengths import padding_share, share
from analytics.store import SequenceStore
from training.planning.plan import global_batches

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Levels = npt.NDArray[np.uint8]
Marks = npt.NDArray[np.bool_]

BATCH_SEQUENCES = (8, 32, 128, 512, 2048, 8192)
HEAD_SHARES = (1e-4, 1e-3, 1e-2)  # of all items: how many hot rows could be copied to every rank
_MAX_BATCHES = 21  # 20 pairs are enough for two digits
_MAX_BATCH_ROWS = 100_000_000  # ids drawn in all, so that a huge batch does not take minutes
_CHUNK_IDS = 1 << 22


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedEvents:
    """The events of each user that are trained on: a run of a store's items."""

    items: Ids  # shape (num_events,)
    num_items: int
    start_U: Ints  # position of the first, shape (num_users,)
    length_U: Ints  # how many from there, shape (num_users,)

    def parts(self, users: Ints, *, num_negatives: int) -> Iterator[tuple[int, Ids]]:
        """(sequences, their ids) of a batch, cut so that four million ids are held at most.

        A longer history is held whole. users: shape (S,), S >= 1.
        """
        end_S = np.cumsum(self.length_U[users] + num_negatives)
        begin = 0
        while begin < len(users):
            held = int(end_S[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(end_S, held + _CHUNK_IDS, side="right")), begin + 1)
            part = users[begin:end]
            yield len(part), self.items[event_positions(self.start_U[part], self.length_U[part])]
            begin = end


def trained_events(store: SequenceStore, *, max_events: int | None = None) -> TrainedEvents:
    """The newest max_events training events of every user; None: all of them."""
    length_U = store.training_lengths()
    kept_U = length_U if max_events is None else np.minimum(length_U, max_events)
    return TrainedEvents(
        items=store.items,
        num_items=store.header.num_items,
        start_U=store.offsets[:-1] + length_U - kept_U,
        length_U=kept_U,
    )


def event_positions(start_S: Ints, length_S: Ints) -> Ints:
    """Where the events of some users stand, user by user; shape (sum of lengths,).

    start_S: a user's first position; length_S: how many from there; both of shape (S,), S >= 1.
    """
    end_S = np.cumsum(length_S)
    return np.repeat(start_S - (end_S - length_S), length_S) + np.arange(int(end_S[-1]))


def batch_table(
    trained: TrainedEvents,
    *,
    sizes: tuple[int, ...],
    num_negatives: int,
    seed: int,
    min_group_users: int,
) -> list[dict[str, Any]]:
    """batch_profile and padding share for each size of a batch [sequences]; shape: one row a size.

    The padding share is None for fewer users than the minimum group.
    """
    is_told = len(trained.length_U) >= min_group_users
    return [
        batch_profile(trained, batch_sequences=size, num_negatives=num_negatives, seed=seed)
        | {
            "padding_share": padding_share(trained.length_U, batch_sequences=size, seed=seed)
            if is_told
            else None
        }
        for size in sorted(set(sizes))
    ]


def batch_profile(
    trained: TrainedEvents, *, batch_sequences: int, num_negatives: int, seed: int
) -> dict[str, Any]:
    """Collision share of consecutive global batches, and how often a batch repeats its rows.

    The batches are the first of a run's own plan with this seed: training histories (targets
    included), and num_negatives items a sequence drawn evenly from all items. Shares are ratios of
    sums (docs/definitions.md); history_share is without negatives; None with fewer than two
    batches.
    """
    num_ids = num_rows = 0
    pairs_before, history_before = _Pairs(), _Pairs()
    num_batches = 0
    for batch in _marked(trained, batch_sequences, num_negatives, seed, None):
        history_before.add(batch.history_I)
        pairs_before.add(batch.mark_I)
        num_ids += batch.num_ids
        num_rows += int(np.count_nonzero(batch.mark_I))
        num_batches += 1
    return {
        "batch_sequences": batch_sequences,
        "num_negatives": num_negatives,
        "num_batches": num_batches,
        "history_share": history_before.share(),
        "share": pairs_before.share(),
        "mean_ids": num_ids / num_batches,
        "mean_rows": num_rows / num_batches,
        "deduplication_factor": num_ids / num_rows if num_rows else 1.0,
    }


def hot_rows(
    trained: TrainedEvents,
    count_I: Ints,
    *,
    batch_sequences: int,
    num_negatives: int,
    seed: int,
) -> list[dict[str, Any]]:
    """What copying the most popular rows to every rank would spare; one entry a number of rows.

    count_I: events per item, which decides what is hot, shape (num_items,); the batches are those
    of batch_profile. id_share: share of a batch's ids (repeats counted) that are hot.
    collision_share and collision_share_without: of a batch's distinct rows, those that the batch
    before touches too, all and without the hot ones.
    """
    heads = sorted({max(1, round(len(count_I) * head)) for head in HEAD_SHARES})
    level_I = np.full(len(count_I), len(heads), dtype=np.uint8)  # the smallest head that holds it
    order_I = np.argpartition(-count_I, np.array(heads) - 1)
    for level, (low, high) in enumerate(zip([0, *heads], heads, strict=False)):
        level_I[order_I[low:high]] = level
    id_H = np.zeros(len(heads) + 1, dtype=np.int64)
    colliding_H = np.zeros(len(heads) + 1, dtype=np.int64)
    num_rows, before_I = 0, None
    for batch in _marked(trained, batch_sequences, num_negatives, seed, level_I):
        id_H += batch.ids_at_level
        if before_I is not None:
            both = level_I[batch.mark_I & before_I]
            colliding_H += np.bincount(both, minlength=len(id_H))
            num_rows += int(np.count_nonzero(batch.mark_I))
        before_I = batch.mark_I
    id_H, hot_H = np.cumsum(id_H), np.cumsum(colliding_H)
    return [
        {
            "num_hot_rows": head,
            "id_share": share(int(id_H[level]), int(id_H[-1])),
            "collision_share": share(int(hot_H[-1]), num_rows),
            "collision_share_without": share(int(hot_H[-1] - hot_H[level]), num_rows),
        }
        for level, head in enumerate(heads)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MarkedBatch:
    """Which rows a global batch touches."""

    history_I: Marks  # without negatives, shape (num_items,)
    mark_I: Marks  # with them
    num_ids: int  # repeats counted
    ids_at_level: Ints  # ids by the level of their item; empty without levels


class _Pairs:
    """Counts the rows that a batch shares with the one before it."""

    def __init__(self) -> None:
        self._before_I: Marks | None = None
        self._num_colliding = self._num_rows = 0

    def add(self, mark_I: Marks) -> None:
        """Count one more batch."""
        if self._before_I is not None:
            self._num_colliding += int(np.count_nonzero(mark_I & self._before_I))
            self._num_rows += int(np.count_nonzero(mark_I))
        self._before_I = mark_I

    def share(self) -> float | None:
        """Collision share over the batches added, 0..1; None with fewer than two."""
        return self._num_colliding / self._num_rows if self._num_rows else None


def _marked(
    trained: TrainedEvents,
    batch_sequences: int,
    num_negatives: int,
    seed: int,
    level_I: Levels | None,
) -> Iterator[_MarkedBatch]:
    """The first global batches of a run's own plan, each with the rows it touches."""
    rng = np.random.default_rng([seed, 2])
    num_levels = 0 if level_I is None else int(level_I.max()) + 1
    for users in _first_batches(trained, batch_sequences, num_negatives, seed):
        history_I = np.zeros(trained.num_items, dtype=np.bool_)
        drawn_I = np.zeros(trained.num_items, dtype=np.bool_)
        num_ids, at_level = 0, np.zeros(num_levels, dtype=np.int64)
        for num_sequences, ids in trained.parts(users, num_negatives=num_negatives):
            size = num_sequences * num_negatives
            negatives = rng.integers(0, trained.num_items, size=size, dtype=np.int32)
            history_I[ids] = True
            drawn_I[negatives] = True
            num_ids += len(ids) + size
            if level_I is not None:
                for part in (ids, negatives):
                    at_level += np.bincount(level_I[part], minlength=num_levels)
        yield _MarkedBatch(
            history_I=history_I,
            mark_I=history_I | drawn_I,
            num_ids=num_ids,
            ids_at_level=at_level,
        )


def _first_batches(
    trained: TrainedEvents, batch_sequences: int, num_negatives: int, seed: int
) -> list[Ints]:
    num_sequences = len(trained.length_U)
    per_epoch = -(-num_sequences // batch_sequences)
    batches = global_batches(num_sequences, batch_sequences, 1 if per_epoch > 1 else 2, seed)
    mean_ids = num_negatives + float(trained.length_U.mean())
    rows_a_batch = min(batch_sequences, num_sequences) * max(mean_ids, 1.0)
    num_batches = max(2, min(_MAX_BATCHES, int(_MAX_BATCH_ROWS / rows_a_batch)))
    return [users for _, users in batches[:num_batches]]
