"""What to change first about a run: the ranked list of `seqscale advise`.

A rule speaks only of what was measured. The bubble is never called waste: `recoverable` is what
lies above stated floors, and the rest of the bubble is shown beside it. Parts of a step are
disjoint, and so is what the rules say of them: their sum is at most the bubble.

Before: run_facts.py, the rules.   After: flows/advise_command.py prints it.
Price: the aggregates of run_facts.py and a bootstrap of 20 groups, per part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import duckdb

from analytics.job_rules import JOB_RULES
from analytics.named_runs import runs_named
from analytics.run_facts import RunFacts, run_facts
from analytics.run_findings import Advice, Note
from analytics.step_rules import STEP_RULES
from analytics.straggler_rules import STRAGGLER_RULES

RULES = (*STRAGGLER_RULES, *STEP_RULES, *JOB_RULES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAdvice:
    """What can be said of one run, most worth first."""

    run_id: str
    pipeline_id: str
    arm: str
    num_steps: int
    window_s: float  # rank-seconds
    bubble_s: float
    recoverable_s: float  # of the bubble
    currency: str | None
    device_hour_cost: float | None
    goodput_share: float | None  # of a day of the job in kept steps; None: it recorded no spans
    advice: list[Advice]
    notes: list[Note]

    def plain(self, days: int = 1) -> dict[str, Any]:
        """As plain values; `cost_over_days` is what an advice is worth in so many days."""
        listed = []
        for rank, advice in enumerate(self.advice, start=1):
            a_day = advice.cost_per_day
            over = None if a_day is None else round(a_day * days, 6)
            listed.append({"rank": rank} | advice.plain() | {"cost_over_days": over})
        window_s = self.window_s
        return {
            "run_id": self.run_id,
            "pipeline_id": self.pipeline_id,
            "arm": self.arm,
            "num_steps": self.num_steps,
            "window_s": window_s,
            "bubble_s": self.bubble_s,
            "bubble_share": self.bubble_s / window_s if window_s else None,
            "recoverable_s": self.recoverable_s,
            "recoverable_share": self.recoverable_s / window_s if window_s else None,
            "currency": self.currency,
            "device_hour_cost": self.device_hour_cost,
            "goodput_share": self.goodput_share,
            "days": days,
            "advice": listed,
            "notes": [dataclasses.asdict(note) for note in self.notes],
        }


def advise(con: duckdb.DuckDBPyConnection, name: str) -> list[RunAdvice]:
    """The advice on the runs that a run_id, a pipeline_id or 'latest' names, baseline first.

    Raises WarehouseError when there is no such run.
    """
    return [advise_run(run_facts(con, run_id)) for run_id in runs_named(con, name).values()]


def advise_run(facts: RunFacts) -> RunAdvice:
    """Every rule's finding about one run, ranked by the money of a day, else by its time.

    Money ranks only where all of it is known and in one currency; what recovers no time comes last
    where time ranks.
    """
    findings = [rule(facts) for rule in RULES] if facts.window_s > 0 else [_NO_STEP]
    advice = [finding for finding in findings if isinstance(finding, Advice)]
    return RunAdvice(
        run_id=facts.run["run_id"],
        pipeline_id=facts.run["pipeline_id"],
        arm=facts.run["arm"],
        num_steps=facts.num_steps,
        window_s=facts.window_s,
        bubble_s=facts.bubble_s,
        recoverable_s=sum(a.recoverable_s or 0.0 for a in advice if a.part is not None),
        currency=facts.run["currency"],
        device_hour_cost=facts.run["device_hour_cost"],
        goodput_share=facts.goodput["goodput_share"],
        advice=sorted(advice, key=_worth(advice), reverse=True),
        notes=[finding for finding in findings if isinstance(finding, Note)],
    )


def _worth(advice: list[Advice]) -> Callable[[Advice], tuple[float, float]]:
    """What to rank by: money and time of a day, or time and money where money does not compare."""
    currencies = {a.currency if a.cost_per_day is not None else None for a in advice}
    is_by_money = len(currencies) == 1 and None not in currencies

    def worth(one: Advice) -> tuple[float, float]:
        money, time = one.cost_per_day or 0.0, one.recoverable_s_per_day or 0.0
        return (money, time) if is_by_money else (time, money)

    return worth


_NO_STEP = Note(
    kind="steps",
    status="measure_first",
    text="No step of this run was recorded, so there is nothing to advise on.",
)
