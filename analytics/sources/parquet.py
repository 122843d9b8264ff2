"""Offers a Parquet file as rows: one event a row, or lists of items (and times) in a row.

Columns keep their type: integers stay integers, timestamps keep their instant. Ids of floating
type are taken when every one is a whole number below 2^53 (pandas makes such of integers with gaps)
and refused otherwise, for then a part of the id may be lost already. Of two columns that differ in
case only, each can be named.

Before: unpacked.py's file.   After: scan.py.
Price: the footer; a pass over an id column of floating type, if there is one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb

from analytics.errors import InputError
from analytics.sources.columns import (
    USUAL_NAMES,
    ChosenColumns,
    choose_named,
    missing_sql,
    num_known,
    plain,
)
from analytics.sources.faults import blaming
from analytics.sources.options import NONE, ReadingOptions
from analytics.sources.places import row_of
from analytics.sources.rows import Rows, quoted
from analytics.sources.unpacked import PlainFile

_NESTED = ("STRUCT", "MAP", "UNION", "VARIANT")
_NO_INSTANTS = ("TIME", "TIME WITH TIME ZONE", "TIME_NS", "INTERVAL", "BOOLEAN", "UUID")
_FLOATS = {"DOUBLE": 2**53, "FLOAT": 2**24}  # whole numbers up to here are exact


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Column:
    """A column of the file, or a field of the structs in its list of events."""

    name: str  # as the file has it
    sql: str  # how a statement reaches it, once lists are unnested
    kind: str  # DuckDB's type; of a list that of its elements
    is_list: bool


def parquet_rows(
    file: PlainFile,
    options: ReadingOptions,
    prefix: str,
    connection: duckdb.DuckDBPyConnection,
) -> Rows:
    """The events of a Parquet file.

    prefix: of this statement's parameters. Raises InputError when it is damaged or its columns
    cannot be told or used.
    """
    scan = f"read_parquet(${prefix}path, binary_as_string = true)"
    parameters: dict[str, object] = {f"{prefix}path": file.pattern}
    columns, events = _columns(file, scan, parameters, connection)
    names = [_alias(column, options) for column in columns]
    if any(c.is_list for c in columns) and _needs_no_time(names, options):
        options = dataclasses.replace(options, time=NONE)
    sample = _sample(file, scan, parameters, columns, connection) if events is None else []
    chosen = choose_named(file.label, names, options, sample)
    _refuse_nested(file, columns, chosen)
    source = _source(scan, columns, chosen, events)
    time = None if chosen.time is None else columns[chosen.time]
    rating = None if chosen.rating is None else f"TRY_CAST({columns[chosen.rating].sql} AS DOUBLE)"
    rows = Rows(
        file=file,
        source=source,
        user=_id_sql(columns[chosen.user]),
        item=_id_sql(columns[chosen.item]),
        time=None if time is None else time.sql,
        time_type="VARCHAR" if time is None else time.kind,
        frame=None if chosen.frame is None else f"CAST({columns[chosen.frame].sql} AS VARCHAR)",
        action=None if chosen.action is None else f"CAST({columns[chosen.action].sql} AS VARCHAR)",
        rating=rating,
        parameters=parameters,
        decision=_decision(columns, chosen, options, events),
        warnings=chosen.warnings,
        locate=row_of if source == scan else lambda row: f"event {row + 1} of all lists",
        empty="the Parquet file holds no row",
        time_name="" if time is None else time.name,
    )
    _check_floats(rows, columns, chosen, connection)
    return rows


def _columns(
    file: PlainFile,
    scan: str,
    parameters: dict[str, object],
    connection: duckdb.DuckDBPyConnection,
) -> tuple[list[_Column], str | None]:
    """The file's columns, and the list of structs whose fields are among them, if there is one."""
    if not file.head.startswith(b"PAR1"):
        raise InputError(f"{file.label}: is not a Parquet file. Leave --format out, or name it.")
    with blaming(file.label):
        connection.execute(f"SELECT * FROM {scan} LIMIT 0", parameters)  # noqa: S608
    try:
        found = [(str(entry[0]), entry[1]) for entry in connection.description or []]
    except (RuntimeError, UnicodeError) as error:
        raise InputError(
            f"{file.label}: the name of a column is not UTF-8, so the Parquet data is damaged. "
            "Write it again, or give CSV."
        ) from error
    real = _real_names(file, [name for name, _ in found], connection)
    columns: list[_Column] = []
    events = None
    for name, (known_as, kind) in zip(real, found, strict=True):
        inner = _element(kind)
        if inner is not None and inner.id == "struct" and events is None:
            fields = [(str(n), t) for n, t in inner.children]
            if num_known([n for n, _ in fields]):
                events = known_as
                columns += [
                    _Column(name=n, sql=f"e.{quoted(n)}", kind=str(t), is_list=False)
                    for n, t in fields
                ]
                continue
        columns.append(
            _Column(
                name=name,
                sql=quoted(known_as),
                kind=str(kind if inner is None else inner),
                is_list=inner is not None,
            )
        )
    return columns, events


def _element(kind: Any) -> Any:
    """The type of a list's elements, or None."""
    if kind.id not in ("list", "array"):
        return None
    return dict(kind.children)["child"]


