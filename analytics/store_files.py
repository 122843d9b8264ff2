"""Writes kept events and their maps as the files of a store, and hashes what they say.

Before: rules.py and splits.py decided over events.py's columns; coding.py's tables name the codes.
After: store_making.py writes the header last and renames the folder.
Price: one pass over the events; beside the columns memory holds one chunk of four million events.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from analytics import rules
from analytics.events import Events, Mask
from analytics.row_rules import count_of
from analytics.store import Splits

_CHUNK_EVENTS = 1 << 22
_BLOCK_IDS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """What was written, as the header wants it."""

    digest: str  # of everything written, 64 hex digits
    num_users: int
    num_items: int
    num_tied: int  # events whose user has another at that time


def write_files(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    events: Events,
    reason_N: npt.NDArray[np.uint8],
    kept: Events,
    split_K: Splits,
    actions: list[str],
) -> Written:
    """Write arrays and maps of the kept events, and the rows set aside.

    events: over the tables `users` and `items`, with the reason of each, shape (N,); kept: those of
    reason KEPT, with their split codes, shape (K,).
    """
    item_I = _used(kept.items, count_of(connection, "SELECT count(*) FROM items"))
    user_U = kept.lengths() > 0
    item_index = _indices(item_I)
    lengths = kept.lengths()[user_U]
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    digest = hashlib.sha256()
    _save(folder, "items", kept.items, np.int32, digest, lambda part: item_index[part])
    _save(folder, "times", kept.times, np.int64, digest)
    _save(folder, "splits", split_K, np.uint8, digest)
    _save(folder, "offsets", offsets, np.int64, digest)
    if kept.actions is not None:
        _save(folder, "actions", kept.actions, np.uint16, digest)
    if kept.ratings is not None:
        _save(folder, "ratings", kept.ratings, np.float32, digest)
    num_of_item = np.bincount(kept.items, minlength=len(item_I))[item_I]
    _write_map(connection, folder, "item", item_I, num_of_item)
    _write_map(connection, folder, "user", user_U, lengths)
    _write_set_aside(connection, folder, events, reason_N, actions)
    digest.update(_digest_of_maps(connection, folder).encode())
    num_tied = _num_tied(kept)
    return Written(
        digest=digest.hexdigest(),
        num_users=len(lengths),
        num_items=int(item_I.sum()),
        num_tied=num_tied,
    )


def _used(codes: npt.NDArray[np.int32], num_codes: int) -> Mask:
    used = np.zeros(num_codes, dtype=np.bool_)
    used[codes] = True
    return used


def _indices(used: Mask) -> npt.NDArray[np.int32]:
    """The index of each used code among the used ones, in the same order."""
    return (np.cumsum(used) - 1).astype(np.int32)


def _save(
    folder: Path,
    name: str,
    column: npt.NDArray[Any],
    kind: type[np.generic],
    digest: Any,
    change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
) -> None:
    """Write a column chunk by chunk as NAME.npy, adding its bytes to the digest."""
    kind_of = np.dtype(kind)
    header = {"descr": kind_of.str, "fortran_order": False, "shape": (len(column),)}
    digest.update(f"{name}{kind_of.str}{len(column)}".encode())
    with (folder / f"{name}.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(column), _CHUNK_EVENTS):
            part = column[start : start + _CHUNK_EVENTS]
            part = np.ascontiguousarray(part if change is None else change(part), dtype=kind_of)
            file.write(part.data)
            digest.update(part.data)


def _write_map(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    role: str,
    used: Mask,
    num_events: npt.NDArray[np.int64],
) -> None:
    """ROLE_map.parquet of the used codes; role: 'user' or 'item'."""
    codes = np.flatnonzero(used).astype(np.int32)
    # DuckDB finds a dictionary of arrays by the name of the variable that holds it
    used_codes = {  # noqa: F841
        "code": codes,
        "place": np.arange(len(codes), dtype=np.int32),
        "num_events": num_events,
    }
    identity = "user_key AS user_id" if role == "user" else "item_id"
    connection.execute(
        f"COPY (SELECT place AS {role}_index, {identity}, num_events "  # noqa: S608
        f"FROM used_codes JOIN {role}s ON {role}s.{role}_code = used_codes.code "
        "ORDER BY place) TO $path (FORMAT parquet, COMPRESSION zstd)",
        {"path": str(folder / f"{role}_map.parquet")},
    )


def _write_set_aside(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    events: Events,
    reason_N: npt.NDArray[np.uint8],
    actions: list[str],
) -> None:
    """set_aside.parquet: the rows that a rule left out, by user and place."""
    at = np.flatnonzero(reason_N != rules.KEPT)
    names = np.array(["", *rules.REASONS])
    action_names = np.array(actions or [""])
    code = np.zeros(len(at), dtype=np.uint16) if events.actions is None else events.actions[at]
    owner = np.searchsorted(events.offsets, at, side="right") - 1
    nothing = np.full(len(at), np.nan, dtype=np.float32)
    aside = {  # noqa: F841
        "user_code": owner.astype(np.int32),
        "item_code": events.items[at],
        "event_time_us": events.times[at],
        "place": at - events.offsets[owner],
        "action": action_names[code].astype(object),
        "rating": nothing if events.ratings is None else events.ratings[at],
        "split": np.zeros(len(at), dtype=np.uint8)
        if events.given_splits is None
        else events.given_splits[at],
        "reason": names[reason_N[at]].astype(object),
    }
    connection.execute(
        "COPY (SELECT user_key AS user_id, item_id, event_time_us, place, action, rating, split, "
        "reason FROM aside JOIN users USING (user_code) JOIN items USING (item_code) "
        "ORDER BY user_code, place) TO $path (FORMAT parquet, COMPRESSION zstd)",
        {"path": str(folder / "set_aside.parquet")},
    )


def _digest_of_maps(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """SHA-256 over ids, places, times and side columns of the three Parquet files; blocks keep it
    small. Counts and reasons follow from these and from the rules.
    """
    columns = {
        "item_map": ("item_index", "item_id"),
        "user_map": ("user_index", "user_id"),
        "set_aside": ("user_id", "item_id", "event_time_us", "place", "action", "rating"),
    }
    digest = hashlib.sha256()
    for name, cells in columns.items():
        said = " || ".join(f"length(c{n}) || ':' || c{n}" for n in range(len(cells)))
        texts = ", ".join(f"CAST({cell} AS VARCHAR) AS c{n}" for n, cell in enumerate(cells))
        found = connection.execute(
            f"SELECT sha256(string_agg({said}, '' ORDER BY row)) "  # noqa: S608
            f"FROM (SELECT {texts}, file_row_number AS row "
            "FROM read_parquet($path, file_row_number = true)) "
            f"GROUP BY row // {_BLOCK_IDS} ORDER BY row // {_BLOCK_IDS}",
            {"path": str(folder / f"{name}.parquet")},
        ).fetchall()
        digest.update(f"{name}{len(found)}".encode())
        for (block,) in found:
            digest.update(str(block).encode())
    return digest.hexdigest()


def _num_tied(kept: Events) -> int:
    """Events whose user has another at that time; 0 without times."""
    if len(kept) < 2 or not kept.times.any():
        return 0
    same = kept.times[1:] == kept.times[:-1]
    starts = kept.offsets[1:-1]
    same[starts[(starts > 0) & (starts < len(kept))] - 1] = False  # neighbours of two users
    tied = np.zeros(len(kept), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    return int(tied.sum())
