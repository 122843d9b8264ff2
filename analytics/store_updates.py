"""Changes a store without its source files: a new day is appended, people and old rows are erased.

The laws, tested: a store with a day appended equals the one prepared from all files; a store less a
person equals the one prepared from files without that person, but for the count of what was erased.

Before: a store on disk, and a new file.   After: store_making.py writes the store that follows.
Price: the store's columns in memory and a pass over them; the old files are not read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from analytics.coding import MAX_ACTIONS, CodedRows, numbered_sql
from analytics.errors import ConfigError, InputError, StoreError
from analytics.events import Codes, Events, Mask, insertion_places, interleaved
from analytics.interactions import coded_rows, num_bytes, source_entries, with_format
from analytics.preparation import Preparation, preparation_of
from analytics.prepared import PreparedData
from analytics.pseudonyms import PseudonymKey
from analytics.reasons import BEYOND_RETENTION, FORGOTTEN
from analytics.row_rules import count_of
from analytics.rules import REASONS as HISTORY_REASONS
from analytics.sources.scan import ReadingOptions, Scan, open_scans
from analytics.store import SequenceStore, StoreHeader, open_store, read_header
from analytics.store_events import clean_events
from analytics.store_making import About, Announce, at_work, finish, now_utc, updating
from analytics.store_rules import rules_of
from analytics.workplace import connect

__all__ = ["append", "expire", "without_users"]


def append(
    store_dir: Path,
    source: Path | str,
    *,
    reading: ReadingOptions | None = None,
    key: PseudonymKey | None = None,
    drop_unparsable_times: bool = False,
    now_us: int | None = None,
    memory_limit_gib: float | None = None,
) -> PreparedData:
    """Add a new file's rows to a store, in its place, by the rules it was made by.

    reading: what is left out is as it was for the last file. drop_unparsable_times: from now on.
    A file whose format repeats rows turns the rule on that drops exact duplicates, as it does when
    all files are prepared at once.
    Raises StoreError when the store cannot be appended to, ConfigError for a missing or another
    key, InputError for a file that is in it already.
    """
    with _opened(store_dir) as (store, preparation, folder):
        _check_appendable(store, key)
        opened = connect(
            folder, num_source_bytes=num_bytes([source]), memory_limit_gib=memory_limit_gib
        )
        with contextlib.closing(opened) as connection:
            reading = _as_before(store.header, reading or ReadingOptions())
            scans = open_scans(source, reading, scratch=folder, connection=connection)
            _check_same_kind(store, scans)
            if drop_unparsable_times:
                preparation = dataclasses.replace(preparation, drop_unparsable_times=True)
            warnings = [warning for scan in scans for warning in scan.warnings]
            if (found := with_format(preparation, scans)) != preparation:
                preparation = found
                warnings.append(
                    f"{scans[0].label}: its format repeats rows, so exact duplicates are dropped "
                    "from now on, also those of the files before it."
                )
            coded = coded_rows(connection, scans, None, preparation, key, now_us)
            entries = source_entries(scans, coded, reading)
            _check_unread(store, entries)
            _rename_tables(connection, "new")
            old = clean_events(connection, store)
            _rename_tables(connection, "old")
            merged, actions = _merged(connection, old, store.header.actions, coded)
            merged, num_expired = _within_retention(merged, preparation, now_us)
            drops = _row_drops(store.header)
            for reason, count in coded.dropped.items():
                drops[reason] += count
            drops[BEYOND_RETENTION] += num_expired
            about = dataclasses.replace(
                _about(store, drops),
                sources=[*store.header.sources, *entries],
                num_rows_read=store.header.num_rows_read + sum(coded.num_rows),
                preparation=preparation,
                actions=actions,
                warnings=warnings,
            )
            return _finish_in_place(connection, folder, merged, about, store_dir)


def without_users(
    store_dir: Path,
    user_keys: list[str],
    *,
    out: Path | None = None,
    stores_dir: Path | None = None,
    announce: Announce | None = None,
) -> PreparedData | None:
    """The store less some people, in the old one's place; None when it holds none of them.

    user_keys: as the store has them (pseudonyms, where it has pseudonyms).
    out: its own folder; stores_dir: it lies there under its own id, and the old one stays.
    announce: see store_making.finish.
    Raises InputError when too little is left to train on.
    """
    with _opened(store_dir) as (store, _, folder):
        opened = connect(folder, num_source_bytes=0, memory_limit_gib=None)
        with contextlib.closing(opened) as connection:
            events = clean_events(connection, store)
            wanted = {"user_key": np.array(user_keys, dtype=object)}
            assert wanted  # DuckDB finds it by its name
            codes = connection.execute(
                "SELECT DISTINCT user_code FROM users JOIN wanted USING (user_key)"
            ).fetchnumpy()["user_code"]
            if len(codes) == 0:
                return None
            is_theirs = np.isin(events.users(), codes)
            drops = _row_drops(store.header)
            drops[FORGOTTEN] += int(is_theirs.sum())
            about = _about(store, drops)
            rest = events.chosen(~is_theirs)
            place = out or store_dir
            return _finish_in_place(connection, folder, rest, about, place, stores_dir, announce)


def expire(
    store_dir: Path,
    *,
    now_us: int | None = None,
    stores_dir: Path | None = None,
    announce: Announce | None = None,
) -> PreparedData | None:
    """The store less what its own retention no longer allows, in its place; None: nothing to drop.

    stores_dir, announce: as for without_users.
    Raises InputError when too little is left to train on.
    """
    with _opened(store_dir) as (store, preparation, folder):
        opened = connect(folder, num_source_bytes=0, memory_limit_gib=None)
        with contextlib.closing(opened) as connection:
            events = clean_events(connection, store)
            rest, num_expired = _within_retention(events, preparation, now_us)
            if num_expired == 0:
                return None
            drops = _row_drops(store.header)
            drops[BEYOND_RETENTION] += num_expired
            about = _about(store, drops)
            place = store_dir
            return _finish_in_place(connection, folder, rest, about, place, stores_dir, announce)


@contextlib.contextmanager
def _opened(store_dir: Path) -> Iterator[tuple[SequenceStore, Preparation, Path]]:
    """A store that nobody else updates meanwhile, its rules, and a working folder beside it."""
    read_header(store_dir)  # before a lock is made where no store is
    with updating(store_dir):
        store = open_store(store_dir)  # as the update before this one left it
        preparation = rules_of(store_dir, store.header)
        with at_work(store_dir.resolve().parent) as folder:
            yield store, preparation, folder


def _finish_in_place(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    events: Events,
    about: About,
    store_dir: Path,
    stores_dir: Path | None = None,
    announce: Announce | None = None,
) -> PreparedData:
    """Finish the store that takes another's place, or lies under its own id in `stores_dir`."""
    place = store_dir.resolve()
    return finish(
        connection,
        folder,
        events,
        about,
        stores_dir=stores_dir or place.parent,
        out=place if stores_dir is None else None,
        announce=announce,
    )


