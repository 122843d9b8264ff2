"""Which schedule is fastest, judged from a few steps of each that did not hold the same work.

Steps differ in what they hold far more than schedules differ: a trial of six steps each once called
`synchronous` twice as fast as `prioritised` because it had met the smaller batches. So a step's
time is told as if it had held the work of a mean step: log time = schedule + slope x log work, one
slope for all. Medians, so that a stall of the machine decides nothing.

Before: choose.py times steps.   After: it drops what has lost, and takes what has won.
Price: some hundred numbers.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

WORTHWHILE_SHARE = 0.02  # a more involved schedule must be faster by this
_LOST_ERRORS = 2.0  # standard errors by which a schedule must be behind to be dropped
_SLOPES = (0.0, 1.5)  # beyond, the steps do not tell what work costs
_SPREAD_OF_MAD = 1.4826  # standard deviation over median absolute deviation of a normal variable
_ERROR_OF_MEDIAN = math.sqrt(math.pi / 2)  # over the error of a mean, of a normal variable

Timed = Sequence[tuple[float, float]]  # (seconds of the slowest rank, work) of each timed step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """How a schedule did so far."""

    num_steps: int
    step_s: float  # of a step with the mean work of all timed steps
    error_share: float  # standard error of step_s, relative


def standings(timed: Mapping[str, Timed]) -> dict[str, Standing]:
    """Every schedule's time of a step of equal work.

    timed: at least one step for each schedule. Work is counted in any unit, the same for all.
    """
    logs = {
        name: [(math.log(max(s, 1e-9)), math.log(max(work, 1.0))) for s, work in steps]
        for name, steps in timed.items()
    }
    slope = _slope(logs)
    mean_work = statistics.fmean(work for steps in logs.values() for _, work in steps)
    equal = {
        name: [time - slope * (work - mean_work) for time, work in steps]
        for name, steps in logs.items()
    }
    medians = {name: statistics.median(times) for name, times in equal.items()}
    misses = [abs(time - medians[name]) for name, times in equal.items() for time in times]
    spread = _SPREAD_OF_MAD * statistics.median(misses)
    return {
        name: Standing(
            num_steps=len(times),
            step_s=math.exp(medians[name]),
            error_share=_ERROR_OF_MEDIAN * spread / math.sqrt(len(times)),
        )
        for name, times in equal.items()
    }


def still_open(found: Mapping[str, Standing]) -> list[str]:
    """The schedules that may yet be the fastest, in the order given."""
    best = min(found.values(), key=lambda standing: standing.step_s)
    return [
        name
        for name, standing in found.items()
        if _behind(standing, best) <= max(WORTHWHILE_SHARE, _LOST_ERRORS * _error(standing, best))
    ]


def fastest(found: Mapping[str, Standing]) -> str:
    """The schedule to take: the least involved that is within noise of the fastest.

    found: the least involved first.
    """
    best = min(found.values(), key=lambda standing: standing.step_s)
    return next(
        name
        for name, standing in found.items()
        if _behind(standing, best) <= max(WORTHWHILE_SHARE, _error(standing, best))
    )


def _behind(slower: Standing, faster: Standing) -> float:
    """How far one is behind another, as a difference of logarithms."""
    return math.log(slower.step_s / faster.step_s)


def _error(one: Standing, other: Standing) -> float:
    """Standard error of `_behind`."""
    return math.hypot(one.error_share, other.error_share)


def _slope(logs: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """Least squares within the schedules: how log time grows with log work."""
    products = squares = 0.0
    for steps in logs.values():
        mean_time = statistics.fmean(time for time, _ in steps)
        mean_work = statistics.fmean(work for _, work in steps)
        products += sum((time - mean_time) * (work - mean_work) for time, work in steps)
        squares += sum((work - mean_work) ** 2 for _, work in steps)
    if squares == 0.0:
        return 0.0
    return min(max(products / squares, _SLOPES[0]), _SLOPES[1])
