"""Finds out how a log writes its times, and reads them as whole nanoseconds.

Numbers are seconds, milliseconds, microseconds or nanoseconds since 1970 by their magnitude; text
is ISO 8601 with or without a zone, NVIDIA's 2021/04/03 13:32:39.123, 04-03-2021 13:32:39 (asked
which is the day, unless a number above 12 tells) or 'Fri Aug  4 11:44:30 2023'. Exact: nothing
passes through a float. A time without a zone is a local one; zones.py makes UTC of it.

Before: an importer's first cells.   After: gathering.py takes the nanoseconds.
Price: 1 us a cell that was not seen before; a log's days are looked up once each.
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable, Sequence

from analytics.errors import InputError

NS = 10**9
_DAY_S = 86_400
_NUMBER = re.compile(r"(\d{1,20})(?:\.(\d{0,30}))?(?:[eE]\+?(\d{1,2}))?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d{1,12}))?")
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})")
_PLAIN_DAY = re.compile(r"(\d{4})(\d{2})(\d{2})")
_YEAR_LAST = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})")
_ZONE = re.compile(r"(Z|z|UTC|[+-]\d{2}:?\d{2})")
_CTIME = re.compile(r"[A-Z][a-z]{2}\s+([A-Z][a-z]{2})\s+(\d{1,2})\s+(\S+)\s+(\d{4})")
_MONTHS = {name: place for place, name in enumerate(calendar.month_abbr) if name}
# unit's digits: a number below the limit counts this many to the second
_EPOCH_UNITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))

Reader = Callable[[str], int | None]


class Instants:
    """How one log writes its times. Call it with a cell: nanoseconds, or None when unreadable.

    is_local: the nanoseconds count from 1970 by the wall clock of a zone that the log leaves out.
    """

    def __init__(self, read: Reader, *, is_local: bool, words: str) -> None:
        self.read = read
        self.is_local = is_local
        self.words = words

    def column(self, cells: Sequence[str]) -> list[int | None]:
        """The times of cells, in their order."""
        read = self.read
        return [read(cell) for cell in cells]


def find_instants(cells: Sequence[str], *, day_first: bool | None, where: str) -> Instants:
    """The way in which most of these cells write a time.

    day_first: what the person told of 04-03-2021; None leaves it to the cells.
    Raises InputError when most are no times, or when nothing tells day from month.
    """
    filled = [cell.strip() for cell in cells if cell.strip()]
    found = [
        _epoch(filled),
        Instants(_local, is_local=True, words="local time"),
        Instants(_zoned, is_local=False, words="time with its zone"),
        Instants(_ctime, is_local=True, words="local time"),
    ]
    best = max(found, key=lambda one: sum(one.read(cell) is not None for cell in filled))
    num_read = sum(best.read(cell) is not None for cell in filled)
    if filled and 2 * num_read >= len(filled):
        return best
    year_last = [match for cell in filled if (match := _YEAR_LAST.match(cell))]
    if filled and 2 * len(year_last) >= len(filled):
        return _of_order(year_last, day_first, where)
    shown = repr(filled[0][:40]) if filled else "empty"
    raise InputError(
        f"{where}: the times cannot be read; the first is {shown}. Expected seconds, "
        "milliseconds, microseconds or nanoseconds since 1970, or a date such as "
        "2024-01-31T12:00:00Z or 2024/01/31 12:00:00.123."
    )


def elapsed_ns(text: str) -> int | None:
    """Seconds such as 12.5 as whole nanoseconds; None when it is no such number."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or len(match[1]) > 10:
        return None
    return _scaled(match, 1)


def read_instant(text: str) -> int:
    """Nanoseconds, UTC, of a time that a person typed: with its zone, or seconds since 1970.

    Raises InputError when it is another or has no zone.
    """
    for read in (_zoned, _epoch([text]).read):
        value = read(text.strip())
        if value is not None:
            return value
    raise InputError(
        f"the time {text!r} cannot be read. Give it with its zone, such as "
        "2026-11-30T14:00:00Z or 2026-11-30T15:00:00+01:00, or as seconds since 1970."
    )


def epoch_ns(text: str, per_s: int = 1) -> int | None:
    """A number of units since 1970, `per_s` of them a second, as whole nanoseconds; or None."""
    match = _NUMBER.fullmatch(text)
    return None if match is None else _scaled(match, per_s)


