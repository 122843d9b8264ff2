"""Finds out from a text's first lines how it is written: columns, or one user a line.

Each delimiter is tried on the first 1,000 records. The one under which the first line names the
most of user, item and time wins; without such names, the one that cuts all lines into the same
number of cells. Lines of different lengths that hold ids are one user each.

Before: unpacked.py's head of a file.   After: delimited.py and lists.py build the statement.
Price: at most a megabyte in memory; the head must fit it, the rest of the file is not looked at.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import itertools
import re

from analytics.errors import InputError
from analytics.sources.columns import no_time, num_known, untyped
from analytics.sources.options import ReadingOptions
from analytics.sources.times import looks_like_times
from analytics.sources.unpacked import HEAD_BYTES, PlainFile

DELIMITERS = ("\t", "::", "|", ";", ",", "\x01", "^", " ")  # of equals the first
_NUM_RECORDS = 1000
_NUMBER = re.compile(r"\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*")
_BLANK = b" \t\r\n\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextShape:
    """How a text is written. Records are those of the head, without the header."""

    format: str  # csv, inter, lists or json
    delimiter: str = ""
    item_delimiter: str = ""  # lists only: between items; delimiter stands after the user
    quote: str = '"'
    num_skipped: int = 0  # blank lines before the first record
    names: tuple[str, ...] = ()  # empty: there is no header
    num_columns: int = 0
    records: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cut:
    """The head under one delimiter."""

    delimiter: str
    quote: str
    records: list[list[str]]
    num_columns: int  # of most records
    same_share: float  # of records with that many

    @property
    def num_known(self) -> int:
        return num_known(self.records[0]) if self.records and self.num_columns > 1 else 0


def text_shape(file: PlainFile, options: ReadingOptions) -> TextShape:
    """How a text is written, by option or by its head.

    Raises InputError when no delimiter makes sense of it.
    """
    text, num_skipped = _head_text(file)
    wanted = options.format
    if wanted in ("json", "json_sessions") or (wanted is None and text[:1] in ("{", "[")):
        return TextShape(format="json")
    if wanted == "lists":
        return _lists(text, options, num_skipped)
    marks = (options.delimiter_text,) if options.delimiter_text else DELIMITERS
    cuts = [_cut(text, mark) for mark in marks]
    best = max(cuts, key=lambda cut: (cut.num_known, cut.same_share >= 0.999, cut.same_share > 0.9))
    has_header = _has_header(best, options)
    if not has_header and wanted is None:
        cuts = [cut for cut in cuts if cut.num_columns > 1] or cuts
        best = max(cuts, key=lambda cut: (cut.same_share >= 0.999, cut.same_share > 0.95))
        has_header = _has_header(best, options)
        if not has_header and _is_lists(best, text):
            return _lists(text, options, num_skipped)
    is_guess = not has_header and options.delimiter is None and best.same_share <= 0.5
    if best.num_columns < 2 or is_guess:
        raise _no_delimiter(file, best, has_header)
    return _table(best, has_header=has_header, num_skipped=num_skipped)


def _head_text(file: PlainFile) -> tuple[str, int]:
    """The head's whole lines from the first that is not blank, and how many were blank."""
    head = file.head
    if len(head) == HEAD_BYTES and file.num_bytes > HEAD_BYTES:
        end = max(head.rfind(b"\n"), head.rfind(b"\r"))
        head = head[: end + 1] if end >= 0 else head
    start = len(head) - len(head.lstrip(_BLANK))
    # an indented first line keeps its blanks: they may be an empty first cell
    start = max(head.rfind(b"\n", 0, start), head.rfind(b"\r", 0, start)) + 1
    blank = head[:start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    text = head[start:].decode("utf-8", "ignore").removeprefix("\ufeff")
    return text, blank.count(b"\n")


def _table(cut: _Cut, *, has_header: bool, num_skipped: int) -> TextShape:
    names = tuple(name.strip() for name in cut.records[0]) if has_header else ()
    records = cut.records[1:] if has_header else cut.records
    num_columns = len(names) or cut.num_columns
    is_typed = any(name != untyped(name) for name in names)
    return TextShape(
        format="inter" if is_typed else "csv",
        delimiter=cut.delimiter,
        quote=cut.quote,
        num_skipped=num_skipped,
        names=names,
        num_columns=num_columns,
        records=tuple(tuple(record) for record in records if len(record) == num_columns),
    )


def _cut(text: str, delimiter: str) -> _Cut:
    records, quote = _records(text, delimiter)
    counts = collections.Counter(len(record) for record in records)
    num_columns, num = counts.most_common(1)[0] if counts else (0, 0)
    return _Cut(
        delimiter=delimiter,
        quote=quote,
        records=records,
        num_columns=num_columns,
        same_share=num / len(records) if num_columns > 1 else 0.0,
    )


def _records(text: str, delimiter: str) -> tuple[list[list[str]], str]:
    """The first records, and the quote: none when a cell starts with one that ends badly."""
    if len(delimiter) > 1 or ord(delimiter) > 127:
        lines = itertools.islice((line for line in _lines(text) if line), _NUM_RECORDS)
        return [line.split(delimiter) for line in lines], '"' if f'{delimiter}"' in text else ""
    for strict, quote in ((True, '"'), (False, "")):
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            strict=strict,
        )
        records: list[list[str]] = []
        try:
            for record in reader:
                if record:
                    records.append(record)
                if len(records) == _NUM_RECORDS:
                    break
            return records, quote
        except csv.Error:
            if len(records) > 100 and quote:  # the head may end inside a cell
                return records, quote
    return records, ""


