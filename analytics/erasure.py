"""Erases people, and rows past their retention, from stores on disk.

The order makes a crash harmless: the version without them is written whole, the caller is told what
begins, the version takes its place, the old one goes. Whatever is repeated ends the same.

Before: flows/forgetting.py names stores and people.   After: fact_erasure, and the stores that
follow. A training that has mapped an old version's files keeps reading them until it ends.
Price: as store_updates.py, for the stores that hold the person; of the others two columns are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec

import duckdb
import numpy as np

from analytics.errors import InputError, StoreError
from analytics.group_size import MIN_GROUP_USERS
from analytics.pseudonyms import SCHEME, PseudonymKey
from analytics.reasons import BEYOND_RETENTION, EXPIRED, FORGOTTEN
from analytics.schema import FactErasure
from analytics.sources.faults import is_storage_failure
from analytics.store import HEADER_NAME, StoreHeader, read_header
from analytics.store_making import at_work, updating
from analytics.store_rules import rules_of
from analytics.store_updates import expire, without_users
from analytics.warehouse import open_published
from analytics.workplace import storage_error

_KNOWN = (  # of every user: the rows that a store has of them, kept or set aside
    "SELECT user_id, num_events AS num_rows FROM read_parquet($map) "
    "UNION ALL SELECT user_id, 1 FROM read_parquet($aside)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorePlace:
    """A store and whether its folder's name is its id, so that the next version has another."""

    path: Path
    is_named_by_id: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Erasure:
    """What was erased from one version of a store; plain values, none of them of a person."""

    reason: str  # FORGOTTEN or EXPIRED
    store_dir: str  # where the version lay
    dataset_id: str  # the version that held the rows
    earlier_versions: list[str]  # those before it, which may have held them too
    new_dataset_id: str | None  # None: too little was left, the store was deleted
    num_rows: int
    num_users: int

    def is_done(self) -> bool:
        """Whether the version is no longer where it lay."""
        path = Path(self.store_dir)
        try:
            return read_header(path).dataset_id != self.dataset_id
        except StoreError:
            return not path.exists()

    @property
    def told_rows(self) -> int | None:
        """Rows as they may be told; None of few users: of one it is the length of one history."""
        return self.num_rows if self.num_users >= MIN_GROUP_USERS else None

    def record(self) -> FactErasure:
        """As the warehouse keeps it; the same again for the same version in the same place."""
        named = f"{self.reason} {self.dataset_id} {self.store_dir}"
        return FactErasure(
            erasure_id=hashlib.sha256(named.encode()).hexdigest()[:16],
            erased_unix_ns=time.time_ns(),
            reason=self.reason,
            dataset_id=self.dataset_id,
            new_dataset_id=self.new_dataset_id,
            num_rows=self.told_rows,
            num_users=self.num_users,
        )


Rest = ParamSpec("Rest")
Begin = Callable[[Erasure], None]  # called before anything is taken away


def stores_under(folder: Path) -> list[Path]:
    """The folder itself when it is a store, else those directly in it, whole or damaged."""
    if (folder / HEADER_NAME).exists():
        return [folder.resolve()]
    children = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        child.resolve()
        for child in children
        if not child.name.startswith(".")
        and ((child / HEADER_NAME).exists() or (child / "user_map.parquet").exists())
    )


