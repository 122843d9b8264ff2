"""How uneven the popularity of items is: Zipf exponent, and the share of the head.

Before: a store's items.   After: profile.py; batches.py takes the order as the hot rows.
Price: one pass over the items in chunks; the Zipf fit is about 40 sums over the catalogue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.lengths import share
from analytics.store import SequenceStore

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_CHUNK_EVENTS = 1 << 22


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
    for head in (0.01, 0.1):
        num_head = max(1, round(len(ordered_I) * head))
        heads[f"{head:g}"] = share(int(ordered_I[:num_head].sum()), total)
    return {
        "num_items": len(ordered_I),
        "num_events": total,
        "zipf_exponent": zipf_exponent(ordered_I),
        "zipf_method": "maximum likelihood of P(rank k) ~ k^-s over all items, ranked by count",
        "head_event_shares": heads,
        "most_popular_share": share(int(ordered_I[0]), total),
        "once_item_share": share(int((ordered_I == 1).sum()), len(ordered_I)),
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
