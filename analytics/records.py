"""What a record is: a frozen dataclass whose fields carry doc, unit and bounds.

Standard library only, so that a rank can write records without DuckDB. The records themselves:
analytics/schema.py, analytics/schema_profile.py.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Scalar = str | int | float | bool | decimal.Decimal | None
Record = TypeVar("Record")

_SQL_TYPES: dict[type, str] = {
    str: "VARCHAR",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    decimal.Decimal: "DECIMAL(18,6)",  # money: adds up exactly
}

_INT64 = 2**63
_MONEY_STEP = decimal.Decimal("0.000001")
_MOST_MONEY = decimal.Decimal(10**12)

TABLES: dict[str, type] = {}


def column(
    doc: str,
    *,
    unit: str = "",
    lower: float | None = None,
    upper: float | None = None,
    added: bool = False,
) -> Any:
    """One column: what it means, its unit, and its bounds (inclusive; None = unbounded).

    added: the table was there before the column; a journal of that time has NULL in it, and so has
    a record that is made without it.
    """
    metadata = {"doc": doc, "unit": unit, "lower": lower, "upper": upper, "added": added}
    if added:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(metadata=metadata)


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(column,))
def table(
    name: str, *, key: tuple[str, ...], grain: str, bulk: bool = False
) -> Callable[[type[Record]], type[Record]]:
    """Make a class the record of table `name`; `key` are the columns that name one row.

    bulk: the warehouse holds no index over the key, since millions of rows are loaded at once;
    whoever loads them sees that no key comes twice.
    """

    def register(cls: type[Record]) -> type[Record]:
        record: Any = dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(cls)
        record.__table_name__ = name
        record.__table_key__ = key
        record.__table_grain__ = grain
        record.__table_bulk__ = bulk
        TABLES[name] = record
        return typing.cast("type[Record]", record)

    return register


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A field of a record as the warehouse, the exports and the dashboard see it."""

    name: str
    python_type: type
    sql_type: str
    nullable: bool
    doc: str
    unit: str
    lower: float | None
    upper: float | None
    added: bool  # NULL in a record of before


def table_name(record: type) -> str:
    """The table that a record class belongs to."""
    return typing.cast(str, record.__table_name__)  # type: ignore[attr-defined]


def table_key(record: type) -> tuple[str, ...]:
    """The columns that name one row of the record's table."""
    return typing.cast("tuple[str, ...]", record.__table_key__)  # type: ignore[attr-defined]


def is_bulk(record: type) -> bool:
    """Whether the record's table is loaded in bulk, without an index over its key."""
    return typing.cast(bool, record.__table_bulk__)  # type: ignore[attr-defined]


@functools.cache  # reading type hints takes longer than reading a record
def columns(record: type) -> tuple[Column, ...]:
    """The columns of a record class, in their fixed order."""
    hints = typing.get_type_hints(record)
    found = []
    for field in dataclasses.fields(record):
        python_type, nullable = _unwrap(hints[field.name])
        meta = field.metadata
        found.append(
            Column(
                name=field.name,
                python_type=python_type,
                sql_type=_SQL_TYPES[python_type],
                nullable=nullable,
                doc=meta["doc"],
                unit=meta["unit"],
                lower=meta["lower"],
                upper=meta["upper"],
                added=meta["added"],
            )
        )
    return tuple(found)


def to_mapping(record: Any) -> dict[str, Scalar]:
    """A record as plain keys and values, in column order; money as text, as JSON keeps it exact."""
    names, has_money, values_of = _layout(record.__class__)
    found = dict(zip(names, values_of(record), strict=True))
    if has_money:
        return {n: str(v) if isinstance(v, decimal.Decimal) else v for n, v in found.items()}
    return found


def from_mapping(record: type[Record], values: Mapping[str, Any]) -> Record:
    """A record from plain keys and values; a column that was added later may be missing.

    Raises ValueError that names the first key which is missing, unknown, of the wrong type, not
    finite or out of its bounds.
    """
    known = {c.name: c for c in columns(typing.cast(type, record))}
    for name in values:
        if name not in known:
            raise ValueError(f"'{name}' is not a column of {table_name(record)}")
    checked: dict[str, Scalar] = {}
    for name, spec in known.items():
        if name not in values and not spec.added:
            raise ValueError(f"'{name}' is missing")
        checked[name] = _check(spec, values.get(name))
    return record(**checked)


@functools.cache
def _layout(record: type) -> tuple[tuple[str, ...], bool, Callable[[Any], tuple[Any, ...]]]:
    """A record class's column names, whether one is money, and what reads its values."""
    names = tuple(c.name for c in columns(record))
    assert len(names) > 1, "attrgetter of one name gives no tuple"
    has_money = any(c.python_type is decimal.Decimal for c in columns(record))
    return names, has_money, operator.attrgetter(*names)


def _check(spec: Column, value: Any) -> Scalar:
    """The value as the column's type, or ValueError saying what was expected."""
    if value is None:
        if spec.nullable:
            return None
        raise ValueError(f"'{spec.name}' is null, expected {_in_words(spec)}")
    if spec.python_type is decimal.Decimal:
        value = _money(spec, value)
    is_bool = isinstance(value, bool)
    fits = isinstance(value, spec.python_type) and (is_bool == (spec.python_type is bool))
    if spec.python_type is float and isinstance(value, int) and not is_bool:
        value, fits = float(value), True
    if not fits:
        raise ValueError(f"'{spec.name}' is {value!r}, expected {_in_words(spec)}")
    if spec.python_type is float and not math.isfinite(value):
        raise ValueError(f"'{spec.name}' is {value!r}, expected a finite number")
    if spec.python_type is int and not -_INT64 <= value < _INT64:
        raise ValueError(f"'{spec.name}' is {value!r}, expected a whole number of 64 bits")
    if spec.lower is not None and value < spec.lower:
        raise ValueError(f"'{spec.name}' is {value!r}, expected at least {spec.lower:g}")
    if spec.upper is not None and value > spec.upper:
        raise ValueError(f"'{spec.name}' is {value!r}, expected at most {spec.upper:g}")
    return typing.cast(Scalar, value)


def _money(spec: Column, value: Any) -> decimal.Decimal:
    """An amount of six decimal places from text, a whole number or a decimal; no float."""
    try:
        if isinstance(value, (bool, float)):
            raise decimal.InvalidOperation
        amount = decimal.Decimal(value)
        if not (amount.is_finite() and abs(amount) < _MOST_MONEY):
            raise decimal.InvalidOperation
        whole = amount.quantize(_MONEY_STEP)
        if whole != amount:
            raise decimal.InvalidOperation
    except (decimal.InvalidOperation, TypeError, ValueError):
        raise ValueError(f"'{spec.name}' is {value!r}, expected {_in_words(spec)}") from None
    return whole


def _in_words(spec: Column) -> str:
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        decimal.Decimal: "an amount as text, of six decimal places at most",
    }
    return words[spec.python_type]


def _unwrap(hint: Any) -> tuple[type, bool]:
    """(plain type, nullable) of `T` or `T | None`."""
    if isinstance(hint, types.UnionType):
        plain = [a for a in typing.get_args(hint) if a is not type(None)]
        return plain[0], True
    return hint, False
