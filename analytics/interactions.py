"""Prepares a user's interactions: file in, sequence store out, every dropped row accounted for.

The work is done in a folder beside the stores and renamed as a whole, so a store is never half
there; whatever fails, that folder is removed. The same content gets the same id and is reused.

Before: a user's file or one of catalogue.py.   After: profile.py, training/planning, the ranks.
Price: 10 million rows of CSV take about 53 s of CPU time over two cores and 1 GiB; memory is
limited, disk is not (about four times the file).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from analytics.columns import InteractionColumns
from analytics.errors import ConfigError, InputError, StoreError
from analytics.event_times import find_time_rule, unreadable_cell
from analytics.reading import (
    Source,
    is_storage_failure,
    load_rows,
    open_source,
    storage_error,
)
from analytics.schema import DimDataset, FactDroppedRows
from analytics.sequencing import build_sequences
from analytics.store import (
    SCHEMA_VERSION,
    StoreHeader,
    open_store,
    read_header,
    write_arrays,
    write_header,
)
from analytics.store_files import Arrays, Digest, collect_arrays, export_tables, hash_maps

__all__ = ["InteractionColumns", "PreparedData", "dataset_records", "file_sha256", "prepare"]

_MAKING = ".making-"
_STALE_S = 86_400  # a working folder this old belongs to a killed run


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A prepared set of sequences and where it lies; plain values only, so it travels as JSON."""

    store_dir: str
    dataset_id: str
    dataset_name: str
    source_sha256: str
    terms: str
    num_rows_read: int
    num_rows_kept: int
    dropped_rows: dict[str, int]  # by reason; read = kept + their sum
    num_users: int
    num_items: int
    min_length: int  # events of the shortest history
    median_length: float
    max_length: int
    tied_share: float  # share of events whose user has another at that time
    first_event_utc: str
    last_event_utc: str


def prepare(
    source: Path,
    stores_dir: Path,
    *,
    columns: InteractionColumns,
    min_history: int,
    max_history: int,
    dataset_name: str | None = None,
    terms: str = "unknown",
    drop_unparsable_times: bool = False,
    memory_limit_gib: float | None = None,
) -> PreparedData:
    """Read a file of interactions into a sequence store and say what became of its rows.

    min_history, max_history: users with fewer rows are dropped, of longer ones the newest stay.
    drop_unparsable_times: drop and count rows whose time cannot be read, instead of refusing the
    file; a file in which more than half cannot be read is refused all the same.
    memory_limit_gib: DuckDB's share of memory [GiB]; None: 2 GiB, or half of a smaller machine.
    Raises InputError for what the file causes, StoreError when stores_dir cannot be written.
    """
    if not 1 <= min_history <= max_history:
        raise ConfigError(
            f"min_history is {min_history} and max_history is {max_history}; needed is "
            "1 <= min_history <= max_history. Change one of them."
        )
    try:
        with _working_folder(stores_dir) as folder:
            return _prepare_in(
                folder,
                source,
                stores_dir,
                columns=columns,
                bounds=(min_history, max_history),
                name=dataset_name or source.name,
                terms=terms,
                drop_unparsable_times=drop_unparsable_times,
                memory_limit_gib=memory_limit_gib,
            )
    except OSError as error:
        raise storage_error(stores_dir, error) from error
    except duckdb.Error as error:
        if is_storage_failure(error):
            raise storage_error(stores_dir, error) from error
        raise


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def dataset_records(prepared: PreparedData) -> list[Any]:
    """What the warehouse keeps of a prepared set: one DimDataset, one FactDroppedRows a reason."""
    names = {field.name for field in dataclasses.fields(DimDataset)}
    values = dataclasses.asdict(prepared)
    records: list[Any] = [DimDataset(**{name: values[name] for name in sorted(names)})]
    for reason, num_rows in prepared.dropped_rows.items():
        records.append(
            FactDroppedRows(dataset_id=prepared.dataset_id, reason=reason, num_rows=num_rows)
        )
    return records


def _prepare_in(
    folder: Path,
    path: Path,
    stores_dir: Path,
    *,
    columns: InteractionColumns,
    bounds: tuple[int, int],
    name: str,
    terms: str,
    drop_unparsable_times: bool,
    memory_limit_gib: float | None,
) -> PreparedData:
    with _connect(folder, memory_limit_gib) as connection:
        source = open_source(path, columns, connection)
        num_read = load_rows(connection, source)
        rule = find_time_rule(connection, source, num_read)
        result = build_sequences(connection, rule.sql, min_history=bounds[0], max_history=bounds[1])
        dropped = result.by_reason
        bad_cell = None
        if result.first_unparsable_row is not None:
            bad_cell = unreadable_cell(connection, source, result.first_unparsable_row)
            if not drop_unparsable_times:
                raise InputError(
                    f"{path}: {dropped['unparsable_time']} of {num_read} values of column "
                    f"'{source.names[source.time]}' are not times ({rule.words}); the first is "
                    f"{bad_cell}. Mend these rows, or give --drop-unparsable-times to leave them "
                    "out and count them."
                )
        store_folder = folder / "store"
        store_folder.mkdir(mode=0o700)
        arrays = collect_arrays(connection, folder)
        num_kept = len(arrays.items)
        assert num_read == num_kept + sum(dropped.values()), "rows were lost or counted twice"
        _check_enough(source, arrays, dropped, num_read, bounds[0])
        rules = _rules(source, rule.words, bounds)
        source_sha256 = file_sha256(path)
        # the header's words too, so that a store never answers with another file's name or terms
        identity = [rules, num_read, dropped, name, terms, source_sha256]
        content = hash_maps(connection, Digest(arrays), json.dumps(identity))
        export_tables(connection, store_folder)
        if bad_cell is not None:
            rules["first_unparsable_time"] = bad_cell
    write_arrays(store_folder, items=arrays.items, times=arrays.times, offsets=arrays.offsets)
    header = StoreHeader(
        schema_version=SCHEMA_VERSION,
        dataset_id=content[:16],
        dataset_name=name,
        content_sha256=content,
        source_sha256=source_sha256,
        terms=terms,
        num_rows_read=num_read,
        num_events=num_kept,
        num_users=arrays.num_users,
        num_items=arrays.num_items,
        dropped_rows=dropped,
        tied_share=arrays.num_tied / num_kept,
        rules=rules,
    )
    write_header(store_folder, header)
    final = stores_dir / header.dataset_id
    _put_in_place(store_folder, final)
    return _prepared(final, header, arrays)


