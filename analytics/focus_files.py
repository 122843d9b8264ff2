"""Reads the rows of a FOCUS cost export, whatever file it comes in, without holding it in memory.

FOCUS is the FinOps Open Cost and Usage Specification; AWS Data Exports and Azure Cost Management
offer it as CSV, gzipped CSV and Parquet, a large one in several files of one folder. Column names
are compared without regard to case. Columns that we do not keep, x_ columns above all, are passed
over.

Before: a file or folder of the user.   After: billing.py checks each row.
Price: a row at a time in Python; memory for one batch.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import duckdb

from analytics.ddl import quoted
from analytics.errors import InputError

# our name -> the names that versions of FOCUS give the column, newest first
COLUMNS: dict[str, tuple[str, ...]] = {
    "billed_cost": ("BilledCost",),
    "effective_cost": ("EffectiveCost",),
    "list_cost": ("ListCost",),
    "contracted_cost": ("ContractedCost",),
    "currency": ("BillingCurrency",),
    "charge_began": ("ChargePeriodStart",),
    "charge_ended": ("ChargePeriodEnd",),
    "period_began": ("BillingPeriodStart",),
    "charge_category": ("ChargeCategory", "ChargeType"),
    "billing_account_id": ("BillingAccountId",),
    "provider": ("ServiceProviderName", "ProviderName", "Provider"),
    "service_name": ("ServiceName",),
    "sku_id": ("SkuId",),
    "region": ("RegionId", "Region"),
    "resource_id": ("ResourceId",),
    "resource_type": ("ResourceType",),
    "pricing_category": ("PricingCategory",),
    "consumed_quantity": ("ConsumedQuantity", "UsageQuantity"),
    "consumed_unit": ("ConsumedUnit", "UsageUnit"),
    "tags": ("Tags",),
}
NEEDED = ("billed_cost", "currency", "charge_began", "charge_ended", "charge_category")
_MOST_CELL_CHARS = 4_000_000
_CHUNK_BYTES = 1 << 20
_FETCH = 10_000
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawRow:
    """One row of an export as it stood; a cell that was empty or is not there is None."""

    file_name: str
    line: int  # in its file, from 1
    cells: dict[str, str | None]
    fault: str | None = None  # why the row cannot be read at all
    text: str = ""  # as it stood, when it cannot be read


def export_files(path: Path) -> list[Path]:
    """The files of an export, sorted: the file itself, or every one of a folder that is FOCUS."""
    if path.is_dir():
        return sorted(f for f in path.rglob("*") if f.is_file() and is_focus_file(f))
    return [path] if path.is_file() and is_focus_file(path) else []


def is_focus_file(path: Path) -> bool:
    """Whether a file has the columns that every FOCUS export has."""
    if path.name.startswith((".", "_")):
        return False
    try:
        names = _header(path)
    except (OSError, EOFError, zlib.error, UnicodeError, csv.Error, duckdb.Error):
        return False
    places = _places(names)
    return all(name in places for name in NEEDED)


def digest(paths: list[Path]) -> tuple[str, int]:
    """(SHA-256, bytes) of the files: of one its own, of several that of their sorted digests.

    Raises InputError when a file cannot be read.
    """
    found, num_bytes = [], 0
    for path in paths:
        one = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    one.update(chunk)
                    num_bytes += len(chunk)
        except OSError as error:
            raise InputError(f"{path}: the export cannot be read ({error}).") from error
        found.append(one.hexdigest())
    if len(found) == 1:
        return found[0], num_bytes
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest(), num_bytes


def rows(path: Path) -> Iterator[RawRow]:
    """Every row of one file of an export, in order; blank lines are passed over.

    Raises InputError when the file is cut short or damaged.
    """
    try:
        yield from _parquet_rows(path) if _is_parquet(path) else _csv_rows(path)
    except (OSError, EOFError, zlib.error, UnicodeError, duckdb.Error) as error:
        raise InputError(
            f"{path}: the export cannot be read to its end ({str(error).splitlines()[0]}). It is "
            "cut short or damaged; fetch it again. Nothing was imported."
        ) from error


def _csv_rows(path: Path) -> Iterator[RawRow]:
    with _text(path) as file:
        csv.field_size_limit(_MOST_CELL_CHARS)
        reader = csv.reader(file)
        names = next(reader, [])
        if any("\0" in name for name in names):
            raise InputError(
                f"{path}: a zero byte stands in the header, so the columns are not sure. Fetch the "
                "export again, or mend its first line. Nothing was imported."
            )
        places = _places(names)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield _faulty(path, reader.line_num, "unreadable_line", str(error))
                continue
            if not any(cells):
                continue
            if any("\0" in cell for cell in cells):
                text = ",".join(cells).replace("\0", "\u2400")  # the symbol for it
                yield _faulty(path, reader.line_num, "zero_byte", text)
                continue
            if len(cells) != len(names):
                yield _faulty(path, reader.line_num, "wrong_number_of_cells", ",".join(cells))
                continue
            found = {name: cells[place].strip() or None for name, place in places.items()}
            yield RawRow(
                file_name=path.name, line=reader.line_num, cells=found, text=",".join(cells)
            )


def _faulty(path: Path, line: int, fault: str, text: str) -> RawRow:
    return RawRow(file_name=path.name, line=line, cells={}, fault=fault, text=text)


def _parquet_rows(path: Path) -> Iterator[RawRow]:
    """Every value as DuckDB writes it: a decimal with all its places, a double in its shortest."""
    with duckdb.connect(":memory:") as con:
        con.execute("SET TimeZone = 'UTC'")
        types = _parquet_types(con, path)
        places = _places(list(types))
        names = list(types)
        picked = []
        for name, place in places.items():
            column = '"' + names[place].replace('"', '""') + '"'
            is_nested = types[names[place]].startswith(("MAP", "STRUCT"))
            value = f"to_json({column})" if is_nested else column
            picked.append(f"CAST({value} AS VARCHAR) AS {name}")
        cursor = con.execute(
            f"SELECT {', '.join(picked)} FROM read_parquet({quoted(str(path))})"  # noqa: S608
        )
        line = 0
        while batch := cursor.fetchmany(_FETCH):
            for values in batch:
                line += 1
                cells = dict(zip(places, (v or None for v in values), strict=True))
                text = ",".join(v or "" for v in values)
                yield RawRow(file_name=path.name, line=line, cells=cells, text=text)


def _places(names: list[str]) -> dict[str, int]:
    """Our name -> the place of its column; columns that are not there are left out."""
    there = {name.strip().lower(): place for place, name in reversed(list(enumerate(names)))}
    found = {}
    for ours, theirs in COLUMNS.items():
        known = [there[name.lower()] for name in theirs if name.lower() in there]
        if known:
            found[ours] = known[0]
    return found


def _header(path: Path) -> list[str]:
    if _is_parquet(path):
        with duckdb.connect(":memory:") as con:
            return list(_parquet_types(con, path))
    with _text(path) as file:
        line = file.readline(_CHUNK_BYTES)
    return next(csv.reader([line]), [])


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _parquet_types(con: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    described = con.execute(
        f"DESCRIBE SELECT * FROM read_parquet({quoted(str(path))})"  # noqa: S608
    ).fetchall()
    return {row[0]: row[1] for row in described}


@contextlib.contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    """The file as text: unzipped when it is gzip, UTF-16 when its mark says so, else UTF-8."""
    with path.open("rb") as raw:
        is_zipped = raw.read(2) == b"\x1f\x8b"

    def opened(mode: str, **how: str) -> IO[Any]:
        if is_zipped:
            return gzip.open(path, mode, **how)  # type: ignore[call-overload, no-any-return]
        return path.open(mode, **how)  # type: ignore[call-overload, no-any-return]

    with opened("rb") as start:
        is_utf16 = start.read(2) in _UTF16_MARKS
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    with opened("rt", encoding=encoding, errors="replace", newline="") as file:
        yield file
