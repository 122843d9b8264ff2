"""Imports what DCGM-exporter serves at /metrics: Prometheus text, one scrape or several.

Lines of HELP and TYPE may be missing. What is no sample, such as the '...' and shell commands of a
copied page, is rejected line by line. A sample's own time is in milliseconds since 1970; a scrape
without times was taken at one moment, which is asked.

Before: recognising.py found the form.   After: dcgm_fields.py says what each metric is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from analytics.telemetry.dcgm_fields import PREFIX, Point, Series
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.instants import epoch_ns
from analytics.telemetry.nvidia_smi_csv import ask_times

_SAMPLE = re.compile(
    r"\s*(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)\s*"
    r"(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+"
    r"(?P<value>[^\s{}\"]{1,60})(?:\s+(?P<time>-?\d{1,19}))?\s*"
)
_LABEL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")
_VALUE = re.compile(r"[+-]?(?:[0-9.]+(?:[eE][+-]?\d+)?|nan|inf)", re.IGNORECASE)
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": " "}


def looks_like_dcgm_text(text: str) -> bool:
    """Whether some line of a text is a sample of a DCGM metric, or its HELP or TYPE."""
    return any(
        line.lstrip().startswith((PREFIX, f"# HELP {PREFIX}", f"# TYPE {PREFIX}"))
        for line in text.splitlines()
    )


def import_dcgm_text(
    lines: Iterable[tuple[int, str, str]], gathering: Gathering, where: str
) -> None:
    """Gather every sample.

    Raises InputError when a sample has no time and none was told.
    """
    series = Series(gathering)
    for number, text, fault in lines:
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        match = None if fault else _SAMPLE.fullmatch(text)
        if match is None or not _VALUE.fullmatch(match["value"]):
            gathering.reject(number, fault or "not_a_sample", text)
            continue
        time_ns = gathering.options.taken_unix_ns
        if match["time"] is not None:
            time_ns = epoch_ns(match["time"], 1000)
        elif time_ns is None:
            raise ask_times(f"{where} line {number}")
        labels = {
            name: re.sub(r"\\.", lambda found: _ESCAPED.get(found[0], found[0]), value)
            for name, value in _LABEL.findall(match["labels"] or "")
        }
        series.take(
            Point(
                line=number,
                text=text,
                name=match["name"],
                labels=labels,
                value=match["value"],
                time_ns=time_ns,
            )
        )
