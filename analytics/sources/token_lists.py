"""Offers RecBole's token_seq files as rows: a row is a history in a cell and, often, its next item.

    session_id:token  item_id_list:token_seq  item_id:token      -> the list, then the item
    ... and timestamp_list:float_seq  timestamp:float            -> the same for times

Rows of one user are growing prefixes of one history. With times they are all expanded, and exact
repeats are an artefact to be dropped (`deduplicate`). Without times, a user's longest row stands
when all others are its prefixes; otherwise nothing says how the rows follow each other, and the
file is refused.

Before: shapes.py's typed header.   After: scan.py.
Price: a pass over the file when it has no times, to see whether users repeat.
"""

from __future__ import annotations

import functools

import duckdb

from analytics.errors import InputError
from analytics.sources.columns import USUAL_NAMES, missing_sql, plain, untyped
from analytics.sources.delimited import csv_source, empty_words, locate_record
from analytics.sources.faults import blaming
from analytics.sources.options import NONE, ReadingOptions, spoken
from analytics.sources.rows import Rows
from analytics.sources.shapes import TextShape
from analytics.sources.unpacked import PlainFile

_LIST_ENDS = ("list", "seq", "sequence", "history")


def has_token_lists(shape: TextShape) -> bool:
    """Whether a typed header has a list of items in one cell."""
    return _list_place(shape, "item", "token_seq") is not None


def token_list_rows(
    file: PlainFile,
    shape: TextShape,
    options: ReadingOptions,
    prefix: str,
    connection: duckdb.DuckDBPyConnection,
) -> Rows:
    """The events of a token_seq file, in the order of each row.

    Raises InputError when there is no user, or when a user's rows contradict each other.
    """
    places = _places(file, shape, options)
    source, parameters = csv_source(file, shape, prefix)
    has_time = places["times"] is not None
    items = _joined(places["items"], places["item"])
    times = _joined(places["times"], places["time"]) if has_time else "NULL"
    rows = (
        f"SELECT row_number() OVER () AS r, {missing_sql('c' + str(places['user']))} AS u, "  # noqa: S608
        f"{items} AS items, {times} AS times FROM {source}"
    )
    note = ""
    if not has_time and _users_repeat(connection, rows, parameters, file.label):
        _check_prefixes(connection, rows, parameters, file, shape)
        # rows without a user stay, to be counted as what they are
        rows = (
            f"SELECT * FROM ({rows}) QUALIFY u IS NULL "  # noqa: S608
            "OR row_number() OVER (PARTITION BY u ORDER BY len(items) DESC, r) = 1 ORDER BY r"
        )
        note = "; of a user's rows, each the start of the next, the longest stands"
    unnested = f"unnest(items) AS i, {'unnest(times)' if has_time else 'NULL'} AS t"
    return Rows(
        file=file,
        source=f"(SELECT r, u, generate_subscripts(items, 1) AS e, {unnested} FROM ({rows}))",  # noqa: S608
        user="u",
        item=missing_sql("i"),
        time="t" if has_time else None,
        parameters=parameters,
        decision=_decision(shape, places, note),
        deduplicate=has_time,
        locate=functools.partial(_locate, file, shape, connection, rows, parameters),
        empty=empty_words(shape),
        time_name=shape.names[places["times"]] if places["times"] is not None else "",
    )


def _list_place(shape: TextShape, role: str, kind: str) -> int | None:
    """The column of a list of items or times: typed kind, named like item_id_list."""
    for place, name in enumerate(shape.names):
        short = plain(name)
        for end in _LIST_ENDS:
            stem = short.removesuffix(end)
            known = stem != short and stem in USUAL_NAMES[role]
            if name.endswith(f":{kind}") and known:
                return place
    return None


def _places(file: PlainFile, shape: TextShape, options: ReadingOptions) -> dict[str, int | None]:
    names = [plain(name) for name in shape.names]

    def one(*roles: str, wanted: str | None = None) -> int | None:
        for place, name in enumerate(shape.names):
            if wanted is not None and wanted in (name, untyped(name)):
                return place
        usual = [name for role in roles for name in USUAL_NAMES[role]]
        found = [name for name in usual if name in names]
        return names.index(found[0]) if found and wanted is None else None

    user = one("user", "session", wanted=options.user)
    if user is None:
        raise InputError(
            f"{file.label}: has lists of items, but no user or session column was found. Name it "
            "with --user COLUMN."
        )
    times = _list_place(shape, "time", "float_seq")
    no_times = options.time == NONE
    return {
        "user": user,
        "items": _list_place(shape, "item", "token_seq"),
        "item": one("item"),
        "times": None if no_times else times,
        "time": one("time") if times is not None and not no_times else None,
    }


def _joined(many: int | None, one: int | None) -> str:
    """SQL of a list cell and the single cell that follows it, as one list."""
    cells = f"list_filter(string_split(coalesce(c{many}, ''), ' '), lambda x: x <> '')"
    return cells if one is None else f"list_append({cells}, c{one})"


def _users_repeat(
    connection: duckdb.DuckDBPyConnection, rows: str, parameters: dict[str, object], label: str
) -> bool:
    with blaming(label):
        row = connection.execute(
            f"SELECT count(u) > count(DISTINCT u) FROM ({rows})",  # noqa: S608
            parameters,
        ).fetchone()
    return bool(row and row[0])


def _check_prefixes(
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    parameters: dict[str, object],
    file: PlainFile,
    shape: TextShape,
) -> None:
    """Raise InputError at the first row that does not start as its user's next longer one does."""
    with blaming(file.label):
        found = connection.execute(
            f"""
            SELECT r FROM (
                SELECT r, items, lead(items) OVER (PARTITION BY u ORDER BY len(items), r) AS longer
                FROM ({rows}) WHERE u IS NOT NULL
            )
            WHERE longer IS NOT NULL AND items <> longer[1:len(items)]
            ORDER BY r LIMIT 1
            """,  # noqa: S608
            parameters,
        ).fetchone()
    if found:
        place = locate_record(file, shape, int(found[0]) - 1)
        raise InputError(
            f"{file.label}: a user has several lists without times, and the one in {place} is not "
            "the start of the next longer one, so nothing says which came first. Give one row a "
            "user, or a timestamp_list:float_seq column."
        )


def _locate(
    file: PlainFile,
    shape: TextShape,
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    parameters: dict[str, object],
    row: int,
) -> str:
    found = connection.execute(
        f"SELECT r, e FROM (SELECT r, generate_subscripts(items, 1) AS e FROM ({rows})) "  # noqa: S608
        f"LIMIT 1 OFFSET {int(row)}",
        parameters,
    ).fetchone()
    if found is None:
        return f"event {row + 1}"
    return f"{locate_record(file, shape, int(found[0]) - 1)}, event {found[1]}"


def _decision(shape: TextShape, places: dict[str, int | None], note: str) -> dict[str, str]:
    def named(*roles: str) -> str:
        return ", then ".join(
            shape.names[place] for role in roles if (place := places[role]) is not None
        )

    return {
        "format": "inter (a row is a list of items, then the next item)",
        "delimiter": spoken(shape.delimiter),
        "quotes": "double quotes" if shape.quote else "none",
        "header": f"yes, {len(shape.names)} columns",
        "user": named("user"),
        "item": named("items", "item"),
        "time": named("times", "time")
        or f"none: the order in the row is taken as the order of time{note}",
        "action": "none",
        "rating": "none",
    }
