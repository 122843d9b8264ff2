"""Writes rows as CSV, in the dialect that the reader's programme takes without being told anything.

`powerbi`: `,` and `.`, LF, UTF-8 without a byte-order mark; what Power BI, databases and scripts
take. `excel-es`: `;` and a decimal comma, CRLF and a byte-order mark; what Excel expects where
decimals have commas. There 12.5 was read as 125 and accents were broken (azure-migrate-explore#20,
metabase#76028).

Both: one header row, RFC 4180 quotes; NULL is an empty cell, an empty text is `""`, true and false
are 1 and 0. A text cell that a spreadsheet would run as a formula gets a leading apostrophe (OWASP,
CSV injection); numbers are never touched.

Before: rows of the published warehouse.   After: export.py, the dashboard's downloads.
"""

from __future__ import annotations

import codecs
import dataclasses
import decimal
import math
from collections.abc import Iterable, Iterator
from typing import Any

from analytics.errors import ConfigError

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a file of CSV is written; the encoding is UTF-8."""

    name: str
    delimiter: str = ","
    decimal: str = "."
    line_end: str = "\n"
    has_bom: bool = False  # a byte-order mark, by which Excel knows UTF-8

    @property
    def start(self) -> bytes:
        """What stands before the header row."""
        return codecs.BOM_UTF8 if self.has_bom else b""


POWERBI = Dialect(name="powerbi")
EXCEL_ES = Dialect(name="excel-es", delimiter=";", decimal=",", line_end="\r\n", has_bom=True)
DIALECTS = {dialect.name: dialect for dialect in (POWERBI, EXCEL_ES)}


def dialect_of(name: str, *, has_bom: bool | None = None) -> Dialect:
    """The dialect of this name, with or without a byte-order mark; None: as the dialect has it.

    Raises ConfigError for a name that is none.
    """
    if name not in DIALECTS:
        raise ConfigError(
            f"--dialect is '{name}', which is no dialect of CSV here. Give one of: "
            f"{', '.join(DIALECTS)}."
        )
    found = DIALECTS[name]
    return found if has_bom is None else dataclasses.replace(found, has_bom=has_bom)


def csv_lines(
    names: list[str], rows: Iterable[Iterable[Any]], dialect: Dialect = POWERBI
) -> Iterator[str]:
    """Header and rows as CSV lines, each with its line end.

    Raises ValueError for NaN and infinity, which would turn a column of numbers into text.
    """
    yield _line(names, dialect)
    for row in rows:
        yield _line(row, dialect)


def csv_cell(value: Any, dialect: Dialect = POWERBI) -> str:
    """One value as it stands in the CSV."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, decimal.Decimal):
        return format(value, "f").replace(".", dialect.decimal)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} cannot be exported; it would turn its column into text")
        return repr(value).replace(".", dialect.decimal)
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if text.startswith(_FORMULA_STARTS):
        text = "'" + text
    special = (dialect.delimiter, '"', "\n", "\r")
    if not text or any(mark in text for mark in special) or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _line(values: Iterable[Any], dialect: Dialect) -> str:
    return dialect.delimiter.join(csv_cell(value, dialect) for value in values) + dialect.line_end
