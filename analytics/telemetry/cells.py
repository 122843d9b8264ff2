"""Reads what a cell says: a number in the column's unit, nothing, or something that cannot be.

'9 %', '364 MiB', '63.5 W' carry their unit; a plain number has the unit that its header or its
source told. '[N/A]', '[Not Supported]' and their like, DCGM's blanks, NaN and infinities are
nothing (NULL, never 0). A number that no device can give, such as a utilisation of 2619 %, is left
out with its reason, and the row stays.

Before: an importer's columns of text.   After: gathering.py takes columns of numbers.
Price: one dictionary look-up a cell; telemetry repeats itself, so few cells are read twice.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

# From the smallest of the values that NVML and DCGM give for "no value": 2**47 is DCGM's blank of
# a double, 9223372036854775792 to ...794 those of whole numbers.
BLANK = 140_737_488_355_328.0
NOTHING = frozenset(
    {
        "", "-", "--", "n/a", "na", "nan", "null", "none", "inf", "+inf", "-inf", "not supported",
        "unknown error", "insufficient permissions", "err!", "no data", "unknown", "not available",
        "requested functionality has been deprecated", "gpu is lost", "not found",
        "gpu requires reset",
    }
)  # fmt: skip
_MOST_KNOWN = 100_000
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\s\d.,]\S{0,15})?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """What a column of the warehouse takes: units and their factors, and what can be.

    factors: unit in lower case -> factor to the column's own unit; '' is no unit.
    """

    factors: dict[str, float]
    lower: float
    upper: float
    is_whole: bool = False


_SHARE = {"%": 0.01, "percent": 0.01, "pct": 0.01, "ratio": 1.0}
_BYTES = {
    "b": 1.0, "bytes": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
    # NVIDIA's tools write MB and GB for binary units
    "kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30, "megabytes": 1e6,
}  # fmt: skip
_RATE = {"bytes/s": 1.0, "b/s": 1.0, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9}
_WATT = {"w": 1.0, "mw": 1e-3, "kw": 1e3, "watts": 1.0}
_JOULE = {"j": 1.0, "mj": 1e-3, "kj": 1e3}
_CELSIUS = {"c": 1.0, "°c": 1.0, "celsius": 1.0}
_HERTZ = {"mhz": 1.0, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6}

FIGURES: dict[str, Figure] = {
    **{
        name: Figure(factors=_SHARE, lower=0, upper=1)
        for name in (
            "utilization_share", "memory_busy_share", "engine_active_share", "sm_active_share",
            "sm_occupancy_share", "tensor_active_share", "dram_active_share",
        )
    },
    **{
        name: Figure(factors=_BYTES, lower=0, upper=2.0**45, is_whole=True)
        for name in ("memory_used_bytes", "memory_total_bytes")
    },
    **{
        name: Figure(factors=_WATT, lower=0, upper=20_000)
        for name in ("power_w", "power_limit_w")
    },
    **{
        name: Figure(factors=_HERTZ, lower=0, upper=20_000)
        for name in ("sm_clock_mhz", "memory_clock_mhz")
    },
    **{
        name: Figure(factors=_RATE, lower=0, upper=1e13)
        for name in (
            "pcie_sent_bytes_per_s", "pcie_received_bytes_per_s", "nvlink_sent_bytes_per_s",
            "nvlink_received_bytes_per_s",
        )
    },
    "energy_j": Figure(factors=_JOULE, lower=0, upper=1e12),
    "temperature_c": Figure(factors=_CELSIUS, lower=-100, upper=250),
    "num_processes": Figure(factors={"": 1.0}, lower=0, upper=1e6, is_whole=True),
}  # fmt: skip


class CellReader(dict[str, float | int | None]):
    """Text of a cell -> its value in the unit of a column of the warehouse; None is nothing.

    name: the column, a key of FIGURES. unit: that of a number without one, in lower case.
    `bad` holds each text that was left out, and why; such a text gives None.
    """

    def __init__(self, name: str, unit: str) -> None:
        self.figure = FIGURES[name]
        self.factor = self.figure.factors[unit]
        self.bad: dict[str, str] = {}

    def __missing__(self, text: str) -> float | int | None:
        value, why = self._read(text)
        if why:
            self.bad[text] = why
        self[text] = value
        return value

    def column(self, cells: Sequence[str]) -> tuple[list[float | int | None], list[int]]:
        """The values of cells, and the places of those that were left out."""
        if len(self) > _MOST_KNOWN:
            self.clear()
            self.bad.clear()
        values = [self[cell] for cell in cells]
        if not self.bad:
            return values, []
        return values, [place for place, cell in enumerate(cells) if cell in self.bad]

    def _read(self, text: str) -> tuple[float | int | None, str]:
        plain = bare(text)
        if plain in NOTHING:
            return None, ""
        match = _NUMBER.fullmatch(plain)
        if match is None:
            return None, "not_a_number"
        unit = match[2]
        factor = self.factor if unit is None else self.figure.factors.get(unit)
        if factor is None:
            return None, "unknown_unit"
        number = float(match[1])
        if number >= BLANK or not math.isfinite(number):
            return None, ""
        return self._within(number * factor)

    def _within(self, value: float) -> tuple[float | int | None, str]:
        if not self.figure.lower <= value <= self.figure.upper * (1 + 1e-12):
            return None, "out_of_range"
        if self.figure.is_whole:
            return round(value), ""
        return min(value, self.figure.upper), ""


def bare(text: str) -> str:
    """A cell's first line in lower case, without blanks and the brackets of '[N/A]'."""
    plain = text.strip()
    if "\n" in plain:
        # a command that printed two lines into one cell: "26.11\n0"; the first is the figure
        plain = plain.split("\n", 1)[0].strip()
    if plain.startswith("[") and plain.endswith("]"):
        plain = plain[1:-1]
    return plain.lower().strip()
