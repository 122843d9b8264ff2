"""Prepares a user's interactions: files in, sequence store out, every dropped row accounted for.

Before: a user's files or one of catalogue.py.   After: store_making.py writes the store.
Price: see coding.py; disk of about four times a text file while it works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from analytics.coding import CodedRows, code_rows
from analytics.data_sheet import TO_FILL
from analytics.errors import ConfigError, InputError
from analytics.group_size import MIN_GROUP_USERS, length_summary
from analytics.preparation import Preparation
from analytics.prepared import PreparedData, published_rows
from analytics.pseudonyms import PseudonymKey
from analytics.reasons import FORGOTTEN
from analytics.row_rules import RowRules
from analytics.schema import DimDataset, FactDroppedRows
from analytics.sources.files import find_files
from analytics.sources.scan import ReadingOptions, Scan, file_sha256, open_scans
from analytics.store import SPLIT_NAMES, TEST, TRAIN, VALIDATION, open_store
from analytics.store_making import About, Announce, at_work, finish, now_utc
from analytics.workplace import connect

__all__ = ["TO_FILL", "Naming", "PreparedData", "SplitFiles", "dataset_records", "prepare"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Naming:
    """What a store is called and what its data sheet says; none of it changes a row."""

    dataset_name: str | None = None  # None: the file's name
    terms: str = "unknown"
    purpose: str = TO_FILL
    lawful_basis: str = TO_FILL


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitFiles:
    """The files of the validation and the test rows, when the split is given; paths."""

    validation: str
    test: str


def prepare(
    source: Path | str,
    stores_dir: Path,
    *,
    reading: ReadingOptions | None = None,
    preparation: Preparation | None = None,
    key: PseudonymKey | None = None,
    naming: Naming | None = None,
    split_files: SplitFiles | None = None,
    out: Path | None = None,
    announce: Announce | None = None,
    now_us: int | None = None,
    memory_limit_gib: float | None = None,
) -> PreparedData:
    """Read a file, a folder or a glob into a sequence store and say what became of its rows.

    stores_dir: the store lies there under its id, unless `out` names its own folder.
    key: pseudonymises user ids; None keeps them as they came.
    announce: called when the store is whole, before it takes its place.
    now_us: the moment that future and retention are measured from [us since 1970]; None: now.
    Raises InputError for what a file causes, StoreError when the store cannot be written.
    """
    preparation, named = preparation or Preparation(), naming or Naming()
    reading = reading or ReadingOptions()
    if (preparation.split.kind == "given") != (split_files is not None):
        raise ConfigError("A given split needs --validation FILE and --test FILE, and only it.")
    parts: list[tuple[Path | str, int]] = [(source, TRAIN)]
    if split_files is not None:
        parts += [(split_files.validation, VALIDATION), (split_files.test, TEST)]
    with at_work(stores_dir if out is None else out.resolve().parent) as folder:
        opened = connect(
            folder,
            num_source_bytes=num_bytes(part for part, _ in parts),
            memory_limit_gib=memory_limit_gib,
        )
        with contextlib.closing(opened) as connection:
            opened_parts = [
                open_scans(
                    part, reading, scratch=folder, connection=connection, prefix=f"p{number}_"
                )
                for number, (part, _) in enumerate(parts)
            ]
            scans = [scan for found in opened_parts for scan in found]
            splits = None
            if split_files is not None:
                splits = [
                    split
                    for (_, split), found in zip(parts, opened_parts, strict=True)
                    for _ in found
                ]
            preparation = with_format(preparation, scans)
            coded = coded_rows(connection, scans, splits, preparation, key, now_us)
            entries = source_entries(scans, coded, reading)
            if splits is not None:
                _check_apart(entries)
            warnings = [warning for scan in scans for warning in scan.warnings]
            if any(scan.has_rating for scan in scans) and not coded.has_ratings:
                warnings.append(
                    "no value of the rating column is a number (a decimal point is needed, not a "
                    "comma), so there are no ratings. Name another with --rating COLUMN or 'none'."
                )
            about = About(
                name=named.dataset_name or Path(source).name,
                terms=named.terms,
                sources=entries,
                num_rows_read=sum(coded.num_rows),
                row_drops=coded.dropped | {FORGOTTEN: 0},
                preparation=preparation,
                key_id=None if key is None else key.key_id,
                data_sheet=_data_sheet(named, preparation),
                actions=coded.actions,
                has_times=scans[0].has_time,
                warnings=warnings,
            )
            return finish(
                connection,
                folder,
                coded.events,
                about,
                stores_dir=stores_dir,
                out=out,
                announce=announce,
            )


def dataset_records(prepared: PreparedData, *, min_group_users: int = MIN_GROUP_USERS) -> list[Any]:
    """What the warehouse keeps of a prepared set: one DimDataset, one FactDroppedRows a reason.

    The lengths are read from the store, which is to be there, and told by the rule of
    group_size.py: none that fewer than min_group_users users share, and so are the dropped rows.
    Rows of people who were erased are in no number.
    """
    store = open_store(Path(prepared.store_dir))
    lengths = length_summary(store.lengths(), min_group_users)
    in_split = prepared.num_in_split
    num_rows_read, told = published_rows(store.header, min_group_users)
    dataset = DimDataset(
        dataset_id=prepared.dataset_id,
        dataset_name=prepared.dataset_name,
        source_sha256=prepared.source_sha256,
        terms=prepared.terms,
        num_rows_read=num_rows_read,
        num_rows_kept=prepared.num_rows_kept,
        num_users=prepared.num_users,
        num_items=prepared.num_items,
        min_length=lengths.min_length,
        median_length=lengths.median_length,
        max_length=lengths.max_length,
        tied_share=prepared.tied_share,
        num_training_events=in_split[SPLIT_NAMES[TRAIN]],
        num_validation_events=in_split[SPLIT_NAMES[VALIDATION]],
        num_test_events=in_split[SPLIT_NAMES[TEST]],
        has_times=prepared.has_times,
        is_pseudonymised=prepared.is_pseudonymised,
        min_group_users=min_group_users,
    )
    dropped = [
        FactDroppedRows(dataset_id=prepared.dataset_id, reason=reason, num_rows=num_rows)
        for reason, num_rows in told.items()
    ]
    return [dataset, *dropped]


def coded_rows(
    connection: duckdb.DuckDBPyConnection,
    scans: list[Scan],
    splits: Sequence[int] | None,
    preparation: Preparation,
    key: PseudonymKey | None,
    now_us: int | None,
) -> CodedRows:
    """The scans' rows, coded and in order.

    Raises InputError when some files have times and others have none, when a time cannot be read
    and the preparation does not drop such rows, and for a retention without times.
    """
    if len({scan.has_time for scan in scans}) > 1:
        without = next(scan.label for scan in scans if not scan.has_time)
        raise InputError(
            f"{without}: has no times, but other files given with it have. Prepare them apart, or "
            "name its time column with --time COLUMN."
        )
    if preparation.keep_days is not None and not scans[0].has_time:
        raise InputError(
            f"{scans[0].label}: has no times, so nothing can expire after {preparation.keep_days} "
            "days. Name its time column with --time COLUMN, or leave --keep-days out."
        )
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    coded = code_rows(
        connection,
        scans,
        splits,
        RowRules(
            not_after_us=preparation.not_after_us(now_us),
            oldest_us=preparation.oldest_us(now_us),
            min_rating=preparation.min_rating,
        ),
        key,
    )
    _check_times(connection, scans, coded, drop=preparation.drop_unparsable_times)
    return coded


def source_entries(
    scans: list[Scan], coded: CodedRows, reading: ReadingOptions
) -> list[dict[str, Any]]:
    """What store.json says of each file that was read."""
    return [
        {
            "name": scan.name,
            "sha256": file_sha256(scan.source_path),
            "num_rows": num_rows,
            "decision": dict(scan.decision),
            "reading": {n: v for n, v in dataclasses.asdict(reading).items() if v is not None},
        }
        for scan, num_rows in zip(scans, coded.num_rows, strict=True)
    ]


def _check_apart(entries: list[dict[str, Any]]) -> None:
    """Raise InputError when two of the files of a given split are one."""
    seen: dict[str, str] = {}
    for entry in entries:
        if entry["sha256"] in seen:
            raise InputError(
                f"{entry['name']}: has the very content of {seen[entry['sha256']]}, so the same "
                "events would be trained on and tested on. Give the right file for each split."
            )
        seen[entry["sha256"]] = entry["name"]


def num_bytes(parts: Iterable[Path | str]) -> int:
    """The size of the files that paths mean: files, folders, patterns, members of a zip [bytes].

    Raises InputError for a path that leads to no file.
    """
    return sum(file.stat().st_size for part in parts for file in find_files(part).files)


def _check_times(
    connection: duckdb.DuckDBPyConnection, scans: list[Scan], coded: CodedRows, *, drop: bool
) -> None:
    """Raise InputError for unreadable times that may not be dropped, or are most of a file."""
    if coded.first_unparsable_row is None:
        return
    num_bad, row = coded.dropped["unparsable_time"], coded.first_unparsable_row
    ends = np.cumsum(coded.num_rows)
    place = int(np.searchsorted(ends, row, side="right"))
    scan, row = scans[place], row - int(ends[place]) + coded.num_rows[place]
    if drop and 2 * num_bad <= sum(coded.num_rows):
        return
    mend = "Mend the column, or name another with --time COLUMN."
    if not drop:
        mend = "Mend these rows, or give --drop-unparsable-times to leave them out and count them."
    raise InputError(
        f"{scan.label}: {num_bad} of {sum(coded.num_rows)} values of column "
        f"'{scan.decision.get('time', '')}' are not times ({scan.decision.get('time_unit', '')}); "
        f"the first is {scan.time_cell(connection, row)}. {mend}"
    )


def with_format(preparation: Preparation, scans: list[Scan]) -> Preparation:
    """The preparation, dropping the repeats that a format of growing prefixes is made of."""
    if not any(scan.deduplicate for scan in scans):
        return preparation
    history = dataclasses.replace(preparation.history, drop_exact_duplicates=True)
    return dataclasses.replace(preparation, history=history)


def _data_sheet(named: Naming, preparation: Preparation) -> dict[str, Any]:
    return {
        "purpose": named.purpose,
        "lawful_basis": named.lawful_basis,
        "retention_days": preparation.keep_days,
        "prepared_utc": now_utc(),
        "earlier_versions": [],
    }