def _lines(text: str) -> list[str]:
    """The lines; str.splitlines would also cut at marks that ids may hold."""
    return re.split(r"\r\n|\n|\r", text)


def _has_header(cut: _Cut, options: ReadingOptions) -> bool:
    """Whether the first record names the columns: by usual or given names, or by contrast."""
    if options.header is not None:
        return options.header
    if not cut.records or cut.num_columns < 2:
        return False
    first, rest = cut.records[0], cut.records[1:]
    if any(_NUMBER.fullmatch(cell) for cell in first):
        return False
    told = {options.user, options.item, options.time} - {None, "none"}
    if cut.num_known or any(name in told or untyped(name) in told for name in first):
        return True
    same = [record for record in rest if len(record) == len(first)]
    numeric = [
        all(_NUMBER.fullmatch(record[place]) for record in same[:100])
        for place in range(len(first))
    ]
    return len(same) > 0 and sum(numeric) >= 2


def _is_lists(cut: _Cut, text: str) -> bool:
    """Whether lines of ids, each a user and then items, explain the text better than columns do."""
    lines = [line for line in _lines(text) if line.strip()][:_NUM_RECORDS]
    cells = [re.split(r"[\s,;|:]+", line.strip().strip(",;|:")) for line in lines]
    counts = collections.Counter(len(row) for row in cells)
    flat = list(itertools.chain.from_iterable(cells))
    are_ids = sum(any(c.isdigit() for c in cell) for cell in flat) >= 0.9 * len(flat)
    if not flat or not are_ids or (len(counts) == 1 and max(counts) < 6):
        return False
    if _has_times(cut):
        return False
    if cut.same_share >= 0.999:
        # the same number of cells everywhere: columns when few, lists when many or in lists
        in_lists = cut.num_columns == 2 and len(counts) > 1
        return cut.num_columns > 8 or in_lists
    return sum(len(row) > 1 for row in cells) >= 0.6 * len(cells)


def _has_times(cut: _Cut) -> bool:
    """Whether a column of the records that fit holds times; then lines that do not fit are bad."""
    same = [record for record in cut.records if len(record) == cut.num_columns]
    if cut.same_share <= 0.5 or cut.num_columns < 2:
        return False
    places = range(min(cut.num_columns, 12))
    return any(looks_like_times([record[place] for record in same]) for place in places)


def _lists(text: str, options: ReadingOptions, num_skipped: int) -> TextShape:
    """One user a line: what stands after the user, and what between the items."""
    lines = [line for line in _lines(text) if line.strip()][:_NUM_RECORDS]
    outer = options.delimiter_text
    inner = outer
    if outer is None:
        found = collections.Counter()  # type: collections.Counter[str]
        after = collections.Counter()  # type: collections.Counter[str]
        for line in lines:
            # ", " is a comma, and "  " is one blank
            marks = [
                m.strip(" ") or " " for m in re.findall(r" *(?:::|[\t,;|:]| ) *", line.strip())
            ]
            after.update(marks[:1])
            found.update(marks[1:])
        outer = after.most_common(1)[0][0] if after else " "
        inner = found.most_common(1)[0][0] if found else outer
    records = [re.split(r"[\s,;|:]+", line.strip()) for line in lines]
    return TextShape(
        format="lists",
        delimiter=outer,
        item_delimiter=inner or outer,
        quote="",
        num_skipped=num_skipped,
        records=tuple(tuple(record) for record in records),
    )


def _no_delimiter(file: PlainFile, cut: _Cut, has_header: bool) -> InputError:
    if cut.num_known or has_header:
        return no_time(file.label, ": there is only one column")
    return InputError(
        f"{file.label}: neither columns nor lists of ids were found in its first lines. Expected "
        "are columns with one of tab :: | ; , or space between them (name another with "
        "--delimiter), JSON lines, Parquet, or one user a line (--format lists)."
    )
