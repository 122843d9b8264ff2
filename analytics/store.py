"""The sequence store: every user's history on disk, read at random without loading it.

Layout of a store folder (schema_version 1):
    store.json       what it is: counts, content hash, where it came from, the rules it was made by
    items.npy        int32  (num_events,)   item ids 0..num_items-1, user by user, oldest first
    times.npy        int64  (num_events,)   event time [us since 1970, UTC]
    offsets.npy      int64  (num_users + 1,)  user u's events are offsets[u]:offsets[u+1]
    events.parquet   the same events as columns user_index, position, item_index, event_time_us
    item_map.parquet item_index, item_id (as text, as it came), num_events
    user_map.parquet user_index, user_id (as text, as it came), num_events

Leave-last-one-out: of a history of L events the last is the test target, the last but one the
validation target, and the first L-2 are for training. No other file states the split.

Written aside and renamed as a whole, so a reader never sees half a store.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.errors import StoreError

SCHEMA_VERSION = 1
NUM_HELD_OUT = 2  # the validation and the test target at the end of every history
HEADER_NAME = "store.json"

Ids = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreHeader:
    """What `store.json` says of a store."""

    schema_version: int
    dataset_id: str
    dataset_name: str
    content_sha256: str
    source_sha256: str
    terms: str
    num_rows_read: int
    num_events: int
    num_users: int
    num_items: int
    dropped_rows: dict[str, int]
    tied_share: float
    rules: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceStore:
    """A store opened for reading; the arrays are memory-mapped, read-only."""

    path: Path
    header: StoreHeader
    items: Ids
    times: Times
    offsets: Offsets

    def history(self, user: int) -> Ids:
        """All items of a user, oldest first; shape (L,)."""
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    def training_items(self, user: int) -> Ids:
        """The user's items without the two targets held out; shape (max(L-2, 0),)."""
        history = self.history(user)
        return history[: max(len(history) - NUM_HELD_OUT, 0)]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Events per user; shape (num_users,)."""
        return np.diff(self.offsets)

    def training_lengths(self) -> npt.NDArray[np.int64]:
        """Events per user left for training; shape (num_users,)."""
        return np.maximum(self.lengths() - NUM_HELD_OUT, 0)


def write_arrays(directory: Path, *, items: Ids, times: Times, offsets: Offsets) -> None:
    """Write the memory-mapped columns into a store folder that is still being made."""
    np.save(directory / "items.npy", items.astype(np.int32, copy=False))
    np.save(directory / "times.npy", times.astype(np.int64, copy=False))
    np.save(directory / "offsets.npy", offsets.astype(np.int64, copy=False))


def write_header(directory: Path, header: StoreHeader) -> None:
    """Write `store.json`; the last file of a store."""
    text = json.dumps(dataclasses.asdict(header), indent=2, ensure_ascii=False, allow_nan=False)
    (directory / HEADER_NAME).write_text(text + "\n", encoding="utf-8")


def read_header(path: Path) -> StoreHeader:
    """The header of a store.

    Raises StoreError when there is none, or when it is of another version.
    """
    file = path / HEADER_NAME
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError(
            f"{path}: no sequence store is here ({HEADER_NAME} is missing). "
            "Make one with 'seqscale run --interactions FILE'."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{file}: not readable as JSON ({error}). The store is damaged; delete {path} and "
            "run 'seqscale run' again."
        ) from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: a store of version {version}, but this seqscale reads version "
            f"{SCHEMA_VERSION}. Rebuild it: delete it and run 'seqscale run' again."
        )
    try:
        return StoreHeader(**raw)
    except TypeError as error:
        raise StoreError(
            f"{file}: {error}. The store is damaged; delete {path} and run again."
        ) from error


def open_store(path: Path) -> SequenceStore:
    """Open a store for reading at random.

    Raises StoreError when a part is missing or the parts contradict each other.
    """
    header = read_header(path)
    arrays = {}
    for name in ("items", "times", "offsets"):
        file = path / f"{name}.npy"
        try:
            # numpy cannot map an empty array, and one event is never a store
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{file}: {error}. The store is damaged; delete {path} and run again."
            ) from error
    store = SequenceStore(path=path, header=header, **arrays)
    if len(store.offsets) != header.num_users + 1 or store.offsets[-1] != len(store.items):
        raise StoreError(
            f"{path}: offsets, items and {HEADER_NAME} contradict each other. The store is "
            "damaged; delete it and run 'seqscale run' again."
        )
    return store
