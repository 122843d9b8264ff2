"""Writes every table and the measures as CSV, with a manifest that says what each column is.

Layout: `DIR/export/csv/<table>/<table>.csv`, one folder a table so that a folder connector takes
it as it is, and `DIR/export/manifest.json`.
CSV: in a dialect of csv_dialects.py; numbers of the default one come back to the last bit.

Before: the published warehouse.   After: spreadsheets, Power BI.
Price: rows are streamed, 10,000 at a time; every file is written aside and renamed.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from analytics.csv_dialects import POWERBI, Dialect, csv_lines
from analytics.ddl import view_column_docs
from analytics.errors import WarehouseError
from analytics.schema import TABLES, columns, table_key
from analytics.warehouse import WORK_NAME, open_published

# the measures by run, rank, device, pool and day; none has a row for each step or sample
VIEWS = (
    "run_efficiency",
    "run_parts",
    "run_cause",
    "run_mfu",
    "run_noise",
    "run_energy",
    "run_goodput",
    "run_scaling",
    "run_rank_parts",
    "run_device_parts",
    "straggler_ranking",
    "collective_exposure",
    "job_cause",
    "pool_parts",
    "day_parts",
    "rank_day_parts",
    "rank_day_mfu",
    "rank_day_energy",
    "device_use",
    "device_energy",
    "device_day_energy",
    "device_state",
    "device_state_day",
    "cost_by_day",
    "pipeline_cost",
    "allocation",
    "allocation_day",
    "allocation_state",
    "spot_saving",
    "bill_vs_estimate",
    "dim_date",
    "dim_cause",
    "dim_host",
    "dim_device",
)
_FETCH = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Where an export lies and how many rows each file has; JSON-able."""

    export_dir: str
    manifest: str
    rows: dict[str, int]


def export(runs_dir: Path, dialect: Dialect = POWERBI) -> ExportReport:
    """Write the published warehouse of a runs folder to `DIR/export/`.

    Every file is replaced in one rename, the manifest last, so a reader meets whole files only.
    Raises WarehouseError when there is no warehouse or the folder cannot be written.
    """
    target = runs_dir / "export"
    con = open_published(runs_dir)
    try:
        (runs_dir / WORK_NAME).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=runs_dir / WORK_NAME) as scratch:
            entries = [
                _write_table(con, name, Path(scratch), dialect) for name in (*TABLES, *VIEWS)
            ]
            manifest = Path(scratch) / "manifest.json"
            manifest.write_text(_manifest(entries, dialect), encoding="utf-8")
            for entry in entries:
                final = target / entry["path"]
                final.parent.mkdir(parents=True, exist_ok=True)
                (Path(scratch) / final.name).replace(final)
            manifest.replace(target / manifest.name)
    except (OSError, duckdb.Error) as error:
        raise WarehouseError(
            f"{target}: the export cannot be written ({error}). See that the disk has room and "
            f"the folder is yours, then run 'seqscale export --runs-dir {runs_dir}' again."
        ) from error
    finally:
        con.close()
    return ExportReport(
        export_dir=str(target),
        manifest=str(target / "manifest.json"),
        rows={entry["table"]: entry["rows"] for entry in entries},
    )


def _write_table(
    con: duckdb.DuckDBPyConnection, name: str, scratch: Path, dialect: Dialect
) -> dict[str, Any]:
    """Write one table or view aside; returns its entry of the manifest."""
    order_by = ", ".join(table_key(TABLES[name])) if name in TABLES else "ALL"
    # Names come from schema.py and sql/, never from outside.
    cursor = con.execute(f"SELECT * FROM {name} ORDER BY {order_by}")  # noqa: S608
    described = cursor.description or []
    names = [column[0] for column in described]
    digest = hashlib.sha256(dialect.start)
    num_lines = 0
    with (scratch / f"{name}.csv").open("wb") as file:
        file.write(dialect.start)
        for line in csv_lines(names, _stream(cursor), dialect):
            data = line.encode("utf-8")
            digest.update(data)
            file.write(data)
            num_lines += 1
    return {
        "table": name,
        "path": f"csv/{name}/{name}.csv",
        "rows": num_lines - 1,
        "sha256": digest.hexdigest(),
        "columns": _columns(name, [(column[0], str(column[1])) for column in described]),
    }


def _stream(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while batch := cursor.fetchmany(_FETCH):
        yield from batch


def _columns(name: str, typed: list[tuple[str, str]]) -> list[dict[str, str]]:
    if name in TABLES:
        docs = {c.name: (c.unit, c.doc) for c in columns(TABLES[name])}
    else:
        docs = view_column_docs(name)
    return [
        {"name": column, "type": kind, "unit": docs[column][0], "doc": docs[column][1]}
        for column, kind in typed
    ]


def _manifest(entries: list[dict[str, Any]], dialect: Dialect) -> str:
    now = datetime.datetime.now(datetime.UTC)
    content = {
        "generated_utc": now.isoformat(timespec="seconds"),
        "generated_by": f"seqscale {_version()}",
        "dialect": {
            "name": dialect.name,
            "delimiter": dialect.delimiter,
            "decimal": dialect.decimal,
            "encoding": "UTF-8",
            "has_byte_order_mark": dialect.has_bom,
            "null": "empty cell",
            "line_end": {"\n": "LF", "\r\n": "CRLF"}[dialect.line_end],
        },
        "tables": entries,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _version() -> str:
    try:
        return importlib.metadata.version("seqscale")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
