"""Copies the finished sequences out of DuckDB: mapped arrays, Parquet files and a content hash.

Before: sequencing.py's tables.   After: interactions.py names the store by the hash.
Price: a scratch copy of the arrays on disk; memory holds one chunk of two million events.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import duckdb
import numpy as np

from analytics.store import Ids, Offsets, Times

_CHUNK_EVENTS = 1 << 21
_CHUNK_IDS = 50_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays:
    """The columns of a store, mapped from scratch files, and what was seen on the way."""

    items: Ids  # shape (num_events,)
    times: Times  # shape (num_events,) [us since 1970]
    offsets: Offsets  # shape (num_users + 1,)
    num_users: int
    num_items: int
    num_tied: int  # events whose user has another at that time
    first_us: int
    last_us: int


class Digest:
    """SHA-256 over the arrays of a store, whatever their chunks."""

    def __init__(self, arrays: Arrays) -> None:
        self._hash = hashlib.sha256()
        for array in (arrays.items, arrays.times, arrays.offsets):
            self.text(f"{array.dtype.str}{array.shape}")
            for start in range(0, len(array), _CHUNK_EVENTS):
                self._hash.update(np.ascontiguousarray(array[start : start + _CHUNK_EVENTS]).data)

    def text(self, value: str) -> None:
        """Add a text, kept apart from the next by its length."""
        raw = value.encode("utf-8", "surrogatepass")
        self._hash.update(len(raw).to_bytes(8, "little"))
        self._hash.update(raw)

    def hex(self) -> str:
        """The hash so far, in hex."""
        return self._hash.hexdigest()


def collect_arrays(connection: duckdb.DuckDBPyConnection, folder: Path) -> Arrays:
    """Items, times and offsets of the table `sequences`, through scratch files in `folder`.

    Checks on the way that events lie user by user and never go back in time.
    """
    offsets = _offsets(connection)
    num_events = int(offsets[-1])
    row = connection.execute("SELECT count(*) FROM items").fetchone()
    assert row is not None
    if num_events == 0:  # an empty file cannot be mapped
        return Arrays(
            items=np.zeros(0, dtype=np.int32),
            times=np.zeros(0, dtype=np.int64),
            offsets=offsets,
            num_users=0,
            num_items=0,
            num_tied=0,
            first_us=0,
            last_us=0,
        )
    items = np.memmap(folder / "items.raw", dtype=np.int32, mode="w+", shape=(num_events,))
    times = np.memmap(folder / "times.raw", dtype=np.int64, mode="w+", shape=(num_events,))
    for start in range(0, num_events, _CHUNK_EVENTS):
        stop = min(start + _CHUNK_EVENTS, num_events)
        chunk = connection.execute(
            "SELECT user_index, item_index, time_us FROM sequences "
            "WHERE rowid >= $start AND rowid < $stop",
            {"start": start, "stop": stop},
        ).fetchnumpy()
        items[start:stop] = chunk["item_index"]
        times[start:stop] = chunk["time_us"]
        users = np.searchsorted(offsets, np.arange(start, stop), side="right") - 1
        assert np.array_equal(users, chunk["user_index"]), "sequences are not user by user"
    num_tied, first_us, last_us = _scan_times(times, offsets)
    return Arrays(
        items=items,
        times=times,
        offsets=offsets,
        num_users=len(offsets) - 1,
        num_items=int(row[0]),
        num_tied=num_tied,
        first_us=first_us,
        last_us=last_us,
    )


def hash_maps(connection: duckdb.DuckDBPyConnection, digest: Digest, rules: str) -> str:
    """The content hash of arrays, item ids, user ids and rules, in hex."""
    for statement in (
        "SELECT item_text FROM items ORDER BY item_index",
        "SELECT user_text FROM users ORDER BY user_index",
    ):
        found = connection.execute(statement)
        while ids := found.fetchmany(_CHUNK_IDS):
            for (identifier,) in ids:
                digest.text(identifier)
        digest.text("")
    digest.text(rules)
    return digest.hex()


def export_tables(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Write events.parquet, item_map.parquet and user_map.parquet into the store's folder."""
    selections = {
        "events": "SELECT user_index, rowid - start AS position, item_index, "
        "time_us AS event_time_us FROM sequences",
        "item_map": "SELECT CAST(item_index AS INTEGER) AS item_index, item_text AS item_id, "
        "num_events FROM items ORDER BY item_index",
        "user_map": "SELECT CAST(user_index AS INTEGER) AS user_index, user_text AS user_id, "
        "num_events FROM users ORDER BY user_index",
    }
    for name, selection in selections.items():
        connection.execute(
            f"COPY ({selection}) TO $path (FORMAT parquet, COMPRESSION zstd)",
            {"path": str(folder / f"{name}.parquet")},
        )


def _offsets(connection: duckdb.DuckDBPyConnection) -> Offsets:
    found = connection.execute("SELECT num_events FROM users ORDER BY user_index").fetchnumpy()
    lengths = np.asarray(found["num_events"], dtype=np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def _scan_times(times: Times, offsets: Offsets) -> tuple[int, int, int]:
    """(events with a twin in time, first time, last time), chunk by chunk."""
    num_tied, first_us, last_us = 0, int(times[0]), int(times[0])
    is_start = np.zeros(len(times) + 1, dtype=bool)
    is_start[offsets] = True
    for start in range(0, len(times), _CHUNK_EVENTS):
        stop = min(start + _CHUNK_EVENTS, len(times))
        part = times[start:stop]
        first_us, last_us = min(first_us, int(part.min())), max(last_us, int(part.max()))
        low, high = max(start - 1, 0), min(stop + 1, len(times))
        step = np.diff(times[low:high])  # step[k] leads to event low + 1 + k
        within = ~is_start[low + 1 : high]
        assert (step[within] >= 0).all(), "a history goes back in time"
        same = (step == 0) & within
        tied = np.zeros(high - low, dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        num_tied += int(tied[start - low : stop - low].sum())
    return num_tied, first_us, last_us
