"""`seqscale forget`: erases people, or what is past its retention, from everything under a folder.

Stores first: each is noted before it changes and put on record when it has; then what was derived
from the old versions; then the record into the warehouse. Every step looks at what is there and on
record, not at what this call has done, so a call that was killed anywhere is finished by the next.

Ids appear in no record, message or log. Source files, trained parameters and backups are not
touched, and the report says so.

Before: flows/cli.py.   After: the stores' next versions; fact_erasure; a report.
Price: see analytics/erasure.py; then every file of the runs folder is read to see that no trace is
left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from analytics.erasure import (
    Erasure,
    StorePlace,
    erase_expired,
    erase_users,
    runs_trained_on,
    stores_under,
)
from analytics.errors import ConfigError, StoreError
from analytics.journal import JournalWriter, read_journal
from analytics.locks import held
from analytics.pseudonyms import PseudonymKey, find_key
from analytics.schema import FactErasure
from analytics.traces import TraceSearch, files_with
from analytics.warehouse import load, publish
from analytics.workplace import remove_dead
from flows.derived_files import remove_derived, training_now
from flows.forget_report import MIN_SEARCHED_BYTES, ForgetReport

__all__ = ["ForgetReport", "forget", "read_user_ids"]

LOGGER = logging.getLogger("seqscale.forget")
ERASURES = "erasures"  # the folder beside the pipelines' that keeps the record
LOCK_TIMEOUT_S = 60.0


def forget(
    runs_dir: Path,
    user_ids: list[str] | None,
    *,
    stores: Sequence[Path] = (),
    expired: bool = False,
    now_us: int | None = None,
) -> ForgetReport:
    """Erase people from every store of a runs folder, or what each store's retention forbids.

    user_ids: as they stand in the source files; None with `expired`.
    stores: more stores outside of the runs folder, or folders of stores; changed in place.
    now_us: the moment that retention is measured from [us since 1970]; None: now.
    Stores that cannot be searched are in the report; its `check` raises for them.
    Raises ConfigError for what was asked, StoreError when nothing can be written.
    """
    _check(user_ids, expired=expired)
    key = None if user_ids is None else find_key()
    runs_dir = runs_dir.resolve()
    with _alone(runs_dir):
        places = _places(runs_dir, stores)
        notes = _Notes(runs_dir / ERASURES)
        notes.settle()  # what a call that was killed has begun and done

        def erase(place: StorePlace) -> Erasure | None:
            if user_ids is None:
                return erase_expired(place, notes.begin, now_us=now_us)
            return erase_users(place, user_ids, key, notes.begin)

        erasures, not_searched = _each(places, erase, notes)
        on_record = _on_record(runs_dir)
        num_derived = remove_derived(runs_dir, on_record)
        _into_warehouse(runs_dir, on_record)
        searched = _traces(runs_dir, places, user_ids or [], key)
        report = dataclasses.replace(
            _report(runs_dir, places, notes.with_earlier(erasures), on_record),
            searched=[str(place.path) for place in places],
            num_ids=None if user_ids is None else len(user_ids),
            not_searched=not_searched,
            num_derived_removed=num_derived,
            traces=[str(path) for path in searched.holding],
            unsearched=[str(path) for path in searched.unsearched],
            num_short_ids=sum(not _is_searched(user_id) for user_id in user_ids or []),
        )
        notes.end()
    return report


def read_user_ids(given: Sequence[str], lines: Iterable[str]) -> list[str]:
    """The ids to erase: those given, with `-` standing for lines (of standard input), one a line.

    Raises ConfigError when there is none.
    """
    ids: list[str] = []
    for one in given:
        ids += [line.rstrip("\r\n") for line in lines] if one == "-" else [one]
    ids = [one for one in dict.fromkeys(ids) if one]
    if not ids:
        raise ConfigError(
            "No user id was given. Name one with --user ID, or give --user - and ids."
        )
    return ids


class _Notes:
    """What this call, and one before it that was killed, have begun; a file without any id."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / "unfinished.json"
        self._settled: list[Erasure] = []
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
            self._begun = [Erasure(**one) for one in raw]
        except (OSError, ValueError, TypeError):
            self._begun = []

    def begin(self, erasure: Erasure) -> None:
        """Note an erasure before anything is taken away."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._begun = [one for one in self._begun if not _is_same(one, erasure)] + [erasure]
        aside = self._path.with_name(f"{self._path.name}.part")
        plain = [dataclasses.asdict(one) for one in self._begun]
        aside.write_text(json.dumps(plain, allow_nan=False), "utf-8")
        aside.replace(self._path)

    def settle(self) -> None:
        """Put on record what is done; the same again for one that was on record already."""
        done = [one for one in self._begun if one not in self._settled and one.is_done()]
        if done:
            with JournalWriter(self._folder / "journal", "forget") as journal:
                for erasure in done:
                    journal.write(erasure.record())
        self._settled += done

    def with_earlier(self, erasures: list[Erasure]) -> list[Erasure]:
        """Those of this call, and before them those of a call that was killed."""
        earlier = [
            one for one in self._settled if not any(_is_same(one, other) for other in erasures)
        ]
        return [*earlier, *erasures]

    def end(self) -> None:
        """Everything is done."""
        self._path.unlink(missing_ok=True)


def _is_same(one: Erasure, other: Erasure) -> bool:
    return (one.reason, one.store_dir, one.dataset_id) == (
        other.reason,
        other.store_dir,
        other.dataset_id,
    )


def _each(
    places: list[StorePlace], erase: Callable[[StorePlace], Erasure | None], notes: _Notes
) -> tuple[list[Erasure], list[str]]:
    """Erase from one store after the other: what was done, and why others cannot be searched."""
    erasures, not_searched = [], []
    for place in places:
        try:
            done = erase(place)
        except StoreError as error:
            not_searched.append(str(error))
        else:
            if done is not None:
                LOGGER.info("forget: %s is done", done.dataset_id)
                erasures.append(done)
        notes.settle()
    return erasures, not_searched


def _check(user_ids: list[str] | None, *, expired: bool) -> None:
    if expired == (user_ids is not None):
        raise ConfigError("Give either --user ID (or --user -) or --expired.")
    for place, user_id in enumerate(user_ids or [], start=1):
        if not user_id:
            raise ConfigError(f"User id {place} is empty.")
        try:
            user_id.encode()
        except UnicodeEncodeError:  # its own message would repeat what was given
            raise ConfigError(f"User id {place} is not UTF-8, as every id in a store is.") from None
    if user_ids == []:
        raise ConfigError("No user id was given.")


def _places(runs_dir: Path, named: Sequence[Path]) -> list[StorePlace]:
    own = stores_under(runs_dir / ".work" / "stores")
    places = [StorePlace(path=path, is_named_by_id=True) for path in own]
    for folder in named:
        found = stores_under(folder)
        if not found:
            raise StoreError(f"{folder}: no sequence store is here. Name its folder with --store.")
        known = {place.path for place in places}
        places += [StorePlace(path=p, is_named_by_id=False) for p in found if p not in known]
    return places


@contextlib.contextmanager
def _alone(runs_dir: Path) -> Iterator[None]:
    """One erasure at a time; a folder that cannot be written is told as StoreError."""
    path = runs_dir / ".work" / "forget.lock"

    def late() -> StoreError:
        return StoreError(f"{path}: another 'seqscale forget' is at work. Run it again after that.")

    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with held(path, timeout_s=LOCK_TIMEOUT_S, late=late):
            yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or runs_dir}: cannot be written ({error.strerror}), so the erasure "
            "is not complete. Mend that and run the same command again; it goes on where it ended."
        ) from error


def _on_record(runs_dir: Path) -> list[FactErasure]:
    return read_journal(runs_dir / ERASURES / "journal", FactErasure).records


def _into_warehouse(runs_dir: Path, on_record: list[FactErasure]) -> None:
    if not on_record:
        return
    has_warehouse = (runs_dir / ".work" / "warehouse.duckdb").exists()
    load(runs_dir, [ERASURES] if has_warehouse else None)
    publish(runs_dir)


def _report(
    runs_dir: Path,
    places: list[StorePlace],
    erasures: list[Erasure],
    on_record: list[FactErasure],
) -> ForgetReport:
    versions = {one.dataset_id for one in erasures}
    versions |= {earlier for one in erasures for earlier in one.earlier_versions}
    at_work = {str(path) for place in places for path in remove_dead(place.path.parent)}
    at_work |= {str(path) for path in remove_dead(runs_dir / ".work" / "stores")}
    return ForgetReport(
        runs_dir=str(runs_dir),
        erasures=erasures,
        run_ids=runs_trained_on(runs_dir, sorted(versions)) if on_record else [],
        training_now=training_now(runs_dir, versions),
        at_work=sorted(at_work),
        num_on_record=len({record.erasure_id for record in on_record}),
    )


def _traces(
    runs_dir: Path, places: list[StorePlace], user_ids: list[str], key: PseudonymKey | None
) -> TraceSearch:
    """Files that still hold a pseudonym, or an id long enough to be told from chance."""
    needles = [key.pseudonym(user_id) for user_id in user_ids] if key is not None else []
    needles += [user_id for user_id in user_ids if _is_searched(user_id)]
    roots = [runs_dir, *(place.path for place in places if not place.is_named_by_id)]
    if not needles:
        return TraceSearch(holding=[], unsearched=[])
    return files_with(roots, needles)


def _is_searched(user_id: str) -> bool:
    return len(user_id.encode()) >= MIN_SEARCHED_BYTES
