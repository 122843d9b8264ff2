"""The last leg of every store: events in order become its files, its header and its place.

A first preparation, an appended day and an erasure all end here, so none can make a store that
another would not. Every row read is kept or dropped for a counted reason; that is asserted.

Before: interactions.py and store_updates.py.   After: profile.py, training/planning, the ranks.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from analytics import rules
from analytics.data_sheet import write_data_sheet
from analytics.errors import InputError, StoreError
from analytics.events import Events
from analytics.locks import guarded
from analytics.preparation import Preparation
from analytics.prepared import PreparedData, prepared_of
from analytics.pseudonyms import SCHEME
from analytics.reasons import TOO_SHORT
from analytics.sources.faults import is_storage_failure
from analytics.splits import split_codes
from analytics.store import (
    SCHEMA_VERSION,
    SPLIT_NAMES,
    TEST,
    TRAIN,
    VALIDATION,
    Splits,
    StoreHeader,
    open_store,
    write_header,
)
from analytics.store_files import Written, write_files
from analytics.workplace import put_in_place, storage_error, working_folder

UPDATE_TIMEOUT_S = 60.0
_UPDATED: contextvars.ContextVar[frozenset[Path]] = contextvars.ContextVar(
    "updated", default=frozenset()
)
Announce = Callable[[Path, StoreHeader], None]  # the store's folder, still aside, and its header


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What a store says of itself beside its events."""

    name: str
    terms: str
    sources: list[dict[str, Any]]  # name, sha256, num_rows, decision
    num_rows_read: int
    row_drops: dict[str, int]  # what single rows were dropped for; rules.py adds its own
    preparation: Preparation
    key_id: str | None  # fingerprint of the key of the pseudonyms; None: ids as they came
    data_sheet: dict[str, Any]
    actions: list[str]
    has_times: bool
    warnings: list[str]


@contextlib.contextmanager
def at_work(beside: Path) -> Iterator[Path]:
    """A working folder; a full or read-only disk is told as StoreError."""
    try:
        with working_folder(beside) as folder:
            yield folder
    except OSError as error:
        raise storage_error(beside, error) from error
    except duckdb.Error as error:
        if is_storage_failure(error):
            raise storage_error(beside, error) from error
        raise


@contextlib.contextmanager
def updating(store_dir: Path) -> Iterator[None]:
    """From reading a store until its next version is in place: one update of it at a time.

    Else of two that read the same version the later would undo the earlier: an appended day would
    be lost, or a forgotten person be back. An update within an update passes.
    Raises StoreError when another is at work for longer than UPDATE_TIMEOUT_S.
    """
    place = store_dir.resolve()
    if place in _UPDATED.get():
        yield
        return

    def late() -> StoreError:
        return StoreError(
            f"{place}: another update of this store (an append, an erasure or an expiry) is at "
            "work. Run the command again after that."
        )

    with contextlib.ExitStack() as stack:
        lock = place.with_name(f".{place.name}.lock")
        try:
            stack.enter_context(guarded(lock, timeout_s=UPDATE_TIMEOUT_S, late=late))
        except OSError as error:
            raise storage_error(place, error) from error
        token = _UPDATED.set(_UPDATED.get() | {place})
        try:
            yield
        finally:
            _UPDATED.reset(token)


def finish(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    events: Events,
    about: About,
    *,
    stores_dir: Path,
    out: Path | None,
    announce: Announce | None = None,
) -> PreparedData:
    """Apply the rules, write the store in the working folder and rename it into place.

    events: over the connection's tables `users` and `items`. out: the store's own folder; None:
    `stores_dir` and its id. announce: called when the store is whole, before it takes its place.
    Raises InputError when nothing is left to train on.
    """
    reason_N = rules.reasons_of(events, about.preparation.history)
    dropped = about.row_drops | rules.counts_of(reason_N)
    kept = events.chosen(reason_N == rules.KEPT)
    assert about.num_rows_read == len(kept) + sum(dropped.values()), "rows were lost or made"
    _check_enough(about, kept, dropped)
    split_K = split_codes(kept, about.preparation.split)
    check_split_laws(kept, split_K)
    _check_targets(about, split_K, dropped)
    store_folder = folder / "store"
    store_folder.mkdir(mode=0o700)
    written = write_files(connection, store_folder, events, reason_N, kept, split_K, about.actions)
    header = _header(about, kept, split_K, dropped, written)
    first_us, last_us = int(kept.times.min()), int(kept.times.max())
    write_data_sheet(store_folder, header, first_us=first_us, last_us=last_us)
    write_header(store_folder, header)
    if announce is not None:
        announce(store_folder, header)
    final = (stores_dir.resolve() / header.dataset_id) if out is None else out.resolve()
    put_in_place(store_folder, final)
    return prepared_of(open_store(final), about.warnings)


