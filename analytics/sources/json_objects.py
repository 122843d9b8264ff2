"""Offers JSON as rows: one event an object, or one session an object with its events in a list.

Objects stand one a line, one after the other, or in one array. Cells are taken by JSON pointer, so
keys of any script and case do; whole numbers of any length stay what they are.

Before: unpacked.py's file.   After: scan.py.
Price: DuckDB parses each object once a pass; the first 200 are also looked at in Python.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import duckdb

from analytics.errors import InputError
from analytics.sources.columns import ChosenColumns, choose_named, missing_sql, num_known
from analytics.sources.faults import blaming
from analytics.sources.options import NONE, ReadingOptions
from analytics.sources.places import list_place
from analytics.sources.rows import Rows
from analytics.sources.unpacked import PlainFile

_NUM_OBJECTS = 200
_LONGEST_OBJECT = 64 << 20


def json_rows(
    file: PlainFile,
    options: ReadingOptions,
    prefix: str,
    connection: duckdb.DuckDBPyConnection,
) -> Rows:
    """The events of a JSON file.

    prefix: of this statement's parameters. Raises InputError when it is not JSON objects, or its
    keys cannot be told.
    """
    layout = _layout(file.head)
    objects = (
        f"read_json_objects(${prefix}path, format = '{layout}', compression = 'uncompressed', "
        f"maximum_object_size = {_LONGEST_OBJECT})"
    )
    parameters: dict[str, object] = {f"{prefix}path": file.pattern}
    sample = _sample(file, objects, parameters, connection)
    events = _events_key(sample) if options.format != "json" else None
    if options.format == "json_sessions" and events is None:
        raise InputError(
            f"{file.label}: no object holds a list of events. Expected is "
            '{"session": ..., "events": [{...}, ...]}; for flat objects say --format json.'
        )
    if events is None:
        return _flat(file, options, prefix, objects, parameters, sample, layout)
    return _nested(file, options, prefix, objects, parameters, sample, events, layout)


def _flat(
    file: PlainFile,
    options: ReadingOptions,
    prefix: str,
    objects: str,
    parameters: dict[str, object],
    sample: list[dict[str, Any]],
    layout: str,
) -> Rows:
    names = _keys(sample)
    cells = [[record.get(name) for name in names] for record in sample]
    chosen = choose_named(file.label, names, options, cells)
    _refuse_inexact(file, names, (chosen.user, chosen.item), cells)
    return _rows_of(
        file,
        _Cells(prefix, names, "json", parameters),
        chosen,
        lambda own: objects,
        decision=_decision("json", layout, names, chosen, options),
        locate=functools.partial(_locate_object, file, layout),
    )


def _nested(
    file: PlainFile,
    options: ReadingOptions,
    prefix: str,
    objects: str,
    parameters: dict[str, object],
    sample: list[dict[str, Any]],
    events: str,
    layout: str,
) -> Rows:
    outer = [name for name in _keys(sample) if name != events]
    pairs = [
        (record, event)
        for record in sample
        for event in _list(record.get(events))[:50]
        if isinstance(event, dict)
    ]
    names = outer + [name for name in _keys([event for _, event in pairs]) if name not in outer]
    cells = [
        [(record if name in outer else event).get(name) for name in names]
        for record, event in pairs
    ]
    chosen = choose_named(file.label, names, options, cells)
    _refuse_inexact(file, names, (chosen.user, chosen.item), cells)

    def source(own: str) -> str:
        # a session's own cells are taken once, not once an event: five times quicker at 50 events;
        # an object whose events are no list has none
        return (
            f"(SELECT * EXCLUDE (es), unnest(es) AS e FROM (SELECT {own}"  # noqa: S608
            f"TRY_CAST(json_extract(json, ${prefix}events) AS JSON[]) AS es FROM {objects}))"
        )

    return _rows_of(
        file,
        _Cells(prefix, names, "e", {**parameters, f"{prefix}events": _pointer(events)}, len(outer)),
        chosen,
        source,
        decision=_decision(f"json_sessions (events in '{events}')", layout, names, chosen, options),
        locate=functools.partial(_locate_event, file, layout, events),
    )


def _rows_of(
    file: PlainFile,
    taken: _Cells,
    chosen: ChosenColumns,
    source: Callable[[str], str],
    *,
    decision: dict[str, str],
    locate: Callable[[int], str],
) -> Rows:
    """The rows whose cells stand in `source`, which is told what a session's own cells are."""
    user, item = missing_sql(taken.text(chosen.user)), missing_sql(taken.text(chosen.item))
    time, frame, action, rating = (
        None if place is None else taken.text(place)
        for place in (chosen.time, chosen.frame, chosen.action, chosen.rating)
    )
    return Rows(
        file=file,
        source=source("".join(f"{sql} AS {name}, " for name, sql in taken.own.items())),
        user=user,
        item=item,
        time=time,
        frame=frame,
        action=action,
        rating=None if rating is None else f"TRY_CAST({rating} AS DOUBLE)",
        parameters=taken.parameters,
        decision=decision,
        warnings=chosen.warnings,
        locate=locate,
        empty="holds no event",
        time_name="" if chosen.time is None else taken.names[chosen.time],
    )


