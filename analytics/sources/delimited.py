"""Offers a text with a delimiter between its columns, with or without a header, as rows.

The statement is a bare read_csv of text columns, so that 10 million rows are scanned in about a
second; ids never pass through a number.

Before: shapes.py says how the text is written.   After: scan.py.
Price: none but the scan itself.
"""

from __future__ import annotations

import functools

from analytics.errors import InputError
from analytics.sources.columns import (
    ChosenColumns,
    choose_by_content,
    choose_named,
    missing_sql,
    no_time,
)
from analytics.sources.options import NONE, ReadingOptions, spoken
from analytics.sources.places import record_line
from analytics.sources.rows import Rows
from analytics.sources.shapes import TextShape
from analytics.sources.unpacked import PlainFile


def delimited_rows(file: PlainFile, shape: TextShape, options: ReadingOptions, prefix: str) -> Rows:
    """The events of a text, one a record.

    prefix: of this statement's parameters. Raises InputError when the columns cannot be told.
    """
    chosen = _choose(file, shape, options)
    source, parameters = csv_source(file, shape, prefix)
    # a bare cast would be pushed into read_csv, where it ends the scan at the first odd cell
    rating = None if chosen.rating is None else _number(f"c{chosen.rating}", shape.delimiter)
    return Rows(
        file=file,
        source=source,
        user=missing_sql(f"c{chosen.user}"),
        item=missing_sql(f"c{chosen.item}"),
        time=None if chosen.time is None else f"c{chosen.time}",
        frame=None if chosen.frame is None else f"c{chosen.frame}",
        action=None if chosen.action is None else f"nullif(c{chosen.action}, '')",
        rating=rating,
        parameters=parameters,
        decision=_decision(shape, chosen, options),
        warnings=chosen.warnings,
        locate=functools.partial(locate_record, file, shape),
        empty=empty_words(shape),
        time_name=column_name(shape.names, chosen.time),
    )


def csv_source(file: PlainFile, shape: TextShape, prefix: str) -> tuple[str, dict[str, object]]:
    """What stands after FROM for a delimited text, and its parameters; columns are c0, c1, ..."""
    columns = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(shape.num_columns))
    quote = "'\"'" if shape.quote else "''"
    source = (
        f"read_csv(${prefix}path, auto_detect = false, compression = 'none', "
        f"header = {'true' if shape.names else 'false'}, skip = {shape.num_skipped}, "
        f"delim = ${prefix}delimiter, quote = {quote}, escape = {quote}, "
        f"columns = {{{columns}}})"
    )
    return source, {f"{prefix}path": file.pattern, f"{prefix}delimiter": shape.delimiter}


def _number(cell: str, delimiter: str) -> str:
    """A cell as a number, NULL when it is none; in a file with `;` a comma is the decimal point."""
    text = f"replace({cell}, ',', '.')" if delimiter == ";" else cell
    return f"TRY_CAST(nullif({text}, '') AS DOUBLE)"


def locate_record(file: PlainFile, shape: TextShape, row: int) -> str:
    """'line 12' of a row, from 0."""
    return record_line(
        file.path,
        row,
        delimiter=shape.delimiter,
        quote=shape.quote,
        num_before=1 if shape.names else 0,
    )


def column_name(names: tuple[str, ...], place: int | None) -> str:
    """A column for a person: its name, or its position where there are no names."""
    if place is None:
        return ""
    return names[place] if names else str(place + 1)


def empty_words(shape: TextShape) -> str:
    """What to say of a text without a row."""
    if not shape.names:
        return "holds no row"
    return f"there is a header ({', '.join(shape.names)[:300]}) but no row below it"


def _choose(file: PlainFile, shape: TextShape, options: ReadingOptions) -> ChosenColumns:
    if shape.names:
        return choose_named(file.label, shape.names, options, shape.records)
    if not shape.records:
        raise InputError(f"{file.label}: holds no row. Give a file with interactions.")
    if shape.num_columns == 2 and options.time is None:
        raise no_time(file.label, ": there is no header and there are only two columns")
    return choose_by_content(file.label, shape.num_columns, options, shape.records)


def _decision(shape: TextShape, chosen: ChosenColumns, options: ReadingOptions) -> dict[str, str]:
    decision = {
        "format": shape.format,
        "delimiter": spoken(shape.delimiter),
        "quotes": "double quotes" if shape.quote else "none",
        "header": f"yes, {len(shape.names)} columns" if shape.names else "no",
    }
    for role in ("user", "item", "time", "action", "rating"):
        place = getattr(chosen, role)
        note = chosen.notes.get(role)
        name = column_name(shape.names, place)
        if place is None:
            decision[role] = "none"
        elif shape.names:
            decision[role] = f"{name} ({note})" if note else name
        else:
            decision[role] = f"column {name}" + (f" ({note})" if note else "")
    if options.time == NONE:
        decision["time"] = "none: the order of the file is taken as the order of time"
    return decision
