"""Offers a text of one user a line ("user i1 i2 ...") as rows, in the order of the line.

Such a file has no times; its order is the order of time. Files of sampled negatives look the same
and cannot be told by shape; what gives them away is that all lines are of one length.

Before: shapes.py says what stands between the ids.   After: scan.py.
Price: a few times that of a delimited text, for each line is taken apart by DuckDB.
"""

from __future__ import annotations

import functools

from analytics.sources.columns import missing_sql
from analytics.sources.options import spoken
from analytics.sources.places import list_place
from analytics.sources.rows import Rows, used
from analytics.sources.shapes import TextShape
from analytics.sources.streams import LONGEST_LINE, NO_DELIMITER
from analytics.sources.unpacked import PlainFile


def list_rows(file: PlainFile, shape: TextShape, prefix: str) -> Rows:
    """The events of a text of one user a line.

    A line with a user alone has no event. prefix: of this statement's parameters.
    """
    lines = (
        f"read_csv(${prefix}path, auto_detect = false, compression = 'none', header = false, "
        f"columns = {{'line': 'VARCHAR'}}, quote = '', escape = '', delim = ${prefix}nothing, "
        f"max_line_size = {LONGEST_LINE})"
    )
    parameters: dict[str, object] = {
        f"{prefix}path": file.pattern,
        f"{prefix}nothing": NO_DELIMITER,
        f"{prefix}after": shape.delimiter,
        f"{prefix}between": shape.item_delimiter,
    }
    # the list is carried, not the user's text: 10 million events take 0.5 s rather than 20 s
    source = (
        "(SELECT trim(p[1]) AS u, trim(i) AS i FROM (SELECT p, unnest(p[2:]) AS i FROM "  # noqa: S608
        f"(SELECT {_tokens(shape, prefix)} AS p FROM {lines})) WHERE trim(i) <> '')"
    )
    return Rows(
        file=file,
        source=source,
        user=missing_sql("u"),
        item=missing_sql("i"),
        time=None,
        parameters=used(source, parameters),
        decision={
            "format": "lists (one user a line, then the user's items in order)",
            "delimiter": spoken(shape.delimiter)
            if shape.delimiter == shape.item_delimiter
            else f"{spoken(shape.delimiter)} after the user, "
            f"{spoken(shape.item_delimiter)} between items",
            "header": "no",
            "user": "first of the line",
            "item": "the rest of the line",
            "time": "none: the order in the line is taken as the order of time",
            "action": "none",
            "rating": "none",
        },
        warnings=_same_length(file, shape),
        locate=functools.partial(list_place, file.path, count=functools.partial(_count, shape)),
        empty="holds no line with a user and an item",
    )


def _is_blank(delimiter: str) -> bool:
    return delimiter in (" ", "\t")


def _tokens(shape: TextShape, prefix: str) -> str:
    """SQL of the list of a line's user and items; items may still be empty or have blanks."""
    line = "ltrim(replace(line, chr(9), ' '))" if _is_blank(shape.delimiter) else "line"
    after = "' '" if _is_blank(shape.delimiter) else f"${prefix}after"
    between = "' '" if _is_blank(shape.item_delimiter) else f"${prefix}between"
    if shape.delimiter == shape.item_delimiter:
        return f"string_split({line}, {after})"
    # where there is no item, the rest is empty
    rest = f"substr({line}, nullif(instr({line}, {after}), 0) + length({after}))"
    if _is_blank(shape.item_delimiter):
        rest = f"replace({rest}, chr(9), ' ')"
    return f"list_prepend(split_part({line}, {after}, 1), string_split({rest}, {between}))"


def _count(shape: TextShape, line: str) -> int:
    """How many items a line holds, as _items does."""
    if _is_blank(shape.delimiter):
        _, _, rest = line.replace("\t", " ").lstrip(" ").partition(" ")
    else:
        _, _, rest = line.partition(shape.delimiter)
    if _is_blank(shape.item_delimiter):
        parts = rest.replace("\t", " ").split(" ")
    else:
        parts = [part.strip(" ") for part in rest.split(shape.item_delimiter)]
    return sum(part != "" for part in parts)


def _same_length(file: PlainFile, shape: TextShape) -> tuple[str, ...]:
    lengths = {len(record) for record in shape.records}
    if len(shape.records) < 2 or len(lengths) != 1:
        return ()
    return (
        f"{file.label}: every line has the same number of items ({lengths.pop() - 1}). That looks "
        "like sampled negatives or cut windows rather than histories; make sure that it is one.",
    )