def _about(store: SequenceStore, row_drops: dict[str, int]) -> About:
    header = store.header
    sheet = dict(header.data_sheet)
    sheet["earlier_versions"] = [*sheet["earlier_versions"], header.dataset_id]
    return About(
        name=header.dataset_name,
        terms=header.terms,
        sources=header.sources,
        num_rows_read=header.num_rows_read,
        row_drops=row_drops,
        preparation=preparation_of(header.rules),
        key_id=None if header.pseudonyms is None else header.pseudonyms["key_id"],
        data_sheet=sheet | {"updated_utc": now_utc()},
        actions=header.actions,
        has_times=header.has_times,
        warnings=[],
    )


def _row_drops(header: StoreHeader) -> dict[str, int]:
    """Rows that were dropped for what they are; those that a history's rules dropped are back."""
    return {
        reason: count
        for reason, count in header.dropped_rows.items()
        if reason not in HISTORY_REASONS
    }


def _within_retention(
    events: Events, preparation: Preparation, now_us: int | None
) -> tuple[Events, int]:
    """The events that retention allows, and how many it does not."""
    oldest_us = preparation.oldest_us(time.time_ns() // 1000 if now_us is None else now_us)
    if oldest_us is None:
        return events, 0
    is_allowed: Mask = events.times >= oldest_us
    return events.chosen(is_allowed), int((~is_allowed).sum())


def _check_appendable(store: SequenceStore, key: PseudonymKey | None) -> None:
    header = store.header
    if header.rules["split_kind"] == "given":
        raise StoreError(
            f"{store.path}: its split was given by files, and a new file says nothing of its rows' "
            "split. Prepare it again from all files with --validation and --test."
        )
    if header.pseudonyms is None:
        if key is not None:
            raise ConfigError(
                f"{store.path}: holds user ids as they came, so a file cannot be appended under "
                "pseudonyms. Give --keep-user-ids, or prepare it again from its files."
            )
        return
    if key is None or key.key_id != header.pseudonyms["key_id"]:
        given = "no key was given" if key is None else f"that of {key.where} is another"
        raise ConfigError(
            f"{store.path}: its pseudonyms were made with the key {header.pseudonyms['key_id']}, "
            f"but {given}. Give the key it was made with, or prepare it again from its files."
        )


def _as_before(header: StoreHeader, reading: ReadingOptions) -> ReadingOptions:
    """How a new file is read: as the last one was told to be, but for what is said anew."""
    before = header.sources[-1].get("reading", {})
    said = {name: value for name, value in dataclasses.asdict(reading).items() if value is not None}
    return ReadingOptions(**{**before, **said})


def _check_same_kind(store: SequenceStore, scans: list[Scan]) -> None:
    for scan in scans:
        if scan.has_time != store.header.has_times:
            has, new = ("times", "none") if store.header.has_times else ("no times", "some")
            raise InputError(
                f"{scan.label}: the store {store.path} has {has} and this file has {new}. Name the "
                "time column with --time COLUMN, or --time none."
            )


def _check_unread(store: SequenceStore, entries: list[dict[str, Any]]) -> None:
    known = {source["sha256"] for source in store.header.sources}
    for entry in entries:
        if entry["sha256"] in known:
            raise InputError(
                f"{entry['name']}: its very content is in {store.path} already, so it was not "
                "appended a second time."
            )


def _rename_tables(connection: duckdb.DuckDBPyConnection, prefix: str) -> None:
    for table in ("users", "items"):
        connection.execute(f"ALTER TABLE {table} RENAME TO {prefix}_{table}")


def _merged(
    connection: duckdb.DuckDBPyConnection,
    old: Events,
    old_actions: list[str],
    coded: CodedRows,
) -> tuple[Events, list[str]]:
    """Old and new events as one, over the new tables `users` and `items`; and the action names."""
    maps: dict[str, Codes] = {}
    for role, key in (("user", "user_key"), ("item", "item_id")):
        connection.execute(
            f"""
            CREATE TABLE {role}s AS
            SELECT {numbered_sql(key, f"{role}_code")}, {key}
            FROM (SELECT {key} FROM old_{role}s UNION SELECT {key} FROM new_{role}s)
            """  # noqa: S608
        )
        for which in ("old", "new"):
            found = connection.execute(
                f"SELECT {role}s.{role}_code FROM {which}_{role}s JOIN {role}s USING ({key}) "  # noqa: S608
                f"ORDER BY {which}_{role}s.{role}_code"
            ).fetchnumpy()
            maps[f"{which}_{role}"] = np.asarray(found[f"{role}_code"], dtype=np.int32)
    num_users = count_of(connection, "SELECT count(*) FROM users")
    actions = sorted({*old_actions, *coded.actions})
    if len(actions) > MAX_ACTIONS + 1:
        raise InputError(
            f"The action columns of the store and of the new file have {len(actions) - 1:,} "
            f"distinct values together, at most {MAX_ACTIONS:,} are kept. Give --action none."
        )
    sides = []
    for which, events, names in (("old", old, old_actions), ("new", coded.events, coded.actions)):
        recoded = events.recoded(maps[f"{which}_item"], maps[f"{which}_user"], num_users)
        has_ratings = old.ratings is not None or coded.events.ratings is not None
        sides.append(_with_side_columns(recoded, names, actions, has_ratings=has_ratings))
    one, other = sides
    return interleaved(one, other, insertion_places(one, other)), actions


def _with_side_columns(
    events: Events, names: list[str], all_names: list[str], *, has_ratings: bool
) -> Events:
    """The events with the side columns that either side of a merge has."""
    actions, ratings = events.actions, events.ratings
    if all_names:
        place_of = {name: place for place, name in enumerate(all_names)}
        code_of = np.array([place_of[name] for name in names or [""]], dtype=np.uint16)
        actions = np.zeros(len(events), dtype=np.uint16) if actions is None else code_of[actions]
    if has_ratings and ratings is None:
        ratings = np.full(len(events), np.nan, dtype=np.float32)
    return dataclasses.replace(events, actions=actions, ratings=ratings)
