"""Imports a capture of several nvidia-smi commands in one text, section by section.

A section is headed by a line of #, its title, its command and a line of #. The output of
`--query-gpu ... --format=csv` is imported as nvidia_smi_csv.py does; every other section is one
rejected record, with what it is as its reason: help texts and tables hold no samples, and dmon
without -o DT tells no times. Where the capture tells in UTC when it was collected and its first
wall clock time is within a quarter of an hour of that, its zone is UTC and is not asked.

Before: recognising.py found the form.   After: fact_device_sample.
"""

from __future__ import annotations

import dataclasses
import re
import zoneinfo
from collections.abc import Iterable, Iterator

from analytics.errors import InputError
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.instants import NS, read_instant
from analytics.telemetry.nvidia_smi_csv import import_csv

_RULER = "#" * 20
_COLLECTED = re.compile(r"collected_at:\s*(\S+)\s*")
_WALL = re.compile(r"(\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}(?:\.\d+)?)\b")
_NEAR_NS = 15 * 60 * NS
_MOST_LINES = 200_000
_Line = tuple[int, str, str]


@dataclasses.dataclass
class _Section:
    line: int
    title: str
    command: str
    lines: list[_Line]


def looks_like_capture(text: str) -> bool:
    """Whether a text begins with the section of a capture."""
    return text.startswith(_RULER) and bool(re.search(r"^# \$ nvidia-smi", text, re.MULTILINE))


def import_capture(lines: Iterable[_Line], gathering: Gathering, where: str) -> None:
    """Gather the queries of a capture.

    Raises InputError when a question is open, or no section is a query.
    """
    collected_ns: int | None = None
    num_queries = 0
    for section in _sections(lines, gathering):
        if not section.command:
            for _, text, _ in section.lines:
                match = _COLLECTED.fullmatch(text)
                collected_ns = read_instant(match[1]) if match else collected_ns
            continue
        if _is_query(section) and any(text.strip() for _, text, _ in section.lines):
            num_queries += 1
            if gathering.zone is None and _is_utc(section.lines, collected_ns):
                gathering.zone = zoneinfo.ZoneInfo("UTC")
            import_csv(section.lines, gathering, f"{where} line {section.line}")
            continue
        is_dmon = " dmon" in section.command
        reason = "section_without_times" if is_dmon else "section_without_samples"
        gathering.reject(section.line, reason, section.title)
    if not num_queries:
        raise InputError(f"{where}: the capture has no section of nvidia-smi --query-gpu.")


def _sections(lines: Iterable[_Line], gathering: Gathering) -> Iterator[_Section]:
    """Each section with the lines below its heading; what precedes the first has no command.

    Lines of a query beyond the longest section are rejected one by one.
    """
    section = _Section(0, "", "", [])
    in_heading = False
    for number, text, fault in lines:
        if text.startswith(_RULER):
            in_heading = not in_heading
            if in_heading:
                yield section
                section = _Section(number, "", "", [])
        elif in_heading and text.startswith("#"):
            words = text.lstrip("# ").strip()
            if words.startswith("$ ") and not section.command:
                section.command = words
            elif not section.title:
                section.title = words
        elif len(section.lines) < _MOST_LINES:
            in_heading = False
            section.lines.append((number, text, fault))
        elif _is_query(section) and text.strip():
            gathering.reject(number, "section_too_long", text)
    yield section


def _is_query(section: _Section) -> bool:
    return "--query-gpu=" in section.command


def _is_utc(lines: Iterable[_Line], collected_ns: int | None) -> bool:
    """Whether the first wall clock time is the moment of collection, which is told in UTC."""
    for _, text, _ in lines:
        match = _WALL.search(text)
        if match is not None and collected_ns is not None:
            return abs(read_instant(match[1] + "Z") - collected_ns) < _NEAR_NS
    return False
