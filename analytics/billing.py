"""Imports a bill: a FOCUS cost export of AWS, Azure or another, as rows of fact_cost.

Money is decimal from text to table. Amounts of more than six places are rounded half to even, line
by line, and what that takes is kept beside the line, so that the true total can be told. Every line
is either loaded or refused with its number and a reason; a line whose money, time or currency
cannot be read is refused whole, since half of it would make the total wrong.

Before: focus_files.py reads rows.   After: landing.py keeps them, the views of sql/17x read them.
Price: a line at a time in Python; memory for one batch.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

from analytics import focus_files
from analytics.errors import InputError
from analytics.focus_files import RawRow
from analytics.landing import find, insert, insert_records, land, landing_tables, none_usable
from analytics.schema import DimImport, FactImportReject

SOURCE_KIND = "focus_bill"
POOL_TAG = "seqscale:pool"
PIPELINE_TAG = "seqscale:pipeline"
MONEY = ("billed_cost", "effective_cost", "list_cost", "contracted_cost")
_KEPT_TEXT = (
    "billing_account_id", "currency", "provider", "service_name", "sku_id",
    "region", "resource_id", "resource_type", "pricing_category", "consumed_unit",
)  # fmt: skip
CHARGE_CATEGORIES = {
    name.lower(): name for name in ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
}
_STEP = Decimal("0.000001")
_MOST = Decimal(10**12)
_PLACES = decimal.Context(prec=60, rounding=decimal.ROUND_HALF_EVEN)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LAST_YEAR = 2261  # of 64 bits of nanoseconds
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_MOST_DIGITS = 60
_BATCH = 5_000
_TEXT_CHARS = 200

Values = dict[str, Any]


class _RefusedError(ValueError):
    """A line that cannot be used; its text is the reason."""


@dataclasses.dataclass(kw_only=True)
class _Counts:
    """What became of the lines so far."""

    num_read: int = 0
    num_loaded: int = 0
    num_rejected: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    first_ns: int | None = None
    last_ns: int | None = None

    def seen(self, values: Values) -> None:
        began, ended = values["charge_began_unix_ns"], values["charge_ended_unix_ns"]
        self.first_ns = began if self.first_ns is None else min(self.first_ns, began)
        self.last_ns = ended if self.last_ns is None else max(self.last_ns, ended)
        self.num_loaded += 1


def looks_like_focus(path: Path) -> bool:
    """Whether a file, or any file of a folder, is a FOCUS cost export."""
    return bool(focus_files.export_files(path))


def import_bill(path: Path, runs_dir: Path, files: Sequence[Path] | None = None) -> DimImport:
    """Import a FOCUS export, a file or a folder of its parts, into a runs folder's landing zone.

    files: its parts, where not every export below `path` is one.
    The same bytes are imported once. Parts of one export belong in one folder: of two imports of
    one account and billing period only the later is in force (view bill_line); bill_standing.py
    says so.
    Raises InputError when there is no export at `path`, it is damaged or no line of it can be used,
    WarehouseError when the landing zone cannot be written.
    """
    paths = focus_files.export_files(path) if files is None else list(files)
    if not paths:
        raise InputError(
            f"{path}: this is not a cost export in the FOCUS format; it lacks one of the columns "
            "BilledCost, BillingCurrency, ChargePeriodStart, ChargePeriodEnd and ChargeCategory. "
            "Export cost and usage as FOCUS 1.0 or newer, as CSV or Parquet."
        )
    sha256, num_bytes = focus_files.digest(paths)
    import_id = sha256[:16]
    known = find(runs_dir, import_id)
    if known is not None:
        return known
    with landing_tables(runs_dir) as con:
        counts = _load(con, import_id, {_name(path, one): one for one in paths})
        if not counts.num_loaded:
            raise none_usable(str(path), counts.reasons, "docs/costs.md")
        about = DimImport(
            import_id=import_id,
            source_kind=SOURCE_KIND,
            source_name=path.name,
            source_sha256=sha256,
            num_bytes=num_bytes,
            num_files=len(paths),
            num_read=counts.num_read,
            num_loaded=counts.num_loaded,
            num_rejected=counts.num_rejected,
            num_records=counts.num_loaded,
            num_conflicts=0,
            host=None,
            time_zone=None,
            clock_offset_ns=None,
            clock_uncertainty_ns=None,
            clock_skew_ppm=None,
            collector=None,
            first_unix_ns=counts.first_ns,
            last_unix_ns=counts.last_ns,
            imported_unix_ns=time.time_ns(),
            pipeline_id="",
            options_text=None,
        )
        land(con, runs_dir, about)
    return about


def money(text: str) -> tuple[Decimal, Decimal]:
    """(amount of six places, what rounding took) of a number as it stands in an export.

    The two add up to the number exactly. Raises ValueError for what is no number with a decimal
    point, or too large to keep.
    """
    if len(text) > _MOST_DIGITS or not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:_TEXT_CHARS]!r} is no amount with a decimal point")
    exact = Decimal(text)
    if exact.adjusted() < -_MOST_DIGITS:  # next to nothing, and too long to write out
        return Decimal(0).quantize(_STEP), Decimal(0)
    if abs(exact) >= _MOST:
        raise ValueError(f"{text!r} is larger than any bill")
    kept = exact.quantize(_STEP, context=_PLACES)
    return kept, _PLACES.subtract(exact, kept)


def tags(text: str | None) -> dict[str, str]:
    """The tags of a line, names in lower case: JSON, JSON without its braces, or {name=value}.

    What cannot be read as tags has none: the line and its money are kept all the same.
    """
    if not text:
        return {}
    for form in (text, "{" + text + "}"):
        try:
            found = json.loads(form)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return {str(k).lower(): str(v) for k, v in found.items() if v not in (None, "")}
        return {}
    pairs = (part.partition("=") for part in text.strip().strip("{}").split(","))
    return {k.strip().lower(): v.strip() for k, _, v in pairs if v.strip()}


def instant(text: str) -> int:
    """An ISO 8601 time as nanoseconds UTC; FOCUS has all times in UTC.

    Raises ValueError for another form, or a time that 64 bits of nanoseconds cannot hold.
    """
    when = datetime.datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    if not 1970 < when.year < _LAST_YEAR:
        raise ValueError(f"{text} is no time of a charge")
    return (when - _EPOCH) // datetime.timedelta(microseconds=1) * 1000


def _load(con: duckdb.DuckDBPyConnection, import_id: str, paths: dict[str, Path]) -> _Counts:
    """Put every line of the files into fact_cost or fact_import_reject."""
    counts = _Counts()
    loaded: list[Values] = []
    rejects: list[FactImportReject] = []
    lines_before = 0
    for name, path in paths.items():
        last_line = 0
        for row in focus_files.rows(path):
            counts.num_read += 1
            last_line = row.line
            try:
                values = _checked(row)
            except _RefusedError as refused:
                counts.num_rejected += 1
                counts.reasons[str(refused)] += 1
                rejects.append(_reject(import_id, row, name, str(refused)))
            else:
                counts.seen(values)
                loaded.append({"import_id": import_id, "line": lines_before + row.line} | values)
            if len(loaded) + len(rejects) >= _BATCH:
                _flush(con, loaded, rejects)
        lines_before += last_line
    _flush(con, loaded, rejects)
    return counts


def _name(root: Path, path: Path) -> str:
    """Name of a file of an export, with its folders: parts in two of them may be named alike."""
    return path.relative_to(root).as_posix() if path != root else path.name


def _flush(
    con: duckdb.DuckDBPyConnection, loaded: list[Values], rejects: list[FactImportReject]
) -> None:
    if loaded:
        insert(con, "fact_cost", {name: [row[name] for row in loaded] for name in loaded[0]})
    insert_records(con, rejects)
    loaded.clear()
    rejects.clear()


def _reject(import_id: str, row: RawRow, name: str, reason: str) -> FactImportReject:
    return FactImportReject(
        import_id=import_id,
        file_name=name,
        line=row.line,
        reason=reason,
        text=row.text[:_TEXT_CHARS],
    )


def _checked(row: RawRow) -> Values:
    """A line's values as fact_cost has them, or _RefusedError with the reason."""
    if row.fault is not None:
        raise _RefusedError(row.fault)
    cells = row.cells
    for name in focus_files.NEEDED:
        if cells.get(name) is None:
            raise _RefusedError(f"missing_{name}")
    if not re.fullmatch(r"[A-Z]{3}", str(cells["currency"])):
        raise _RefusedError("unknown_currency")
    category = CHARGE_CATEGORIES.get(str(cells["charge_category"]).lower())
    if category is None:
        raise _RefusedError("unknown_charge_category")
    began, ended = _instant(cells, "charge_began"), _instant(cells, "charge_ended")
    if began is None or ended is None or ended < began:
        raise _RefusedError("charge_ends_before_it_begins")
    amounts, cut_off = _amounts(cells)
    named = tags(cells.get("tags"))
    return {
        "charge_began_unix_ns": began,
        "charge_ended_unix_ns": ended,
        "billing_period_began_unix_ns": _instant(cells, "period_began"),
        **amounts,
        "cut_off_cost": float(cut_off) or None,
        **{name: cells.get(name) for name in _KEPT_TEXT},
        "charge_category": category,
        "consumed_quantity": _quantity(cells.get("consumed_quantity")),
        "pool_id": _tag(named, POOL_TAG),
        "pipeline_id": _tag(named, PIPELINE_TAG),
    }


def _amounts(cells: dict[str, str | None]) -> tuple[Values, Decimal]:
    """The four costs of a line, and what rounding took of the billed one."""
    found: Values = {}
    cut_off = Decimal(0)
    for name in MONEY:
        text = cells.get(name)
        try:
            found[name], rest = (None, Decimal(0)) if text is None else money(text)
        except ValueError:
            raise _RefusedError(f"unreadable_{name}") from None
        cut_off = rest if name == "billed_cost" else cut_off
    return found, cut_off


def _instant(cells: dict[str, str | None], name: str) -> int | None:
    text = cells.get(name)
    try:
        return None if text is None else instant(text)
    except (ValueError, OverflowError):
        raise _RefusedError(f"unreadable_{name}") from None


def _quantity(text: str | None) -> float | None:
    if text is None:
        return None
    if len(text) > _MOST_DIGITS or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise _RefusedError("unreadable_consumed_quantity")
    return float(text)


def _tag(named: dict[str, str], name: str) -> str | None:
    """A tag of ours; some providers put 'user:' before it or take no colon."""
    plain = {re.sub(r"[^a-z0-9]", ":", k.removeprefix("user:")): v for k, v in named.items()}
    return named.get(name) or plain.get(name)