class _Cells:
    """Cells of an object by JSON pointer, the pointers kept as parameters."""

    def __init__(
        self,
        prefix: str,
        names: list[str],
        column: str,
        parameters: dict[str, object],
        outer: int = 0,
    ) -> None:
        self._prefix, self.names, self._column, self._outer = prefix, names, column, outer
        self.parameters = dict(parameters)
        self.own: dict[str, str] = {}  # of a session, by the name they get

    def text(self, place: int) -> str:
        """SQL of a cell as text, NULL where the key is missing or null."""
        key = f"{self._prefix}key{place}"
        self.parameters[key] = _pointer(self.names[place])
        if place < self._outer:
            self.own[f"own{place}"] = f"json_extract_string(json, ${key})"
            return f"own{place}"
        return f"json_extract_string({self._column}, ${key})"


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _layout(head: bytes) -> str:
    """How objects follow each other, in DuckDB's words."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return "array"
    first = text.split(b"\n", 1)[0].rstrip()
    return "newline_delimited" if first.endswith(b"}") or len(first) > 1 << 16 else "unstructured"


def _sample(
    file: PlainFile,
    objects: str,
    parameters: dict[str, object],
    connection: duckdb.DuckDBPyConnection,
) -> list[dict[str, Any]]:
    """The first objects; what is not an object counts as an empty one later, but not all may be."""
    with blaming(file.label):
        found = connection.execute(
            f"SELECT CAST(json AS VARCHAR) FROM {objects} LIMIT {_NUM_OBJECTS}",  # noqa: S608
            parameters,
        ).fetchall()
    records = []
    for number, (text,) in enumerate(found, start=1):
        try:
            record = json.loads(text or "null")
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{file.label}: object {number} is nested too deep or not JSON. "
                "Give one flat object an event."
            ) from error
        if isinstance(record, dict):
            records.append(record)
    if not records:
        raise InputError(
            f"{file.label}: holds no JSON object. Expected is one object an event, such as "
            '{"user": ..., "item": ..., "timestamp": ...}, one a line.'
        )
    return records


def _events_key(sample: list[dict[str, Any]]) -> str | None:
    """The key of a list of objects that hold an item or a time, if there is one."""
    for record in sample:
        for name, value in record.items():
            inner = value[0] if isinstance(value, list) and value else None
            if isinstance(inner, dict) and num_known(list(inner)) >= 1:
                return name
    return None


def _keys(records: list[Any]) -> list[str]:
    """All keys in the order of their first appearance."""
    return list(dict.fromkeys(k for record in records if isinstance(record, dict) for k in record))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _refuse_inexact(
    file: PlainFile, names: list[str], places: tuple[int, ...], cells: list[list[Any]]
) -> None:
    """An id is text or a whole number; DuckDB would round a longer fraction and rewrite 1.50."""
    for place in places:
        if any(isinstance(row[place], (float, dict, list)) for row in cells):
            raise InputError(
                f"{file.label}: '{names[place]}' holds fractions, lists or objects, which are no "
                "ids. Write ids as text or whole numbers, or name another key with --user or "
                "--item."
            )


def _decision(
    form: str, layout: str, names: list[str], chosen: ChosenColumns, options: ReadingOptions
) -> dict[str, str]:
    words = {"newline_delimited": "one object a line", "array": "one array of objects"}
    decision = {
        "format": form,
        "delimiter": words.get(layout, "objects one after the other"),
        "header": "keys of the objects",
    }
    for role in ("user", "item", "time", "action", "rating"):
        place = getattr(chosen, role)
        note = chosen.notes.get(role)
        decision[role] = "none" if place is None else names[place] + (f" ({note})" if note else "")
    if options.time == NONE:
        decision["time"] = "none: the order of the file is taken as the order of time"
    return decision


def _locate_object(file: PlainFile, layout: str, row: int) -> str:
    if layout != "newline_delimited":
        return f"object {row + 1}"
    place = list_place(file.path, row, lambda line: int(bool(line.strip())))
    return place.removesuffix(", event 1")


def _locate_event(file: PlainFile, layout: str, events: str, row: int) -> str:
    if layout != "newline_delimited":
        return f"event {row + 1}"
    return list_place(file.path, row, functools.partial(_num_events, events))


def _num_events(events: str, line: str) -> int:
    try:
        record = json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        return 0
    return len(_list(record.get(events))) if isinstance(record, dict) else 0
