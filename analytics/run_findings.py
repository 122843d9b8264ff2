"""What a rule of advice may say: an advice with its evidence, or a note why there is none.

Before: run_facts.py.   After: straggler_rules.py, step_rules.py and job_rules.py make findings,
which run_advice.py ranks.
Price: nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from analytics.compare import Estimate
from analytics.run_facts import RunFacts

DAY_S = 86_400
LEAST_SHARE = 0.01  # of the time that a share is of: what recovers less is not worth a change
_SURE_STEPS, _SURE_WIDTH = 100, 0.25  # for high confidence; width of the interval / its figure
_FAIR_STEPS = 20

# what a share is of
STEPS, TRAINED, JOB, ALLOCATED = "kept steps", "all trained steps", "the job", "the allocated time"

NOTHING, MEASURE, ALREADY = "nothing_to_gain", "measure_first", "already_on"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """Rows of the warehouse that an advice rests on, and the figures read from them."""

    view: str  # table or view
    rows: dict[str, Any]  # column -> value that picks the rows
    figures: Mapping[str, float | int | str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confidence:
    """How sure the figure is: high, medium or low, and of what that is said."""

    level: str
    reason: str
    num_steps: int
    share_lower: float | None  # 95 % interval of the recoverable share; None: no interval
    share_upper: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to change, what it would recover, and why we say so."""

    kind: str
    recommendation: str
    part: str | None  # part of the step it lowers; None for what lies outside of the bubble
    recoverable_share: float | None  # of the time that share_of names; None: money alone
    recoverable_s: float | None  # rank-seconds of this run
    floor_s: float | None  # what stays even then
    floor: str  # why
    recoverable_s_per_day: float | None  # device-seconds of a day on these devices
    cost_per_day: float | None  # money of a day; None without a price
    currency: str | None
    evidence: list[Evidence]
    confidence: Confidence
    share_of: str | None = None  # STEPS, TRAINED, JOB or ALLOCATED

    def plain(self) -> dict[str, Any]:
        """As plain values, ready for JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """Why a rule gives no advice: nothing to gain, already on, or something to measure first."""

    kind: str
    status: str  # NOTHING, ALREADY or MEASURE
    text: str


Finding = Advice | Note | None


def shared(
    facts: RunFacts,
    kind: str,
    *,
    part_s: float,
    floor_s: float,
    floor: str,
    recommendation: str,
    evidence: list[Evidence],
    parts: tuple[str, ...],
    part: str,
    doubt: str = "",
) -> Finding:
    """The advice to lower a part of the step by what lies above its floor, or a note.

    part_s: what was measured, rank-seconds; parts: those of the step whose spread tells how sure
    it is; doubt: why the confidence is low whatever the spread.
    """
    recoverable_s = max(0.0, part_s - floor_s)
    share = recoverable_s / facts.window_s if facts.window_s else 0.0
    if share < LEAST_SHARE:
        return Note(
            kind=kind,
            status=NOTHING,
            text=f"{share:.2%} of the time could be recovered ({part_s / facts.window_s:.2%} "
            f"measured less the floor); below {LEAST_SHARE:.0%} nothing is advised.",
        )
    scale = recoverable_s / part_s
    measured = facts.interval(*parts)
    interval = Estimate(
        value=share,
        lower=None if measured.lower is None else measured.lower * scale,
        upper=None if measured.upper is None else measured.upper * scale,
    )
    return Advice(
        kind=kind,
        recommendation=recommendation,
        part=part,
        recoverable_share=share,
        recoverable_s=recoverable_s,
        floor_s=floor_s,
        floor=floor,
        evidence=evidence,
        confidence=confidence(facts.num_steps, interval, doubt=doubt),
        **per_day(facts, share, of=STEPS),
    )


def per_day(facts: RunFacts, share: float, *, of: str) -> dict[str, Any]:
    """A share of STEPS, TRAINED or JOB as device-seconds and money of a day of this job.

    A day of the job holds its steps for as long as goodput says, so that advice on steps and on
    what lies between them can be ranked; a job without spans is taken to consist of steps.
    """
    kept, redone = facts.goodput["goodput_share"], facts.goodput["redone_share"]
    of_day = 1.0
    if kept is not None and of != JOB:
        of_day = kept + (redone if of == TRAINED else 0.0)
    seconds = share * of_day * facts.run["num_devices"] * DAY_S
    price = facts.run["device_hour_cost"]
    return {
        "share_of": of,
        "recoverable_s_per_day": seconds,
        "cost_per_day": None if price is None else round(seconds / 3600 * price, 6),
        "currency": facts.run["currency"],
    }


def confidence(num_steps: int, interval: Estimate, *, doubt: str = "") -> Confidence:
    """How sure a share is, by its steps and by its bootstrap interval over groups of steps."""
    value, lower, upper = interval.value, interval.lower, interval.upper
    spread = "no interval, too few steps"
    width = None
    if value and lower is not None and upper is not None:
        spread = f"95 % interval {lower:.1%} to {upper:.1%}, bootstrap over groups of steps"
        width = (upper - lower) / 2 / value
    level = "low"
    if not doubt and width is not None and lower is not None and lower > 0:
        if num_steps >= _SURE_STEPS and width <= _SURE_WIDTH:
            level = "high"
        elif num_steps >= _FAIR_STEPS:
            level = "medium"
    reason = f"{num_steps:,} steps; {spread}" + (f"; {doubt}" if doubt else "")
    return Confidence(
        level=level, reason=reason, num_steps=num_steps, share_lower=lower, share_upper=upper
    )
