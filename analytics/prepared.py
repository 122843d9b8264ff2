"""What a preparation says of a store: to who asked for it, and as it may be published.

Before: a store on disk.   After: the flow, the receipt, the profile, `seqscale prepare`.
Price: one pass over the times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analytics.group_size import MIN_GROUP_USERS, check_group_users, length_summary
from analytics.reasons import FORGOTTEN, TOO_SHORT
from analytics.store import SequenceStore, StoreHeader, open_store


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A prepared set of sequences and where it lies; plain values only, so it travels as JSON."""

    store_dir: str
    dataset_id: str
    dataset_name: str
    source_sha256: str
    terms: str
    num_rows_read: int
    num_rows_kept: int
    dropped_rows: dict[str, int]  # by reason; read = kept + their sum
    num_users: int
    num_items: int
    min_length: int  # events of the shortest history
    median_length: float
    max_length: int
    tied_share: float  # share of events whose user has another at that time
    first_event_utc: str
    last_event_utc: str
    num_in_split: dict[str, int]
    has_times: bool
    is_pseudonymised: bool
    decisions: list[dict[str, str]]  # how each file was read
    warnings: list[str]


def prepared_of(store: SequenceStore, warnings: Sequence[str] = ()) -> PreparedData:
    """What a preparation says of a store, read from the store itself."""
    header, lengths = store.header, store.lengths()
    return PreparedData(
        store_dir=str(store.path.resolve()),
        dataset_id=header.dataset_id,
        dataset_name=header.dataset_name,
        source_sha256=header.source_sha256,
        terms=header.terms,
        num_rows_read=header.num_rows_read,
        num_rows_kept=header.num_events,
        dropped_rows=header.dropped_rows,
        num_users=header.num_users,
        num_items=header.num_items,
        min_length=int(lengths.min()),
        median_length=float(np.median(lengths)),
        max_length=int(lengths.max()),
        tied_share=header.tied_share,
        first_event_utc=utc_of(int(store.times.min())) if header.has_times else "",
        last_event_utc=utc_of(int(store.times.max())) if header.has_times else "",
        num_in_split=header.num_in_split,
        has_times=header.has_times,
        is_pseudonymised=header.pseudonyms is not None,
        decisions=[source["decision"] for source in header.sources],
        warnings=list(warnings),
    )


def published_rows(
    header: StoreHeader, min_group_users: int = MIN_GROUP_USERS
) -> tuple[int, dict[str, int]]:
    """Rows read, and rows dropped by reason, as they may be told to others.

    As if those who were erased, and the rows of a reason that fewer users than the minimum group
    may stand behind, had never been in the files: they would be told by their number, or by what is
    missing from a sum. So read = kept + dropped still holds. A row stands for a user, a user who is
    too short for all the rows that such a user can have; a reason without any row is told as 0.
    Raises ConfigError for a minimum group below 1.
    """
    check_group_users(min_group_users)
    least_history = header.rules.get("history", {}).get("min_history", 1)
    most_rows = {TOO_SHORT: max(least_history - 1, 1)}
    told = {
        reason: count
        for reason, count in header.dropped_rows.items()
        if reason != FORGOTTEN
        and (count == 0 or -(-count // most_rows.get(reason, 1)) >= min_group_users)
    }
    return header.num_events + sum(told.values()), told


def published(prepared: PreparedData, min_group_users: int = MIN_GROUP_USERS) -> dict[str, Any]:
    """A prepared set as it may be told to others: lengths by groups, days for times.

    Nothing is told of those who were erased. The store is to be there.
    Raises ConfigError for a minimum group below 1.
    """
    store = open_store(Path(prepared.store_dir))
    lengths = length_summary(store.lengths(), min_group_users)
    data = dataclasses.asdict(prepared) | dataclasses.asdict(lengths)
    data["num_rows_read"], data["dropped_rows"] = published_rows(store.header, min_group_users)
    for name in ("first_event_utc", "last_event_utc"):
        data[name] = data[name][:10]  # the very first event is one person's
    return data


def utc_of(time_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 to the second, UTC."""
    return f"{np.datetime_as_string(np.datetime64(time_us, 'us'), unit='s')}Z"