def _check_enough(
    source: Source, arrays: Arrays, dropped: dict[str, int], num_read: int, min_history: int
) -> None:
    """Raise InputError when what is left cannot be trained on."""
    counts = ", ".join(f"{reason} {count}" for reason, count in dropped.items() if count)
    why = f" Dropped: {counts}." if counts else ""
    if arrays.num_users == 0:
        raise InputError(
            f"{source.path}: none of the {num_read} rows is left.{why} Check the columns chosen "
            f"(user '{source.names[source.user]}', item '{source.names[source.item]}', time "
            f"'{source.names[source.time]}'), or lower the shortest history ({min_history} rows)."
        )
    if arrays.num_users == 1:
        raise InputError(
            f"{source.path}: only one user is left, and there is nothing to rank against.{why} "
            f"Check that '{source.names[source.user]}' is the user column, or give more users."
        )
    if arrays.num_items == 1:
        raise InputError(
            f"{source.path}: only one item is left, so there is nothing to rank.{why} "
            f"Check that '{source.names[source.item]}' is the item column."
        )


def _rules(source: Source, time_words: str, bounds: tuple[int, int]) -> dict[str, Any]:
    """The rules the store was made by, for its header."""
    return {
        "user_column": source.names[source.user],
        "item_column": source.names[source.item],
        "time_column": source.names[source.time],
        "time_unit": time_words,
        "time_resolution": "microseconds; finer differences count as equal",
        "order": "by time, equal times by their order in the file",
        "split": "leave last one out: test = last, validation = last but one",
        "user_index": "by first appearance in the file",
        "item_index": "by MD5 of the item id",
        "min_history": bounds[0],
        "max_history": bounds[1],
    }


def _prepared(final: Path, header: StoreHeader, arrays: Arrays) -> PreparedData:
    lengths = np.diff(arrays.offsets)
    return PreparedData(
        store_dir=str(final.resolve()),
        dataset_id=header.dataset_id,
        dataset_name=header.dataset_name,
        source_sha256=header.source_sha256,
        terms=header.terms,
        num_rows_read=header.num_rows_read,
        num_rows_kept=header.num_events,
        dropped_rows=header.dropped_rows,
        num_users=header.num_users,
        num_items=header.num_items,
        min_length=int(lengths.min()),
        median_length=float(np.median(lengths)),
        max_length=int(lengths.max()),
        tied_share=header.tied_share,
        first_event_utc=_utc(arrays.first_us),
        last_event_utc=_utc(arrays.last_us),
    )


def _utc(time_us: int) -> str:
    return f"{np.datetime_as_string(np.datetime64(time_us, 'us'), unit='s')}Z"


def _put_in_place(store_folder: Path, final: Path) -> None:
    """Rename the finished store to its id, unless a sound one with that id is there already."""
    for file in store_folder.iterdir():
        file.chmod(0o600)
    if _is_sound(final):
        return
    if final.exists():  # damaged: out of the way, into the folder that is about to be removed
        final.rename(store_folder.with_name("damaged"))
    try:
        store_folder.rename(final)
    except OSError:
        if not _is_sound(final):  # else another process was faster with the same content
            raise


def _is_sound(path: Path) -> bool:
    try:
        open_store(path)
        read_header(path)
    except StoreError:
        return False
    return all((path / f"{name}.parquet").is_file() for name in ("events", "item_map", "user_map"))


@contextlib.contextmanager
def _working_folder(stores_dir: Path) -> Iterator[Path]:
    """A folder of our own beside the stores, removed whatever happens."""
    stores_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in stores_dir.glob(f"{_MAKING}*"):
        with contextlib.suppress(OSError):  # another run may be removing it too
            if time.time() - old.stat().st_mtime > _STALE_S:
                shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_MAKING, dir=stores_dir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _connect(folder: Path, memory_limit_gib: float | None) -> duckdb.DuckDBPyConnection:
    """A DuckDB database of our own that stays within its memory and away from the network."""
    limit_gib = memory_limit_gib
    if limit_gib is None:
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit_gib = min(2.0, total_bytes / 2**31)
    connection = duckdb.connect(
        str(folder / "prepare.duckdb"),
        config={
            "memory_limit": f"{limit_gib * 1024:.0f}MiB",
            "temp_directory": str(folder / "spill"),
            "threads": str(min(os.cpu_count() or 1, 8)),  # each thread needs memory of its own
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    return connection
