"""Takes a store apart again: its kept events and those set aside, in their one common order.

So a day can be appended, or a person erased, without the files that the store was made from.

Before: a store on disk.   After: Events over tables `users` and `items`, as coding.py makes them.
Price: the store's columns in memory.
"""

from __future__ import annotations

import duckdb
import numpy as np

from analytics.coding import numbered_sql
from analytics.errors import StoreError
from analytics.events import Events, interleaved
from analytics.row_rules import count_of
from analytics.sources.faults import is_storage_failure
from analytics.store import UNUSED, VALIDATION, SequenceStore, Splits


def clean_events(connection: duckdb.DuckDBPyConnection, store: SequenceStore) -> Events:
    """Every event that the store knows, kept or set aside; makes the tables `users` and `items`.

    Raises StoreError when a map is missing or unreadable; a full disk goes up as DuckDB tells it.
    """
    try:
        _make_tables(connection, store)
        kept = _kept(connection, store)
        aside, before = _set_aside(connection, store)
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        if is_storage_failure(error):  # the store is as good as it was
            raise
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"{store.path}: {reason}. The store is damaged; delete it and prepare it again with "
            "'seqscale prepare FILE --out DIR'."
        ) from error
    return interleaved(kept, aside, before)


def _make_tables(connection: duckdb.DuckDBPyConnection, store: SequenceStore) -> None:
    paths = {name: str(store.path / f"{name}.parquet") for name in ("item_map", "user_map")}
    paths["set_aside"] = str(store.path / "set_aside.parquet")
    for role, key in (("user", "user_key"), ("item", "item_id")):
        connection.execute(
            f"""
            CREATE OR REPLACE TABLE {role}s AS
            SELECT {numbered_sql(key, f"{role}_code")}, {key}
            FROM (
                SELECT {role}_id AS {key} FROM read_parquet($map)
                UNION
                SELECT {role}_id FROM read_parquet($aside)
            )
            """,  # noqa: S608
            {"map": paths[f"{role}_map"], "aside": paths["set_aside"]},
        )


def _codes_of_map(connection: duckdb.DuckDBPyConnection, store: SequenceStore, role: str) -> object:
    key = "user_key" if role == "user" else "item_id"
    found = connection.execute(
        f"SELECT {role}_code FROM read_parquet($path) AS map "  # noqa: S608
        f"JOIN {role}s ON {role}s.{key} = map.{role}_id ORDER BY {role}_index",
        {"path": str(store.path / f"{role}_map.parquet")},
    ).fetchnumpy()
    return found[f"{role}_code"]


def _kept(connection: duckdb.DuckDBPyConnection, store: SequenceStore) -> Events:
    item_of_index = np.asarray(_codes_of_map(connection, store, "item"), dtype=np.int32)
    user_of_index = np.asarray(_codes_of_map(connection, store, "user"), dtype=np.int32)
    header = store.header
    if (len(item_of_index), len(user_of_index)) != (header.num_items, header.num_users):
        raise StoreError(
            f"{store.path}: maps and store.json contradict each other. The store is damaged; "
            "delete it and prepare it again with 'seqscale prepare FILE --out DIR'."
        )
    stored = Events(
        items=np.asarray(store.items),
        times=np.asarray(store.times),
        offsets=np.asarray(store.offsets),
        actions=None if (actions := store.actions()) is None else np.asarray(actions),
        ratings=None if (ratings := store.ratings()) is None else np.asarray(ratings),
        given_splits=_given(store) if header.rules["split_kind"] == "given" else None,
    )
    return stored.recoded(
        item_of_index, user_of_index, count_of(connection, "SELECT count(*) FROM users")
    )


def _given(store: SequenceStore) -> Splits:
    """The splits as they were given, but for a target that came first in its history.

    That one is stored as UNUSED. It was of validation, or of test with no validation before it;
    taken for validation it stands first and before its user's tests in either case.
    """
    splits = np.asarray(store.splits)
    return np.where(splits == UNUSED, np.uint8(VALIDATION), splits)


def _set_aside(
    connection: duckdb.DuckDBPyConnection, store: SequenceStore
) -> tuple[Events, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The rows set aside, and how many kept events of its user precede each."""
    header = store.header
    names = header.actions or [""]
    known = {"name": np.array(names, dtype=object), "code": np.arange(len(names), dtype=np.uint16)}
    assert known  # DuckDB finds it by its name
    found = connection.execute(
        "SELECT user_code, item_code, event_time_us, place, code, rating, split "
        "FROM read_parquet($path) AS aside JOIN users ON users.user_key = aside.user_id "
        "JOIN items USING (item_id) JOIN known ON known.name = aside.action "
        "ORDER BY user_code, place",
        {"path": str(store.path / "set_aside.parquet")},
    ).fetchnumpy()
    lengths = np.bincount(
        found["user_code"], minlength=count_of(connection, "SELECT count(*) FROM users")
    )
    aside = Events(
        items=np.asarray(found["item_code"], dtype=np.int32),
        times=np.asarray(found["event_time_us"], dtype=np.int64),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        actions=np.asarray(found["code"], dtype=np.uint16) if header.actions else None,
        ratings=np.asarray(np.ma.filled(found["rating"], np.nan), dtype=np.float32)
        if header.has_ratings
        else None,
        given_splits=np.asarray(found["split"], dtype=np.uint8)
        if header.rules["split_kind"] == "given"
        else None,
    )
    return aside, np.asarray(found["place"], dtype=np.int64) - aside.places()