def check_split_laws(kept: Events, split_K: Splits) -> None:
    """Assert that training events stand first in every history and no target is older than one."""
    owner_K = kept.users()
    is_training_K = split_K == TRAIN
    same_user = owner_K[1:] == owner_K[:-1]
    assert not (same_user & is_training_K[1:] & ~is_training_K[:-1]).any(), "training after targets"
    goes_back = same_user & (kept.times[1:] < kept.times[:-1])
    assert not goes_back.any(), "a history goes back in time"


def one_hash(sources: list[dict[str, Any]]) -> str:
    """The hash of a single source, or of the list of several."""
    hashes = [str(source["sha256"]) for source in sources]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _header(
    about: About, kept: Events, split_K: Splits, dropped: dict[str, int], written: Written
) -> StoreHeader:
    rules_said = about.preparation.plain()
    sources = [[source["name"], source["sha256"]] for source in about.sources]
    # names and terms too, so that a store never answers with another file's; dates never
    identity = [written.digest, rules_said, about.num_rows_read, dropped, about.name, about.terms]
    identity += [sources, about.key_id, about.actions, about.has_times]
    said = json.dumps(identity, allow_nan=False)
    content = hashlib.sha256(said.encode()).hexdigest()
    counts = np.bincount(split_K, minlength=len(SPLIT_NAMES))
    return StoreHeader(
        schema_version=SCHEMA_VERSION,
        dataset_id=content[:16],
        dataset_name=about.name,
        content_sha256=content,
        source_sha256=one_hash(about.sources),
        terms=about.terms,
        num_rows_read=about.num_rows_read,
        num_events=len(kept),
        num_users=written.num_users,
        num_items=written.num_items,
        dropped_rows=dropped,
        num_in_split={name: int(counts[code]) for code, name in enumerate(SPLIT_NAMES)},
        tied_share=written.num_tied / len(kept),
        has_times=about.has_times,
        actions=about.actions,
        has_ratings=kept.ratings is not None,
        sources=about.sources,
        rules=rules_said,
        pseudonyms=None if about.key_id is None else {"scheme": SCHEME, "key_id": about.key_id},
        data_sheet=about.data_sheet,
    )


def _mend(about: About, dropped: dict[str, int]) -> str:
    """What to change when the reason that dropped most rows left none."""
    leading = max(dropped, key=lambda reason: dropped[reason])
    history = about.preparation.history
    hints = {
        "unparsable_time": "Name the unit with --time-unit.",
        "future_time": "Name the unit of the times with --time-unit, or set --not-after.",
        "beyond_retention": "Raise --keep-days, or leave it out.",
        "missing_rating": "Name the column with --rating, or leave --min-rating out.",
        "below_min_rating": "Lower --min-rating.",
        "outside_core": f"Lower --core ({history.core}).",
        TOO_SHORT: f"Lower the shortest history, --min-history ({history.min_history} rows).",
    }
    return hints.get(leading, "Give a file with users, items and times in its rows.")


def now_utc() -> str:
    """This moment as ISO 8601 to the second, UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _why(dropped: dict[str, int]) -> str:
    counts = ", ".join(f"{reason} {count}" for reason, count in dropped.items() if count)
    return f" Dropped: {counts}." if counts else ""


def _check_enough(about: About, kept: Events, dropped: dict[str, int]) -> None:
    """Raise InputError when what is left cannot be trained on."""
    why = _why(dropped)
    decision = about.sources[0]["decision"]
    user, item, time = (decision.get(role, "?") for role in ("user", "item", "time"))
    num_users = int((kept.lengths() > 0).sum())
    if num_users == 0:
        raise InputError(
            f"{about.name}: none of the {about.num_rows_read} rows is left.{why} "
            f"{_mend(about, dropped)} Or check the columns chosen (user '{user}', item '{item}', "
            f"time '{time}')."
        )
    if num_users == 1:
        raise InputError(
            f"{about.name}: only one user is left, and there is nothing to rank against.{why} "
            f"Check that '{user}' is the user column, or give more users."
        )
    if (kept.items == kept.items[0]).all():
        raise InputError(
            f"{about.name}: only one item is left, so there is nothing to rank.{why} "
            f"Check that '{item}' is the item column."
        )


def _check_targets(about: About, split_K: Splits, dropped: dict[str, int]) -> None:
    """Raise InputError when a split that was asked for has no event."""
    for code, name in ((VALIDATION, "validation"), (TEST, "test")):
        if about.preparation.split.kind != "last" and not (split_K == code).any():
            raise InputError(
                f"{about.name}: no event is left for {name} ({about.preparation.split.words()})."
                f"{_why(dropped)} Choose other instants, or --split last."
            )
