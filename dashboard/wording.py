"""Numbers as a reader meets them: units, signs, and a dash for what was not measured.

Before: rows of analytics.metrics.   After: overview.py. Nothing here computes a measure.
"""

from __future__ import annotations

import datetime
from typing import Any

from analytics.compare import Estimate

Row = dict[str, Any]
MISSING = "–"


def percent(share: float | None, digits: int = 1) -> str:
    """0.123 -> '12.3 %'."""
    return MISSING if share is None else f"{share * 100:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """0.0123 -> '12.3 ms'; from one second on in seconds."""
    if seconds is None:
        return MISSING
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def number(value: float | None, digits: int = 1) -> str:
    """1234.56 -> '1,234.6'."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def money(value: float | None, currency: str) -> str:
    """An amount with its currency; small amounts keep the digits that tell them from 0."""
    if value is None:
        return MISSING
    digits = 2 if abs(value) >= 1 or value == 0 else 6 if abs(value) < 0.01 else 4
    return f"{value:,.{digits}f} {currency}"


def money_format(largest: float) -> str:
    """The format of amounts in a chart: about three digits of the largest, the same for all."""
    for limit, digits in ((10, 2), (0.1, 3), (0.01, 4)):
        if largest >= limit:
            return f",.{digits}f"
    return ",.6f"


def interval(estimate: Estimate, *, as_percent: bool) -> str:
    """' (95 %: 0.61 to 0.64)', or nothing where there is no interval."""
    if estimate.lower is None or estimate.upper is None:
        return ""
    if as_percent:
        return f" (95 %: {percent(estimate.lower)} to {percent(estimate.upper)})"
    return f" (95 %: {estimate.lower:.3f} to {estimate.upper:.3f})"


def change(ours: float | None, theirs: float | None) -> str | None:
    """Relative change as '-37.5 %', None where it is undefined."""
    if ours is None or not theirs:
        return None
    return f"{(ours / theirs - 1) * 100:+.1f} %"


def points(ours: float | None, theirs: float | None) -> str | None:
    """Difference of two shares as '-30.0 points', None where it is undefined."""
    if ours is None or theirs is None:
        return None
    return f"{(ours - theirs) * 100:+.1f} points"


def instant(unix_s: float) -> str:
    """An instant as '2026-11-30 14:00 UTC', whatever the zone of server or browser."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def age(seconds: float) -> str:
    """How long ago: '5 s', '3 min', '7 h', '2 days'."""
    seconds = max(0.0, seconds)
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
