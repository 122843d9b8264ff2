"""How uneven a set of sequences is: lengths, popularity of items, rows shared by batches.

numpy on a store's arrays, nothing else. Every share is a ratio of sums.

Before: a sequence store.   After: profile.py puts the numbers beside their price.
Price: one pass over the items; the Zipf fit is about 40 sums over the catalogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.store import SequenceStore
from training.planning.collisions import collision_share
from training.planning.plan import global_batches

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_MAX_BATCHES = 21  # 20 pairs are enough for two digits
_MAX_BATCH_ROWS = 100_000_000  # ids drawn in all, so that a huge batch does not take minutes
_CHUNK_EVENTS = 1 << 22


def length_profile(length_U: Ints) -> dict[str, Any]:
    """Quantiles and histogram of history lengths, and what the longest 1 % of users hold.

    length_U: events per user, shape (num_users,), num_users >= 1.
    histogram: users and events with a length in [from, to), bounds are powers of two.
    """
    ordered_U = np.sort(length_U)[::-1].astype(np.float64)
    num_longest = max(1, round(len(ordered_U) * 0.01))
    top = ordered_U.max()
    edges = [1 << power for power in range(max(int(top), 1).bit_length() + 1)]
    bins = [(low, high) for low, high in zip([0, *edges], edges, strict=False)]
    histogram = []
    for low, high in bins:
        inside = (length_U >= low) & (length_U < high)
        if inside.any():
            entry = {"from": low, "to": high, "num_users": int(inside.sum())}
            histogram.append(entry | {"num_events": int(length_U[inside].sum())})
    return {
        "quantiles": {f"{q:g}": float(np.quantile(length_U, q)) for q in QUANTILES},
        "mean": float(length_U.mean()),
        "num_longest": num_longest,
        "longest_event_share": _share(ordered_U[:num_longest].sum(), ordered_U.sum()),
        "longest_pair_share": _share((ordered_U[:num_longest] ** 2).sum(), (ordered_U**2).sum()),
        "histogram": histogram,
    }


def item_counts(store: SequenceStore) -> Ints:
    """Events of each item, held-out ones included; shape (num_items,)."""
    count_I = np.zeros(store.header.num_items, dtype=np.int64)
    for start in range(0, len(store.items), _CHUNK_EVENTS):
        part = store.items[start : start + _CHUNK_EVENTS]
        count_I += np.bincount(part, minlength=len(count_I))
    return count_I


def popularity_profile(count_I: Ints) -> dict[str, Any]:
    """Skew of item popularity: Zipf exponent and the share of events on the most popular items.

    count_I: events per item, shape (num_items,), num_items >= 1.
    """
    ordered_I = np.sort(count_I)[::-1]
    total = int(ordered_I.sum())
    heads = {}
    for share in (0.01, 0.1):
        num_head = max(1, round(len(ordered_I) * share))
        heads[f"{share:g}"] = _share(int(ordered_I[:num_head].sum()), total)
    return {
        "num_items": len(ordered_I),
        "num_events": total,
        "zipf_exponent": zipf_exponent(ordered_I),
        "zipf_method": "maximum likelihood of P(rank k) ~ k^-s over all items, ranked by count",
        "head_event_shares": heads,
        "most_popular_share": _share(int(ordered_I[0]), total),
        "once_item_share": _share(int((ordered_I == 1).sum()), len(ordered_I)),
    }


def zipf_exponent(count_I: Ints, *, upper: float = 5.0) -> float:
    """The exponent s >= 0 under which counts ~ rank^-s are the most likely; at most `upper`.

    count_I: events per item, most popular first. The likelihood is highest where the mean of
    ln(rank) over events equals its expectation; that expectation falls with s, so s is bisected.
    """
    log_rank_I = np.log(np.arange(1, len(count_I) + 1, dtype=np.float64))
    observed = float(count_I @ log_rank_I) / float(count_I.sum())
    low, high = 0.0, upper
    if _expected_log_rank(log_rank_I, low) <= observed:
        return low
    for _ in range(40 if len(count_I) < 1_000_000 else 20):  # 5 / 2^20 is still 5e-6
        middle = (low + high) / 2
        if _expected_log_rank(log_rank_I, middle) > observed:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _expected_log_rank(log_rank_I: Floats, exponent: float) -> float:
    weight_I = np.exp(-exponent * log_rank_I)
    return float(weight_I @ log_rank_I) / float(weight_I.sum())


def collision_profile(
    store: SequenceStore, *, batch_sequences: int, num_negatives: int, seed: int
) -> dict[str, Any]:
    """Collision share of consecutive global batches, with and without drawn negatives.

    The batches are the first of a run's own plan with this seed: training histories (targets
    included), and num_negatives items a sequence drawn evenly from all items.
    """
    num_sequences = store.header.num_users
    per_epoch = -(-num_sequences // batch_sequences)
    epochs = 1 if per_epoch > 1 else 2
    batches = global_batches(num_sequences, batch_sequences, epochs, seed)
    rows_a_batch = batch_sequences * (num_negatives + len(store.items) / num_sequences)
    num_batches = max(2, min(_MAX_BATCHES, int(_MAX_BATCH_ROWS / rows_a_batch)))
    rng = np.random.default_rng([seed, 2])
    histories, with_negatives = [], []
    for _, batch in batches[:num_batches]:
        history = np.unique(np.concatenate([store.training_items(int(user)) for user in batch]))
        drawn = rng.integers(0, store.header.num_items, size=len(batch) * num_negatives)
        histories.append(history)
        with_negatives.append(np.unique(np.concatenate([history, drawn])))
    return {
        "batch_sequences": batch_sequences,
        "num_negatives": num_negatives,
        "num_batches": len(histories),
        "history_share": collision_share(histories),
        "share": collision_share(with_negatives),
        "mean_rows": float(np.mean([len(rows) for rows in with_negatives])),
    }


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0
