"""Turns the times of a trace, microseconds in JSON, into whole nanoseconds without losing any.

A trace tells times in microseconds whatever its `displayTimeUnit` says, as integers or with three
decimals. A double holds such a number exactly enough to be rounded to its nanosecond below 2^43
microseconds (101 days, so traces with a `baseTimeNanoseconds` fit); beyond, the digits must come
from the text.

Before: events.py reads the numbers.   After: reading.py keeps the nanoseconds.
Price: one pass of numpy over the numbers of a block; about half a microsecond a number for text.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import numpy as np

EXACT_US = 2.0**43  # half the distance of doubles below it is under half a nanosecond
MAX_US = 2**52  # 142 years around 1970


class TextNeededError(Exception):
    """These numbers are too large for a double to tell their nanoseconds."""


def to_ns(values: Sequence[int | float | str]) -> np.ndarray:
    """Times or durations as int64 nanoseconds, rounded to the nearest.

    values: microseconds; each of them below MAX_US, as `is_time` says.
    Raises TextNeededError when a fraction of a large double would be a guess.
    """
    kinds = set(map(type, values))
    if kinds <= {int}:
        return np.array(values, np.int64) * 1000
    if str in kinds:
        return np.array([exact_ns(value) for value in values], np.int64)
    us = np.array(values, np.float64)
    whole_us = np.floor(us)
    fraction = us - whole_us  # exact: both are of one size
    if np.any((np.abs(us) >= EXACT_US) & (fraction > 0)):
        raise TextNeededError
    return whole_us.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64)


def exact_ns(value: int | float | str) -> int:
    """One time or duration in microseconds as nanoseconds, from its digits.

    Raises ValueError when it is no finite number below MAX_US.
    """
    if isinstance(value, str):
        whole, _, fraction = value.partition(".")
        if whole.isdecimal() and fraction.isdecimal() and len(whole) < 16 and len(fraction) <= 3:
            return int(whole) * 1000 + int(fraction.ljust(3, "0"))
    try:
        number = decimal.Decimal(value if isinstance(value, int) else str(value))
    except decimal.InvalidOperation as error:
        raise ValueError(f"{value!r} is not a number") from error
    if not number.is_finite() or number.adjusted() > 16 or abs(number) >= MAX_US:
        raise ValueError(f"{value!r} is not a time")
    return int((number * 1000).to_integral_value(decimal.ROUND_HALF_EVEN))


def is_time(value: object) -> bool:
    """Whether a value of a trace can be a time or a duration in microseconds."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return -MAX_US < value < MAX_US
    if isinstance(value, str):
        try:
            exact_ns(value)
        except ValueError:
            return False
        return True
    return False