def _real_names(
    file: PlainFile, known: list[str], connection: duckdb.DuckDBPyConnection
) -> list[str]:
    """The columns' names as the file has them; DuckDB appends _1 to what differs in case only."""
    with blaming(file.label):
        schema = connection.execute(
            "SELECT name, coalesce(num_children, 0) FROM parquet_schema($path)",
            {"path": file.pattern},
        ).fetchall()
    names, at = [], 1  # the first is the root
    while at < len(schema):
        names.append(str(schema[at][0]))
        pending = 1
        while pending and at < len(schema):  # over the column and all that it holds
            pending += int(schema[at][1]) - 1
            at += 1
    return names if len(names) == len(known) else known


def _alias(column: _Column, options: ReadingOptions) -> str:
    """The name by which a column is looked for: a list `item_ids` may be the item."""
    if not column.is_list or column.name in (options.user, options.item, options.time):
        return column.name
    short = plain(column.name)
    for end in ("list", "seq", "sequence", "history", "s"):
        stem = short.removesuffix(end)
        if stem in USUAL_NAMES["item"] or stem in USUAL_NAMES["time"]:
            return stem
    return column.name


def _needs_no_time(names: list[str], options: ReadingOptions) -> bool:
    return options.time is None and not {plain(n) for n in names} & set(USUAL_NAMES["time"])


def _sample(
    file: PlainFile,
    scan: str,
    parameters: dict[str, object],
    columns: list[_Column],
    connection: duckdb.DuckDBPyConnection,
) -> list[tuple[object, ...]]:
    cells = ", ".join("NULL" if _is_nested(c) else f"CAST({c.sql} AS VARCHAR)" for c in columns)
    with blaming(file.label):
        return connection.execute(
            f"SELECT {cells} FROM {scan} LIMIT 200",  # noqa: S608
            parameters,
        ).fetchall()


def _is_nested(column: _Column) -> bool:
    return column.is_list or column.kind.startswith(_NESTED) or column.kind.endswith("]")


def _refuse_nested(file: PlainFile, columns: list[_Column], chosen: ChosenColumns) -> None:
    """Only the item and the time may be lists, and only of plain values."""
    places = (chosen.user, chosen.item, chosen.time, chosen.action, chosen.rating, chosen.frame)
    for place in places:
        if place is None:
            continue
        column = columns[place]
        may_be_list = place in (chosen.item, chosen.time) and columns[chosen.item].is_list
        deep = column.kind.startswith(_NESTED) or column.kind.endswith("]")
        if deep or (column.is_list and not may_be_list) or column.kind == "BLOB":
            kind = column.kind + ("[]" if column.is_list else "")
            raise InputError(
                f"{file.label}: column '{column.name}' holds {kind[:80]}, but one row must be one "
                "event, or a user with a list of items and a list of times. Unnest the lists first."
            )
    time = None if chosen.time is None else columns[chosen.time]
    if time is not None and time.kind in _NO_INSTANTS:
        raise InputError(
            f"{file.label}: column '{time.name}' holds {time.kind}, which is no instant. Name "
            "another with --time COLUMN."
        )


def _source(scan: str, columns: list[_Column], chosen: ChosenColumns, events: str | None) -> str:
    """What stands after FROM: the bare scan, or one whose lists are unnested."""
    if events is not None:
        listed = quoted(events)
        return f"(SELECT * EXCLUDE ({listed}), unnest({listed}) AS e FROM {scan})"  # noqa: S608
    places = {p for p in (chosen.item, chosen.time) if p is not None and columns[p].is_list}
    if not places:
        return scan
    replaced = ", ".join(f"unnest({columns[p].sql}) AS {columns[p].sql}" for p in sorted(places))
    return f"(SELECT * REPLACE ({replaced}) FROM {scan})"  # noqa: S608


def _id_sql(column: _Column) -> str:
    """An id in its own type; NULL where missing. _check_floats has seen to those of floats."""
    if column.kind == "VARCHAR":
        return missing_sql(column.sql)
    if column.kind in _FLOATS:
        return f"TRY_CAST({column.sql} AS BIGINT)"
    return column.sql


def _check_floats(
    rows: Rows,
    columns: list[_Column],
    chosen: ChosenColumns,
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Raise InputError when an id column of floats holds what is no exact whole number."""
    for role in ("user", "item"):
        column = columns[getattr(chosen, role)]
        limit = _FLOATS.get(column.kind)
        if limit is None:
            continue
        value = column.sql
        exact = f"isnan({value}) OR ({value} = trunc({value}) AND abs({value}) < {limit})"
        found = rows.first(
            connection,
            f"SELECT count(*) FROM {rows.source} WHERE NOT ({exact})",  # noqa: S608
        )
        if found and found[0]:
            raise InputError(
                f"{rows.file.label}: {found[0]} values of column '{column.name}' ({column.kind}) "
                f"are no whole numbers below {limit:,}, so ids may have been rounded already. "
                f"Write them as integers or text, or name another column with --{role}."
            )


def _decision(
    columns: list[_Column], chosen: ChosenColumns, options: ReadingOptions, events: str | None
) -> dict[str, str]:
    form = "parquet" if events is None else f"parquet (events in '{events}')"
    decision = {"format": form, "header": "column names of the file"}
    for role in ("user", "item", "time", "action", "rating"):
        place = getattr(chosen, role)
        if place is None:
            decision[role] = "none"
            continue
        column, note = columns[place], chosen.notes.get(role)
        kind = f"list of {column.kind}" if column.is_list else column.kind
        decision[role] = f"{column.name} ({note or kind})"
    if options.time == NONE:
        decision["time"] = "none: the order of the file is taken as the order of time"
    return decision
