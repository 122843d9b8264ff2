"""Answers of the warehouse as plain rows: text, whole numbers, floats and None, ready for JSON.

Before: a query on an open connection.   After: metrics.py, measures.py, money.py, alerts.py.
NaN and infinity become None: they are no figures, and JSON has no word for them. Dates become text
by ISO 8601.
"""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import duckdb

Row = dict[str, Any]


def plain_rows(con: duckdb.DuckDBPyConnection, query: str, parameters: Any = None) -> list[Row]:
    """Every row of a query as a dict by column name."""
    cursor = con.execute(query, parameters)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]


def _plain(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
