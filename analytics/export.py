"""Writes every table and the efficiency view as CSV, with a manifest that says what each column is.

Layout: `DIR/export/csv/<table>/<table>.csv`, one folder a table so that a folder connector takes
it as it is, and `DIR/export/manifest.json`.
CSV: UTF-8 without a byte-order mark, `,` and `.`, one header row, LF, RFC 4180 quotes; NULL is an
empty cell, an empty text is `""`, true and false are 1 and 0. A text cell that a spreadsheet would
run as a formula gets a leading apostrophe (OWASP, CSV injection); numbers are never touched.

Before: the published warehouse.   After: spreadsheets, Power BI.
Price: rows are streamed, 10,000 at a time; every file is written aside and renamed.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import hashlib
import importlib.metadata
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from analytics.ddl import view_column_docs
from analytics.errors import WarehouseError
from analytics.schema import TABLES, columns, table_key
from analytics.warehouse import WORK_NAME, open_published

VIEWS = {"run_efficiency": ("run_id",)}  # exported views and what orders their rows
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_FETCH = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Where an export lies and how many rows each file has; JSON-able."""

    export_dir: str
    manifest: str
    rows: dict[str, int]


def export(runs_dir: Path) -> ExportReport:
    """Write the published warehouse of a runs folder to `DIR/export/`.

    Every file is replaced in one rename, the manifest last, so a reader meets whole files only.
    Raises WarehouseError when there is no warehouse or the folder cannot be written.
    """
    target = runs_dir / "export"
    con = open_published(runs_dir)
    try:
        (runs_dir / WORK_NAME).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=runs_dir / WORK_NAME) as scratch:
            entries = [_write_table(con, name, Path(scratch)) for name in (*TABLES, *VIEWS)]
            manifest = Path(scratch) / "manifest.json"
            manifest.write_text(_manifest(entries), encoding="utf-8")
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


def csv_lines(names: list[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Header and rows as CSV lines, each with its line end; see the module for the dialect.

    Raises ValueError for NaN and infinity, which would turn a column of numbers into text.
    """
    yield ",".join(map(csv_cell, names)) + "\n"
    for row in rows:
        yield ",".join(map(csv_cell, row)) + "\n"


def csv_cell(value: Any) -> str:
    """One value as it stands in the CSV."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} cannot be exported; it would turn its column into text")
        return repr(value)
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if text.startswith(_FORMULA_STARTS):
        text = "'" + text
    if not text or any(mark in text for mark in ',"\n\r') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _write_table(con: duckdb.DuckDBPyConnection, name: str, scratch: Path) -> dict[str, Any]:
    """Write one table or view aside; returns its entry of the manifest."""
    order = VIEWS.get(name) or table_key(TABLES[name])
    order_by = ", ".join(order)
    # Names come from schema.py and sql/, never from outside.
    cursor = con.execute(f"SELECT * FROM {name} ORDER BY {order_by}")  # noqa: S608
    described = cursor.description or []
    names = [column[0] for column in described]
    digest = hashlib.sha256()
    num_lines = 0
    with (scratch / f"{name}.csv").open("wb") as file:
        for line in csv_lines(names, _stream(cursor)):
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


def _manifest(entries: list[dict[str, Any]]) -> str:
    now = datetime.datetime.now(datetime.UTC)
    content = {
        "generated_utc": now.isoformat(timespec="seconds"),
        "generated_by": f"seqscale {_version()}",
        "dialect": {
            "delimiter": ",",
            "decimal": ".",
            "encoding": "UTF-8",
            "null": "empty cell",
            "line_end": "LF",
        },
        "tables": entries,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _version() -> str:
    try:
        return importlib.metadata.version("seqscale")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
