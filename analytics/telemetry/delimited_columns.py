"""Finds out what the columns of a delimited log are: by its header, by --fields, or by its cells.

Before: bounded_text.py's numbered lines.   After: nvidia_smi_csv.py reads the rows by the layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from analytics.errors import InputError
from analytics.telemetry.bounded_text import ZERO_BYTE, whole_text
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.headerless import guess, looks_headerless
from analytics.telemetry.nvidia_smi_fields import Layout, layout
from analytics.telemetry.records import Cut, records

DELIMITERS = (",", ";", "\t", "|")
MOST_COLUMNS = 2000


def header_layout(
    text: str, delimiter: str, renamed: Sequence[tuple[str, str]] = ()
) -> Layout | None:
    """The layout of a line, when it is a header with a figure of a device; else None."""
    cut = next(records([(1, text, "")], delimiter), None)
    if cut is None or cut.fault or len(cut.cells) > MOST_COLUMNS:
        return None
    found = layout(cut.cells, renamed)
    return found if found.figures else None


def chosen_delimiter(
    lines: Iterable[tuple[int, str, str]], gathering: Gathering
) -> tuple[str, Iterator[tuple[int, str, str]]]:
    """The delimiter by which the first line makes the most sense, and all the lines."""
    source = iter(lines)
    seen = list(itertools.islice(source, 20))
    if seen and seen[0][1].lower().startswith("sep="):
        seen[0] = (seen[0][0], "", "")  # a spreadsheet's note to itself
    first = next((text for _, text, _ in seen if text.strip()), "")

    def score(delimiter: str) -> tuple[int, int]:
        found = header_layout(first, delimiter, gathering.options.renamed)
        return (len(found.figures) if found else 0, first.count(delimiter))

    return max(DELIMITERS, key=score), itertools.chain(seen, source)


def check_header(sample: list[Cut], delimiter: str, gathering: Gathering, where: str) -> None:
    """Raise InputError when a zero byte stands in the header: its columns would be guessed then."""
    if gathering.options.fields is not None:
        return
    for cut in itertools.takewhile(lambda cut: cut.fault, sample):
        text = whole_text(cut.text)
        if cut.fault == ZERO_BYTE and header_layout(text, delimiter, gathering.options.renamed):
            raise InputError(
                f"{where} line {cut.line}: a zero byte stands in the header, so its columns are "
                "not sure. Mend that line, or leave it out and name the columns with --fields."
            )


def first_layout(sample: list[Cut], gathering: Gathering, where: str) -> tuple[Layout, int]:
    """The layout of the file, and how many records of the sample are its header.

    Raises InputError when no column is known, or --fields names none.
    """
    options = gathering.options
    if options.fields is not None:
        found = layout(options.fields, options.renamed)
        if not found.figures:
            raise InputError(
                f"--fields names no figure of a device: {', '.join(options.fields)}. Use the names "
                "of nvidia-smi --help-query-gpu, such as timestamp,utilization.gpu,memory.used."
            )
        return found, 0
    good = [cut.cells for cut in sample if not cut.fault]
    if not good:
        raise InputError(f"{where}: it has no row that can be read.")
    if len(good[0]) > MOST_COLUMNS:
        raise InputError(
            f"{where}: its first line has {len(good[0]):,} columns, more than the "
            f"{MOST_COLUMNS:,} that any log of devices has."
        )
    found = layout(good[0], options.renamed)
    if found.figures:
        return found, next(place for place, cut in enumerate(sample) if not cut.fault) + 1
    if looks_headerless(good):
        return guess(good, where), 0
    raise InputError(
        f"{where}: no column is a figure of a device that is known here. Its columns are "
        f"{', '.join(cell.strip()[:40] for cell in good[0][:12])}. If one of them is, say which "
        "with --map COLUMN=FIELD, such as --map duty=utilization.gpu --map when=timestamp."
    )
