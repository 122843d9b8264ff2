"""Imports what `nvidia-smi dmon` wrote: columns set with blanks, headers that begin with #.

`-o DT` adds date and time by the wall clock; without it a log has no times, and start and interval
are asked. '-' is nothing. 'fb' is in MiB, though dmon writes MB; 'rxpci' and 'txpci' are MB/s.

Before: recognising.py found the form.   After: nvidia_smi_csv.py reads the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from analytics.telemetry.gathering import Gathering
from analytics.telemetry.nvidia_smi_csv import import_csv


def import_dmon(lines: Iterable[tuple[int, str, str]], gathering: Gathering, where: str) -> None:
    """Gather every row of a dmon log.

    Raises InputError as import_csv does.
    """
    gathering.collector = "nvidia-smi dmon"
    import_csv(_delimited(lines), gathering, where)


def looks_like_dmon(text: str) -> bool:
    """Whether a text begins with dmon's two header lines."""
    lines = [line for line in text.splitlines()[:20] if line.startswith("#")][:2]
    if len(lines) < 2:
        return False
    names, units = (line.lstrip("# ").lower().split() for line in lines)
    return "gpu" in names[:3] and "idx" in units[:3] and "pid" not in names


def _delimited(lines: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str, str]]:
    """The lines with commas for blanks; the line of units is as blank as an empty one."""
    for number, text, fault in lines:
        cells = text.replace(",", " ").split()
        if text.lstrip().startswith("#"):
            cells = text.replace("#", " ").split()
            if "Idx" in cells:
                cells = []
        yield number, ",".join(cells), fault
