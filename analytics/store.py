"""The sequence store: every user's history on disk, read at random without loading it.

Layout of a store folder (schema_version 2):
    store.json         what it is: counts, content hash, sources, rules, pseudonyms, data sheet
    data_sheet.md      the same for a person: source, columns, purpose, lawful basis, retention
    items.npy          int32  (num_events,)   item_index 0..num_items-1, user by user, oldest first
    times.npy          int64  (num_events,)   event time [us since 1970, UTC]; 0 without times
    splits.npy         uint8  (num_events,)   TRAIN, VALIDATION, TEST or UNUSED
    offsets.npy        int64  (num_users + 1,)  user u's events are offsets[u]:offsets[u+1]
    actions.npy        uint16 (num_events,)   place in the header's list of actions, if it has any
    ratings.npy        float32 (num_events,)  NaN where there is none; if any event has one
    item_map.parquet   item_index, item_id (as text, as it came), num_events
    user_map.parquet   user_index, user_id (pseudonym, or as text as it came), num_events
    set_aside.parquet  rows that a rule left out and more data could bring back: user_id, item_id,
                       event_time_us, place (among the user's rows in order), action, rating,
                       split, reason

Of a history the training events come first, then validation, then test; UNUSED stands anywhere
after the training events. The target of a split is the user's first event in it.

Written aside and renamed as a whole, so a reader never sees half a store. The events are not
written a second time as Parquet: one place to read, one place to erase a person from.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.errors import StoreError

SCHEMA_VERSION = 2
HEADER_NAME = "store.json"
TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, 3
SPLIT_NAMES = ("train", "validation", "test", "unused")
MAP_NAMES = ("item_map", "user_map", "set_aside")

Ids = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]
Splits = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Actions = npt.NDArray[np.uint16]
Ratings = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreHeader:
    """What `store.json` says of a store."""

    schema_version: int
    dataset_id: str  # the first 16 hex digits of content_sha256
    dataset_name: str
    content_sha256: str  # of arrays, maps, rules, sources and names; not of dates
    source_sha256: str  # of the file, or of the list of sources when there are several
    terms: str
    num_rows_read: int
    num_events: int
    num_users: int
    num_items: int
    dropped_rows: dict[str, int]  # by reason; read = num_events + their sum
    num_in_split: dict[str, int]  # events by split name
    tied_share: float  # share of events whose user has another at that time; 0 without times
    has_times: bool
    actions: list[str]  # names of the codes in actions.npy; empty: no such column
    has_ratings: bool
    sources: list[dict[str, Any]]  # name, sha256, num_rows, decision; in the order they were read
    rules: dict[str, Any]  # the rules the rows went through, in words and numbers
    pseudonyms: dict[str, str] | None  # scheme and key_id; None: user ids as they came
    data_sheet: dict[str, Any]  # purpose, lawful basis, retention, dates, versions before this one


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceStore:
    """A store opened for reading; the arrays are memory-mapped, read-only."""

    path: Path
    header: StoreHeader
    items: Ids
    times: Times
    splits: Splits
    offsets: Offsets

    def history(self, user: int) -> Ids:
        """All items of a user, oldest first; shape (L,)."""
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    def training_items(self, user: int) -> Ids:
        """The user's items that may be trained on, oldest first; shape (training length,)."""
        start, stop = self.offsets[user], self.offsets[user + 1]
        num_training = int((self.splits[start:stop] == TRAIN).sum())
        return self.items[start : start + num_training]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Events per user; shape (num_users,)."""
        return np.diff(self.offsets)

    def training_lengths(self) -> npt.NDArray[np.int64]:
        """Events per user left for training; shape (num_users,)."""
        return np.add.reduceat(self.splits == TRAIN, self.offsets[:-1], dtype=np.int64)

    def target_positions(self, split: int) -> npt.NDArray[np.int64]:
        """Where each user's target of a split stands in `items`, -1 for none; shape (num_users,).

        split: VALIDATION or TEST. A target's history is every event of its user before it.
        """
        found = np.flatnonzero(self.splits == split)
        owner = np.searchsorted(self.offsets, found, side="right") - 1
        position_U = np.full(self.header.num_users, -1, dtype=np.int64)
        position_U[owner[::-1]] = found[::-1]  # of several the first stays
        return position_U

    def actions(self) -> Actions | None:
        """What each event was, as a place in header.actions; None without such a column."""
        return _load(self.path, "actions") if self.header.actions else None

    def ratings(self) -> Ratings | None:
        """Each event's rating, NaN for none; None without such a column."""
        return _load(self.path, "ratings") if self.header.has_ratings else None


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
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{path}: no sequence store is here ({HEADER_NAME} is missing). "
            "Make one with 'seqscale prepare FILE --out DIR'."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{file}: not readable as JSON ({error}). The store is damaged; delete {path} and "
            "prepare it again with 'seqscale prepare FILE --out DIR'."
        ) from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: a store of version {version}, but this seqscale reads version "
            f"{SCHEMA_VERSION}. Rebuild it from its source{_source_names(raw)}: delete {path}, "
            f"then 'seqscale prepare FILE --out {path}'."
        )
    try:
        return StoreHeader(**raw)
    except TypeError as error:
        raise StoreError(
            f"{file}: {error}. The store is damaged; delete {path} and prepare it again with "
            "'seqscale prepare FILE --out DIR'."
        ) from error


def open_store(path: Path) -> SequenceStore:
    """Open a store for reading at random.

    Raises StoreError when a part is missing or the parts contradict each other.
    """
    header = read_header(path)
    arrays = {name: _load(path, name) for name in ("items", "times", "splits", "offsets")}
    store = SequenceStore(path=path, header=header, **arrays)
    counts = {len(store.items), len(store.times), len(store.splits), header.num_events}
    if len(store.offsets) != header.num_users + 1 or counts != {int(store.offsets[-1])}:
        raise StoreError(
            f"{path}: offsets, items and {HEADER_NAME} contradict each other. The store is "
            "damaged; delete it and prepare it again with 'seqscale prepare FILE --out DIR'."
        )
    return store


def _load(path: Path, name: str) -> Any:
    file = path / f"{name}.npy"
    try:
        # numpy cannot map an empty array, and a store always has events
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(
            f"{file}: {error}. The store is damaged; delete {path} and prepare it again with "
            "'seqscale prepare FILE --out DIR'."
        ) from error


def _source_names(raw: Any) -> str:
    name = raw.get("dataset_name") if isinstance(raw, dict) else None
    return f" ({name})" if isinstance(name, str) and name else ""
