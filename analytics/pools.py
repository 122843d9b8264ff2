"""Imports what only the owner of machines can tell: pools, teams, and when devices were allocated.

Three kinds of CSV, told apart by their header, each with the column names of its table:
`pool_id,cloud,...` (dim_pool), `team_id,team_name` (dim_team), and
`pool_id,host,device_id,event,event_utc,...` (fact_pool_event), whose times are ISO 8601, UTC where
they name no offset. Columns that may be NULL may be left out; an empty cell is NULL.

Before: a file, or a folder of such files.   After: landing.py keeps them; sql/15x reads them.
Price: a row at a time in Python; such files are small.
"""

from __future__ import annotations

import csv
import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

from analytics.billing import instant
from analytics.errors import InputError
from analytics.focus_files import digest
from analytics.landing import find, insert_records, land, landing_tables, none_usable
from analytics.records import columns, from_mapping, table_key
from analytics.schema import DimImport, DimPool, DimTeam, FactImportReject, FactPoolEvent

SOURCE_KIND = "pools_csv"
EVENTS = ("allocated", "released", "preempted", "failed")
CLOUDS = ("aws", "azure", "own")
PURCHASES = ("on_demand", "spot", "reserved", "own")
# a file is of the first of these whose columns it has
_KINDS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (FactPoolEvent, ("pool_id", "host", "device_id", "event", "event_utc")),
    (DimPool, ("pool_id", "cloud")),
    (DimTeam, ("team_id", "team_name")),
)
_ALLOWED = {"event": EVENTS, "cloud": CLOUDS, "purchase": PURCHASES}
_TEXT_CHARS = 200
_MOST_BYTES = 256 * 2**20
_MOST_ROWS = 1_000_000  # they are held in memory, to be compared by their keys


@dataclasses.dataclass(kw_only=True)
class _Rows:
    """What a file gave."""

    records: dict[tuple[Any, ...], Any] = dataclasses.field(default_factory=dict)
    rejects: list[FactImportReject] = dataclasses.field(default_factory=list)
    num_read: int = 0


def looks_like_pools(path: Path) -> bool:
    """Whether a file, or a file right in a folder, tells of pools, teams or allocations."""
    return bool(_files(path))


def import_pools(path: Path, runs_dir: Path) -> DimImport:
    """Import pools, teams and allocations from a CSV file or a folder of them.

    Raises InputError when there is no such file, it cannot be read or no row of it can be used,
    WarehouseError when the landing zone cannot be written.
    """
    paths = _files(path)
    if not paths:
        kinds = "; ".join(",".join(needed) for _, needed in _KINDS)
        raise InputError(
            f"{path}: no CSV file with the columns of pools, teams or allocations is here. Give "
            f"one whose header has one of: {kinds}."
        )
    sha256, num_bytes = digest(paths)
    import_id = sha256[:16]
    known = find(runs_dir, import_id)
    if known is not None:
        return known
    found: dict[type, _Rows] = {}
    for one in paths:
        _read(one, import_id, found)
    if not any(rows.records for rows in found.values()):
        reasons = Counter(reject.reason for rows in found.values() for reject in rows.rejects)
        raise none_usable(str(path), reasons, "docs/costs.md")
    about = _about(path, paths, found, import_id, sha256, num_bytes)
    with landing_tables(runs_dir) as con:
        for rows in found.values():
            insert_records(con, list(rows.records.values()))
            insert_records(con, rows.rejects)
        land(con, runs_dir, about)
    return about


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(f for f in path.glob("*.csv") if _kind(f) is not None)
    return [path] if _kind(path) is not None else []


