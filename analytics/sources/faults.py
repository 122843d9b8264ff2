"""Tells what a file caused from what we or the machine caused, without repeating any row.

DuckDB's messages quote the line they stumble over, and lines hold personal ids. So nothing of them
is passed on but numbers (line, byte, columns) and a reason out of a fixed list.

Before: any statement over a file.   After: an InputError a person can act on, or the error itself.
Price: none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import duckdb

from analytics.errors import InputError

# our statement is wrong, not the file; DuckDB says FatalException once a database is invalidated
_OUR_FAULTS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConnectionException,
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.ParserException,
)
_STORAGE_WORDS = (
    "could not write", "no space", "failed to write", "offload", "fsync", "truncate file",
    "failed to allocate",
)  # fmt: skip
# what DuckDB says -> what is wrong and how to mend it; the first that fits
_REASONS = (
    (
        r"invalid unicode|utf-?8|not valid unicode",
        "not UTF-8 text",
        "Save the file as UTF-8, or name its encoding with --encoding, for example latin-1",
    ),
    (
        r"maximum line size|maximum_object_size",
        "longer than a row may be",
        "Mend that line; perhaps a quote is never closed, or the lines have no ends",
    ),
    (
        r"unterminated quote|unquoted value|quoted value|quote should be",
        "a quote that is not closed, or text after one",
        "A cell that holds the delimiter or a quote stands in double quotes, and a quote in it is "
        'doubled: "". Mend that line',
    ),
    (
        r"expected number of columns",
        "another number of columns",
        "Every row must have the same columns; a cell that holds the delimiter stands in double "
        "quotes. Mend that line, or name the delimiter with --delimiter",
    ),
    (r"recursion depth", "nested too deep", "Give one flat object an event"),
    (
        r"unexpected end of (data|input)",
        "the JSON ends too early",
        "The file seems cut off; fetch it again, or mend that line",
    ),
    (r"json", "not JSON", "Mend that line"),
    (
        r"state machine|line terminator|newline",
        "its line ends or quotes are mixed up",
        "Save the file with one kind of line end and closed quotes",
    ),
    (
        r"parquet|thrift|magic bytes|footer|snappy|column chunk",
        "the Parquet data is damaged",
        "Write it again, or give CSV",
    ),
    (r"zstd|decompress|gzip|compress", "the packed data is damaged", "Fetch the file again"),
)


@contextlib.contextmanager
def blaming(label: str) -> Iterator[None]:
    """Turn what DuckDB says about the file `label` into an InputError; the rest passes as it is."""
    try:
        yield
    except duckdb.Error as error:
        answer = explain(label, error)
        if answer is None:
            raise
        raise answer from error


def explain(label: str, error: duckdb.Error) -> InputError | None:
    """What to tell a person about a file that DuckDB could not read.

    None when the file is not to blame: a full disk, too little memory, or a statement of ours.
    """
    text = str(error)
    if is_storage_failure(error) or isinstance(error, _OUR_FAULTS) or _is_parameters(text):
        return None
    lowered = _without_rows(text).lower()
    reason, mend = "cannot be made sense of", "Write it again in one of the forms that are read"
    for pattern, *found in _REASONS:
        if re.search(pattern, lowered):
            reason, mend = found
            break
    where = _place(text)
    counted = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", text)
    if counted and "columns" in reason:
        reason = f"{counted[2]} columns where there should be {counted[1]}"
    return InputError(f"{label}: {where}cannot be read ({reason}). {mend}.")


def is_storage_failure(error: duckdb.Error) -> bool:
    """Whether DuckDB failed for want of disk or memory rather than for what it read."""
    text = _without_rows(str(error)).lower()
    return isinstance(error, duckdb.OutOfMemoryException) or any(
        word in text for word in _STORAGE_WORDS
    )


def _is_parameters(text: str) -> bool:
    """Whether a statement and its parameters do not fit, which is a fault of ours."""
    return bool(re.search(r"(?i)parameter argument|prepared statement|named parameter", text))


def _place(text: str) -> str:
    """'line 12: ' when DuckDB names a line, else nothing."""
    found = re.search(r"Error on Line: (\d+)", text)
    if found:
        return f"line {found[1]} "
    # of JSON lines it counts the objects, and one too many
    found = re.search(r"at byte \d+ in line (\d+)", text)
    return f"line {int(found[1]) - 1} (blank lines not counted) " if found else ""


def _without_rows(text: str) -> str:
    """DuckDB's message without the row it quotes and without its list of possible fixes."""
    text = re.sub(
        r"(?s)Original Line:.*?(?=\n(?:Expected|Value|Possible|Maximum|Invalid)|$)", "", text
    )
    text = re.sub(r"(?s)Possible fixes:.*", "", text)
    return re.sub(r'file "[^\n]*?",', "file,", text)
