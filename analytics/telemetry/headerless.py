"""Finds out what the columns of an nvidia-smi CSV without a header are, from what they hold.

Units and shapes tell most of it. Two columns of % are GPU and memory activity when one is nearly
always the higher, for memory is not busy while no kernel runs. Two of MiB are used and total when
the larger one stays; used and free when their sum stays, and used is the one that is higher while
the GPU works. What these leave open is asked, never guessed: a wrong column is read for months.

Before: delimited_columns.py has the first records.   After: nvidia_smi_csv.py reads by the layout.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence

from analytics.errors import InputError
from analytics.telemetry.instants import find_instants
from analytics.telemetry.nvidia_smi_fields import INDEX, NAME, TIME, UUID, Layout, layout

_WITH_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s+(%|MiB|W|MHz)\s*")
_ROUNDING_MIB = 2
_ENOUGH_ROWS = 10
_Values = dict[int, list[float]]
_FIELD_NAMES = {
    TIME: "timestamp", UUID: "uuid", INDEX: "index", NAME: "name",
    "utilization_share": "utilization.gpu", "memory_busy_share": "utilization.memory",
    "memory_used_bytes": "memory.used", "memory_total_bytes": "memory.total",
    "power_w": "power.draw", "power_limit_w": "power.limit", "temperature_c": "temperature.gpu",
}  # fmt: skip


def looks_headerless(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first rows are those of nvidia-smi: a time or UUID, and cells with units."""
    if not rows:
        return False
    units = sum(bool(_WITH_UNIT.fullmatch(cell)) for cell in rows[0])
    return units >= 1 and _is_time([row[0] for row in rows if row])


def guess(rows: Sequence[Sequence[str]], where: str) -> Layout:
    """The layout that the rows tell.

    Raises InputError naming the columns that could be several things, and how to say which.
    """
    width = len(rows[0])
    columns = [[row[place] for row in rows if len(row) == width] for place in range(width)]
    found: dict[int, str] = {}
    by_unit: dict[str, list[int]] = {}
    for place, cells in enumerate(columns):
        units = {match[2] for cell in cells if (match := _WITH_UNIT.fullmatch(cell))}
        if len(units) == 1:
            by_unit.setdefault(units.pop(), []).append(place)
    values = {place: _numbers(columns[place]) for places in by_unit.values() for place in places}
    for unit, rule in _RULES.items():
        found |= rule(by_unit.get(unit, []), values, found)
    open_places = [place for places in by_unit.values() for place in places if place not in found]
    for place, cells in enumerate(columns):
        if place not in found and place not in open_places:
            told_name = _by_shape(cells, set(found.values()))
            if told_name:
                found[place] = told_name
            else:
                open_places.append(place)
    if open_places:
        raise _question(found, sorted(open_places), width, where)
    return layout([_FIELD_NAMES.get(found[place], found[place]) for place in range(width)])


def _percents(places: list[int], values: _Values, _found: dict[int, str]) -> dict[int, str]:
    """GPU and memory activity: memory is not busy while no kernel runs, but for a stray sample."""
    if len(places) != 2:
        return {}
    one, other = places
    pairs = list(zip(values[one], values[other], strict=True))
    above, below = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    if above < below:
        one, other, above, below = other, one, below, above
    if above < 10 * max(below, 1):
        return {}
    return {one: "utilization_share", other: "memory_busy_share"}


def _memories(places: list[int], values: _Values, found: dict[int, str]) -> dict[int, str]:
    """Used and total, when one stays; used and free, when their sum does and work tells which."""
    if len(places) != 2:
        return {}
    one, other = places
    pairs = list(zip(values[one], values[other], strict=True))
    moved = [len({pair[side] for pair in pairs}) > 1 for side in (0, 1)]
    sums = [a + b for a, b in pairs]
    if all(moved) and max(sums) - min(sums) <= _ROUNDING_MIB:
        used = [place for place in places if _rises_with_work(values[place], values, found)]
        free = [place for place in places if place not in used]
        return {used[0]: "memory_used_bytes", free[0]: "memory.free"} if len(used) == 1 else {}
    if moved == [True, False] and all(a <= b for a, b in pairs):
        return {one: "memory_used_bytes", other: "memory_total_bytes"}
    if moved == [False, True] and all(a >= b for a, b in pairs):
        return {other: "memory_used_bytes", one: "memory_total_bytes"}
    return {}


def _rises_with_work(memory: list[float], values: _Values, found: dict[int, str]) -> bool:
    """Whether a column is higher while the GPU works than while it stands idle."""
    use = next((place for place, name in found.items() if name == "utilization_share"), None)
    if use is None:
        return False
    pairs = list(zip(memory, values[use], strict=True))
    busy = [value for value, share in pairs if share > 0]
    idle = [value for value, share in pairs if share == 0]
    if min(len(busy), len(idle)) < _ENOUGH_ROWS:
        return False
    return statistics.fmean(busy) > statistics.fmean(idle) + _ROUNDING_MIB


def _watts(places: list[int], values: _Values, _found: dict[int, str]) -> dict[int, str]:
    """The draw moves, the limit stays."""
    moved = [place for place in places if len(set(values[place])) > 1]
    if len(moved) != 1 or len(places) > 2:
        return {}
    limits = {place: "power_limit_w" for place in places if place not in moved}
    return {moved[0]: "power_w", **limits}


# MHz: which of the four clocks a column is, nothing in its values tells.
_RULES: dict[str, Callable[[list[int], _Values, dict[int, str]], dict[int, str]]] = {
    "%": _percents, "MiB": _memories, "W": _watts,
}  # fmt: skip


def _by_shape(cells: Sequence[str], taken: set[str]) -> str:
    """What a column without units is, or ''."""
    plain = [cell.strip() for cell in cells]
    if all(cell.startswith(("GPU-", "MIG-")) for cell in plain):
        return UUID
    if TIME not in taken and _is_time(plain):
        return TIME
    if all(re.fullmatch(r"\d{1,3}", cell) for cell in plain):
        numbers = {int(cell) for cell in plain}
        if numbers == set(range(len(numbers))) and len(numbers) <= 16 and INDEX not in taken:
            return INDEX
        if min(numbers) >= 16 and max(numbers) <= 110 and "temperature_c" not in taken:
            return "temperature_c"
        return ""
    is_name = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9 .()/-]{3,60}", cell) for cell in plain)
    return NAME if is_name and NAME not in taken else ""


def _is_time(cells: Sequence[str]) -> bool:
    try:
        find_instants(cells, day_first=True, where="")
    except InputError:
        return False
    return True


def _numbers(cells: Sequence[str]) -> list[float]:
    """The numbers of cells with a unit; NaN, which compares as false, for any other."""
    matches = [_WITH_UNIT.fullmatch(cell) for cell in cells]
    return [math.nan if match is None else float(match[1]) for match in matches]


def _question(found: dict[int, str], unsure: list[int], width: int, where: str) -> InputError:
    names = [
        _FIELD_NAMES.get(found.get(place, ""), found.get(place, "?")) for place in range(width)
    ]
    which = ", ".join(str(place + 1) for place in unsure)
    return InputError(
        f"{where}: the file has no header, and what column {which} holds can be read in more than "
        f"one way. Name all {width} columns as --query-gpu names them, with the marks filled in: "
        f"--fields {','.join(names)}"
    )