def _kind(path: Path) -> type | None:
    """The record that the file's rows are, by its header."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline(65_536)
        header = {name.strip() for name in next(csv.reader([line]), [])}
    except (OSError, UnicodeError, csv.Error):
        return None
    return next((record for record, needed in _KINDS if header >= set(needed)), None)


def _read(path: Path, import_id: str, found: dict[type, _Rows]) -> None:
    """Add a file's rows to those of its kind."""
    record = _kind(path)
    assert record is not None
    rows = found.setdefault(record, _Rows())
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            for cells in reader:
                rows.num_read += 1
                if rows.num_read > _MOST_ROWS:
                    raise InputError(
                        f"{path}: with this file there are more than {_MOST_ROWS:,} rows of its "
                        "kind. Cut it into smaller files and import them one by one."
                    )
                try:
                    made = _record(record, cells)
                    key = tuple(getattr(made, name) for name in table_key(record))
                    if rows.records.setdefault(key, made) != made:
                        raise ValueError("contradicts_a_row_before")
                except ValueError as error:
                    text = ",".join(str(value) for value in cells.values())[:_TEXT_CHARS]
                    rows.rejects.append(
                        FactImportReject(
                            import_id=import_id,
                            file_name=path.name,
                            line=reader.line_num,
                            reason=str(error),
                            text=text,
                        )
                    )
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(
            f"{path}: the file cannot be read ({error}). Give a CSV file in UTF-8."
        ) from error


def _record(record: type, cells: dict[str | None, Any]) -> Any:
    """A row as its record; ValueError with the reason when it is none."""
    if None in cells or None in cells.values():
        raise ValueError("wrong_number_of_cells")
    if any("\0" in str(value) for value in cells.values()):
        raise ValueError("zero_byte")
    texts = {str(name).strip(): str(value).strip() for name, value in cells.items()}
    values: dict[str, Any] = {}
    for spec in columns(record):
        text = texts.get(spec.name, "")
        if spec.name == "event_unix_ns":
            values[spec.name] = _time(texts["event_utc"])
        elif spec.name == "pipeline_id":
            values[spec.name] = text
        elif not text:
            if not spec.nullable:
                raise ValueError(f"missing_{spec.name}")
            values[spec.name] = None
        else:
            values[spec.name] = _value(spec.name, spec.python_type, text)
    if values.get("device_hour_cost") is not None and values["currency"] is None:
        raise ValueError("missing_currency")
    try:
        return from_mapping(record, values)
    except ValueError as error:
        raise ValueError(f"out_of_bounds_{str(error).split(chr(39))[1]}") from error


def _value(name: str, python_type: type, text: str) -> Any:
    if text not in _ALLOWED.get(name, (text,)):
        raise ValueError(f"unknown_{name}")
    try:
        return text if python_type is str else python_type(text)
    except ValueError:
        raise ValueError(f"unreadable_{name}") from None


def _time(text: str) -> int:
    try:
        return instant(text)
    except (ValueError, OverflowError):
        raise ValueError("unreadable_event_utc") from None


def _about(
    path: Path,
    paths: list[Path],
    found: dict[type, _Rows],
    import_id: str,
    sha256: str,
    num_bytes: int,
) -> DimImport:
    num_read = sum(rows.num_read for rows in found.values())
    num_rejected = sum(len(rows.rejects) for rows in found.values())
    events = found[FactPoolEvent].records.values() if FactPoolEvent in found else ()
    times = [event.event_unix_ns for event in events]
    return DimImport(
        import_id=import_id,
        source_kind=SOURCE_KIND,
        source_name=path.name,
        source_sha256=sha256,
        num_bytes=num_bytes,
        num_files=len(paths),
        num_read=num_read,
        num_loaded=num_read - num_rejected,
        num_rejected=num_rejected,
        num_records=sum(len(rows.records) for rows in found.values()),
        num_conflicts=0,
        host=None,
        time_zone=None,
        clock_offset_ns=None,
        clock_uncertainty_ns=None,
        clock_skew_ppm=None,
        collector=None,
        first_unix_ns=min(times, default=None),
        last_unix_ns=max(times, default=None),
        imported_unix_ns=time.time_ns(),
        pipeline_id="",
        options_text=None,
    )
