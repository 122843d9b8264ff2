"""Turns what a driver says into figures that can be true, or into none.

Drivers count on from where they were loaded, start again from 0, and sometimes report a blank or
nonsense as a number. Nothing here makes up a value: what cannot be is None.

Before: nvml.py, gpm.py and host_probe.py read.   After: fact_device_sample.
"""

from __future__ import annotations

import math

# What drivers report for "no value" is this or more: 2**47, and 2**63 less a few.
BLANK = 140_737_488_355_328
_MOST_W = 3000.0  # of a device whose power limit is not told
_SLACK = 1.5  # boards exceed their limit for moments
_ROUNDING = 1.01  # a share is measured by two clocks


def in_range(value: float | None, upper: float) -> float | None:
    """The value; None for a blank, for nonsense (negative, above `upper`) and for no number."""
    if value is None or not math.isfinite(value):
        return None
    return value if 0 <= value <= upper and value < BLANK else None


def share_of_percent(percent: float | None) -> float | None:
    """A percentage as a share of 0..1; None when it is none."""
    told = in_range(percent, 100 * _ROUNDING)
    return None if told is None else min(1.0, told / 100)


def counted(now: float, before: float) -> float:
    """What a counter counted between two readings; after a reset, what it shows since."""
    return now - before if now >= before else now


class Rate:
    """A counter's change a second, from reading to reading."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def take(self, value: float | None, now_s: float) -> float | None:
        """The rate since the last reading that told something; None for the first."""
        if value is None:
            return None
        before, self._before = self._before, (value, now_s)
        if before is None or now_s <= before[1]:
            return None
        return counted(value, before[0]) / (now_s - before[1])


class Energy:
    """An energy counter without its resets and jumps [J].

    It begins at the first reading and then adds what the device can have used since the last one:
    at most power limit x time x 1.5. Any other reading is None, until two in a row agree.
    """

    def __init__(self) -> None:
        self._total_j = 0.0
        self._before: tuple[float, float] | None = None
        self._odd: tuple[float, float] | None = None

    def take(self, energy_j: float | None, now_s: float, limit_w: float | None) -> float | None:
        """The counter now; limit_w: the device's power limit, None when it is not told."""
        if energy_j is None:
            return None
        reading = (energy_j, now_s)
        gained_j = 0.0
        if self._before is None:
            self._total_j = energy_j
        else:
            gained_j = counted(energy_j, self._before[0])
            if not _can_be(reading, self._before, limit_w):
                if self._odd is None or not _can_be(reading, self._odd, limit_w):
                    self._odd = reading
                    return None
                gained_j = counted(energy_j, self._odd[0])
        self._before, self._odd = reading, None
        self._total_j += gained_j
        return self._total_j


def _can_be(
    reading: tuple[float, float], before: tuple[float, float], limit_w: float | None
) -> bool:
    most_j = (limit_w or _MOST_W) * (reading[1] - before[1]) * _SLACK
    return counted(reading[0], before[0]) <= most_j
