"""Reads the journals of a pipeline and replaces what the warehouse has of it.

Before: ranks, sampler and flow wrote journals (analytics/journal.py).   After: warehouse.py loads
them in one transaction with the imports.
Price: every line is checked in Python before DuckDB reads it in bulk, most of a load's time; the
journals of attempts that were not kept are read for the times of their steps alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from analytics.ddl import quoted, reader_types
from analytics.errors import JournalError, WarehouseError
from analytics.journal import read_journal, tables_in
from analytics.records import is_bulk
from analytics.schema import TABLES, DimAttempt, DimImport, columns, table_key, to_mapping

_ATTEMPT = re.compile(r"^attempt-(\d+)$")
# Where a record tells when it was: (table, its start, its length in seconds if it has one).
_TIMES = (
    ("dim_run", "started_unix_ns", None),
    ("fact_step", "started_unix_ns", "window_s"),
    ("fact_span", "began_unix_ns", "duration_s"),
    ("fact_device_sample", "sampled_unix_ns", None),
)
Records = dict[str, dict[tuple[Any, ...], Any]]  # table -> key -> record


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineRead:
    """What the journals of one pipeline hold."""

    attempt: int | None  # the one that is kept; None when none began
    records: Records
    num_torn: int
    num_repeated: int


def pipeline_folders(runs_dir: Path) -> dict[str, Path]:
    """The folder of every pipeline by its name, oldest first.

    A folder with a journal or an attempt is a pipeline's.
    """
    known: dict[str, Path] = {}
    if runs_dir.is_dir():
        for folder in sorted(runs_dir.iterdir()):
            if folder.is_dir() and ((folder / "journal").is_dir() or _attempts(folder)):
                known[folder.name] = folder
    return known


def chosen_folders(
    runs_dir: Path, pipeline_ids: Sequence[str] | None, *, has_imports: bool
) -> dict[str, Path]:
    """The folders to load: the named ones, or all.

    Raises WarehouseError when there is nothing to load at all, or no such pipeline.
    """
    known = pipeline_folders(runs_dir)
    if not known and not has_imports:
        raise WarehouseError(
            f"{runs_dir}: no pipeline has run here. Run 'seqscale run --runs-dir {runs_dir}' first."
        )
    if pipeline_ids is None:
        return known
    for name in pipeline_ids:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there is none"
            raise WarehouseError(
                f"{runs_dir / name}: there is no such pipeline; {there}. "
                f"Run 'seqscale load --runs-dir {runs_dir}' to load all of them."
            )
    return {name: known[name] for name in dict.fromkeys(pipeline_ids)}


def read_pipeline(folder: Path) -> PipelineRead:
    """Every record of a pipeline: its own journal, and that of its last attempt.

    Raises JournalError for a line that is no record, in any attempt's journal.
    """
    records: Records = {}
    attempts = _attempts(folder)
    begun = [(n, journal) for n, journal in attempts if tables_in(journal)]
    kept = begun[-1][0] if begun else None
    num_torn = num_read = 0
    for attempt, journal in [(None, folder / "journal"), *begun[-1:]]:
        torn, read = _read_journal(folder, attempt, journal, tables_in(journal), records)
        num_torn, num_read = num_torn + torn, num_read + read
    num_repeated = num_read - sum(len(keyed) for keyed in records.values())
    records["dim_attempt"] = {}
    for attempt, journal in attempts:
        told = records if attempt == kept else _times_of(folder, attempt, journal)
        about = _about_attempt(folder.name, attempt, told, is_kept=attempt == kept)
        records["dim_attempt"][folder.name, attempt] = about
        if attempt != kept:  # what a lost attempt did besides its steps is time of the job too
            records.setdefault("fact_span", {}).update(told.get("fact_span", {}))
    return PipelineRead(attempt=kept, records=records, num_torn=num_torn, num_repeated=num_repeated)


def replace_pipeline(
    con: duckdb.DuckDBPyConnection, pipeline_id: str, read: PipelineRead, scratch: Path
) -> None:
    """Delete what the warehouse has of a pipeline and insert what was read."""
    for name, record in TABLES.items():
        is_of_pipeline = any(c.name == "pipeline_id" for c in columns(record))
        if is_of_pipeline and record is not DimImport:  # what was imported stays known
            # Names come from schema.py, never from outside.
            con.execute(f"DELETE FROM {name} WHERE pipeline_id = ?", [pipeline_id])  # noqa: S608
        insert_in_bulk(con, name, read.records.get(name, {}).values(), scratch)


def insert_in_bulk(
    con: duckdb.DuckDBPyConnection, name: str, found: Iterable[Any], scratch: Path
) -> None:
    """Put records into their table of the warehouse, through a file that DuckDB reads at once."""
    path = scratch / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in found:
            file.write(json.dumps(to_mapping(row), allow_nan=False) + "\n")
    if path.stat().st_size:
        rows = (
            f"SELECT * FROM read_json({quoted(str(path))}, "  # noqa: S608
            f"format = 'newline_delimited', columns = {reader_types(TABLES[name])})"
        )
        verb = "INSERT" if is_bulk(TABLES[name]) else "INSERT OR REPLACE"
        con.execute(f"{verb} INTO {name} BY NAME {rows}")


def _attempts(folder: Path) -> list[tuple[int, Path]]:
    """(number, journal) of every attempt of a pipeline, in order."""
    found = []
    for child in folder.iterdir():
        match = _ATTEMPT.match(child.name)
        if match and child.is_dir():
            found.append((int(match[1]), child / "journal"))
    return sorted(found)


def _read_journal(
    folder: Path, attempt: int | None, journal: Path, names: Iterable[str], into: Records
) -> tuple[int, int]:
    """Read tables of a journal into `into`; how many lines were torn, and how many records read."""
    num_torn = num_read = 0
    for name in names:
        read = read_journal(journal, TABLES[name], hint=f"seqscale load {folder}")
        num_torn += read.num_torn_lines
        num_read += len(read.records)
        keyed = into.setdefault(name, {})
        for record in read.records:
            _check_belongs(record, name, folder.name, attempt, journal)
            keyed[tuple(getattr(record, k) for k in table_key(TABLES[name]))] = record
    return num_torn, num_read


def _times_of(folder: Path, attempt: int, journal: Path) -> Records:
    """The records of an attempt that was not kept which tell when it was."""
    records: Records = {}
    there = set(tables_in(journal))
    names = [name for name, _, _ in _TIMES if name in there]
    _read_journal(folder, attempt, journal, names, records)
    return records


def _about_attempt(
    pipeline_id: str, attempt: int, records: Records, *, is_kept: bool
) -> DimAttempt:
    """When an attempt began and ended, by its own records."""
    began, ended = [], []
    for name, start, length in _TIMES:
        for record in records.get(name, {}).values():
            if record.attempt != attempt or getattr(record, "span_kind", None) == "reporting":
                continue  # reporting begins when the attempt is over
            began.append(getattr(record, start))
            length_s = getattr(record, length) if length else 0.0
            ended.append(began[-1] + round(length_s * 1e9))
    steps = list(records.get("fact_step", {}).values())
    return DimAttempt(
        pipeline_id=pipeline_id,
        attempt=attempt,
        began_unix_ns=min(began, default=None),
        ended_unix_ns=max(ended, default=None),
        is_kept=is_kept,
        num_ranks=len({step.rank for step in steps}),
        num_rank_steps=len(steps),
        window_s=math.fsum(step.window_s for step in steps),
    )


def _check_belongs(
    record: Any, name: str, pipeline_id: str, attempt: int | None, journal: Path
) -> None:
    """A record of another pipeline or attempt would outlive its own folder's reload."""
    for field, expected in (("pipeline_id", pipeline_id), ("attempt", attempt)):
        found = getattr(record, field, None)
        if expected is not None and found is not None and found != expected:
            raise JournalError(
                f"{journal / name}: a record has {field} {found!r}, but its folder belongs to "
                f"{expected!r}. Move the segment to the folder it came from."
            )