def _epoch(cells: Sequence[str]) -> Instants:
    """Numbers since 1970, of the unit that their median's magnitude tells."""
    numbers = sorted(int(match[1]) for cell in cells if (match := _NUMBER.fullmatch(cell)))
    middle = numbers[len(numbers) // 2] if numbers else 0
    per_s = next((per_s for limit, per_s in _EPOCH_UNITS if middle < limit), NS)

    def read(cell: str) -> int | None:
        return epoch_ns(cell.strip(), per_s)

    # a small number is a count of something, not a time: 10**8 s is the year 1973
    if middle < 10**8:
        return Instants(lambda _: None, is_local=False, words="")
    return Instants(read, is_local=False, words="time since 1970")


def _scaled(match: re.Match[str], per_s: int) -> int | None:
    """A decimal number as nanoseconds; what is finer is cut off."""
    fraction, power = match[2] or "", int(match[3] or 0)
    if power > 20:
        return None
    digits = int(match[1] + fraction) * int(10**power) * NS // per_s
    return digits // int(10 ** len(fraction))


def _of_order(matches: Sequence[re.Match[str]], day_first: bool | None, where: str) -> Instants:
    first = max(int(match[1]) for match in matches)
    second = max(int(match[2]) for match in matches)
    if day_first is None:
        if (first > 12) == (second > 12):
            raise InputError(
                f"{where}: {matches[0][0]} can be read in two ways, and no date in it tells day "
                "from month. Say which with --day-first or --month-first."
            )
        day_first = first > 12

    def read(cell: str) -> int | None:
        text = cell.strip()
        match = _YEAR_LAST.match(text)
        if match is None:
            return None
        day, month = (match[1], match[2]) if day_first else (match[2], match[1])
        midnight = _midnight_s(int(match[3]), int(month), int(day))
        return _with_clock(midnight, text[match.end() :].lstrip(" T"))

    return Instants(read, is_local=True, words="local time")


_days: dict[str, int | None] = {}  # text of a day -> seconds since 1970


def _local(cell: str) -> int | None:
    """2021/04/03 13:32:39.123, 2021-04-03T13:32:39, 20210403 13:32:39 or a date alone."""
    text = cell.strip()
    cut = text.find(" ") if " " in text else text.find("T")
    day, clock = (text, "") if cut < 0 else (text[:cut], text[cut + 1 :].lstrip())
    if day not in _days:
        if len(_days) > 10_000:
            _days.clear()
        match = _YEAR_FIRST.fullmatch(day) or _PLAIN_DAY.fullmatch(day)
        _days[day] = _midnight_s(int(match[1]), int(match[2]), int(match[3])) if match else None
    return _with_clock(_days[day], clock)


def _zoned(cell: str) -> int | None:
    """As a local time, with Z, UTC or +02:00 after it."""
    text = cell.strip()
    sign = max(text.rfind("+"), text.rfind("-"))
    cut = -1 if not text else len(text) - 1 if text[-1] in "Zz" else -1
    if text.endswith("UTC"):
        cut = len(text) - 3
    elif cut < 0 and sign > 10:
        cut = sign
    if cut <= 0:
        return None
    match = _ZONE.fullmatch(text[cut:])
    value = _local(text[:cut]) if match else None
    if match is None or value is None or ":" not in text[:cut]:
        return None
    return value - _offset_s(match[1]) * NS


def _offset_s(name: str) -> int:
    if name in ("Z", "z", "UTC"):
        return 0
    digits = name[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if name[0] == "-" else seconds


def _ctime(cell: str) -> int | None:
    match = _CTIME.fullmatch(cell.strip())
    if match is None or match[1] not in _MONTHS:
        return None
    return _with_clock(_midnight_s(int(match[4]), _MONTHS[match[1]], int(match[2])), match[3])


def _midnight_s(year: int, month: int, day: int) -> int | None:
    """Seconds from 1970 to the start of a day; None when there is no such day."""
    try:
        return (datetime.date(year, month, day) - datetime.date(1970, 1, 1)).days * _DAY_S
    except ValueError:
        return None


def _with_clock(midnight_s: int | None, clock: str) -> int | None:
    """Nanoseconds of a day and a time of day; '' is midnight."""
    if midnight_s is None:
        return None
    if not clock:
        return midnight_s * NS
    match = _CLOCK.fullmatch(clock)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3])
    if hour > 23 or minute > 59 or second > 60:
        return None
    fraction = int((match[4] or "0").ljust(9, "0")[:9])
    return (midnight_s + hour * 3600 + minute * 60 + second) * NS + fraction