def _alone(
    erase: Callable[Concatenate[StorePlace, Rest], Erasure | None],
) -> Callable[Concatenate[StorePlace, Rest], Erasure | None]:
    """The same with nobody else updating the store, from looking into it until the old one goes."""

    @functools.wraps(erase)
    def guarded(place: StorePlace, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Erasure | None:
        read_header(place.path)  # before a lock is made where no store is
        with updating(place.path):
            return erase(place, *args, **kwargs)

    return guarded


@_alone
def erase_users(
    place: StorePlace, user_ids: Sequence[str], key: PseudonymKey | None, begin: Begin
) -> Erasure | None:
    """Erase people, given by their ids as they came, from a store; None when it holds none.

    Raises StoreError when the store cannot be searched: it is damaged, of another version, or its
    pseudonyms were made with another key.
    """
    header = read_header(place.path)
    rules_of(place.path, header)  # nothing is begun with a header that lacks an entry
    keys = _keys_of(place.path, header, user_ids, key)
    num_users, num_rows = _counts(place.path, keys)
    if num_users == 0:
        return None

    def erased(new: StoreHeader) -> Erasure:
        return _erasure(FORGOTTEN, place, header, new.dataset_id, num_rows, num_users)

    def announce(_folder: Path, new: StoreHeader) -> None:
        begin(erased(new))

    stores_dir = place.path.parent if place.is_named_by_id else None
    try:
        made = without_users(place.path, keys, stores_dir=stores_dir, announce=announce)
    except InputError:
        return _erase_all(FORGOTTEN, place, header, begin)
    assert made is not None, "the person was there a moment ago"
    return _replaced(place, erased(read_header(Path(made.store_dir))))


@_alone
def erase_expired(place: StorePlace, begin: Begin, *, now_us: int | None = None) -> Erasure | None:
    """Erase what a store's own retention no longer allows; None when there is nothing.

    Raises StoreError when the store is damaged or of another version.
    """
    header = read_header(place.path)
    if rules_of(place.path, header).keep_days is None:
        return None
    announced: list[Erasure] = []

    def announce(folder: Path, new: StoreHeader) -> None:
        num_rows = new.dropped_rows[BEYOND_RETENTION] - header.dropped_rows[BEYOND_RETENTION]
        num_users = _counts(place.path)[0] - _counts(folder)[0]
        announced.append(_erasure(EXPIRED, place, header, new.dataset_id, num_rows, num_users))
        begin(announced[-1])

    stores_dir = place.path.parent if place.is_named_by_id else None
    try:
        made = expire(place.path, now_us=now_us, stores_dir=stores_dir, announce=announce)
    except InputError:
        return _erase_all(EXPIRED, place, header, begin)
    return None if made is None else _replaced(place, announced[-1])


def remove_store(path: Path) -> None:
    """Remove a store's folder: out of sight in one step, then its files.

    Raises StoreError when something of it remains.
    """
    if not path.exists():
        return
    with at_work(path.parent) as folder:
        path.rename(folder / "old")
    if folder.exists():
        raise StoreError(
            f"{folder}: what was erased could not be removed from the disk. Remove this folder, "
            "or mend its permissions and run the same command again."
        )


def runs_trained_on(runs_dir: Path, dataset_ids: Sequence[str]) -> list[str]:
    """The run_id of every run in the published warehouse that was trained on these versions."""
    with contextlib.closing(open_published(runs_dir)) as connection:
        found = connection.execute(
            "SELECT run_id FROM dim_run WHERE list_contains($ids, dataset_id) ORDER BY run_id",
            {"ids": list(dataset_ids)},
        ).fetchall()
    return [str(run_id) for (run_id,) in found]


def _keys_of(
    path: Path, header: StoreHeader, user_ids: Sequence[str], key: PseudonymKey | None
) -> list[str]:
    """The ids as the store has them."""
    if header.pseudonyms is None:
        return list(user_ids)
    needed, scheme = header.pseudonyms["key_id"], header.pseudonyms["scheme"]
    if key is None or key.key_id != needed or scheme != SCHEME:
        given = "no key was found" if key is None else f"{key.where} holds {key.key_id}"
        raise StoreError(
            f"{path}: cannot be searched, its pseudonyms ({scheme}) were made with the key "
            f"{needed}, and {given}. Run the command again with that key "
            "(SEQSCALE_PSEUDONYM_KEY_FILE); if it is lost, delete the store."
        )
    return [key.pseudonym(user_id) for user_id in user_ids]


def _counts(path: Path, user_keys: Sequence[str] | None = None) -> tuple[int, int]:
    """How many of these users, or of all, a store knows, and how many rows of theirs."""
    wanted = {"user_id": np.array(list(dict.fromkeys(user_keys or [])), dtype=object)}
    assert wanted  # DuckDB finds it by its name
    only = "" if user_keys is None else "SEMI JOIN wanted USING (user_id)"
    try:
        with duckdb.connect() as connection:
            found = connection.execute(
                "SELECT count(DISTINCT user_id), coalesce(sum(num_rows), 0) "  # noqa: S608
                f"FROM ({_KNOWN}) AS known {only}",
                {"map": str(path / "user_map.parquet"), "aside": str(path / "set_aside.parquet")},
            ).fetchall()
    except duckdb.Error as error:
        if is_storage_failure(error):
            raise storage_error(path, error) from error
        raise StoreError(
            f"{path}: cannot be searched ({str(error).splitlines()[0]}). The store is damaged; "
            "delete it and prepare it again with 'seqscale prepare FILE --out DIR'."
        ) from error
    return int(found[0][0]), int(found[0][1])


def _erase_all(reason: str, place: StorePlace, header: StoreHeader, begin: Begin) -> Erasure:
    """Delete a store of which too little would be left to train on."""
    num_users, num_rows = _counts(place.path)
    done = _erasure(reason, place, header, None, num_rows, num_users)
    begin(done)
    remove_store(place.path)
    return done


def _replaced(place: StorePlace, done: Erasure) -> Erasure:
    if place.is_named_by_id:
        remove_store(place.path)
    return done


def _erasure(
    reason: str,
    place: StorePlace,
    header: StoreHeader,
    new_dataset_id: str | None,
    num_rows: int,
    num_users: int,
) -> Erasure:
    return Erasure(
        reason=reason,
        store_dir=str(place.path),
        dataset_id=header.dataset_id,
        earlier_versions=list(header.data_sheet["earlier_versions"]),
        new_dataset_id=new_dataset_id,
        num_rows=num_rows,
        num_users=num_users,
    )
