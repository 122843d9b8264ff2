"""Rules of advice about a job outside of its steps: redone and skipped steps, evaluation, devices.

These shares are of time that is not the bubble of the kept steps, so they come beside what
straggler_rules.py and step_rules.py find, and nothing is counted twice.

Before: run_facts.py.   After: run_advice.py ranks what they find.
Definition: docs/advice.md.
"""

from __future__ import annotations

from analytics.plain_rows import Row
from analytics.run_facts import RunFacts
from analytics.run_findings import (
    ALLOCATED,
    DAY_S,
    JOB,
    LEAST_SHARE,
    MEASURE,
    NOTHING,
    STEPS,
    TRAINED,
    Advice,
    Confidence,
    Evidence,
    Finding,
    Note,
    per_day,
)

MOST_EVALUATION = 0.05  # of a job's time


def redone(facts: RunFacts) -> Finding:
    """Keep what was trained before a stop."""
    lost_s = sum(row["redone_s"] for row in facts.attempts_redone)
    all_s = facts.pipeline_window_s + lost_s
    if not facts.attempts_redone or not all_s:
        return None
    share = lost_s / all_s
    if share < LEAST_SHARE:
        return Note(
            kind="checkpoints",
            status=NOTHING,
            text=f"Steps of attempts that were not kept are {share:.2%} of all trained time.",
        )
    num = len(facts.attempts_redone)
    return Advice(
        kind="checkpoints",
        recommendation=f"Save checkpoints more often, and on notice of a stop: {num} attempt(s) "
        f"were trained again, {share:.1%} of all trained time.",
        part=None,
        recoverable_share=share,
        recoverable_s=lost_s,
        floor_s=0.0,
        floor="0 with a checkpoint right before the stop; on average half of the time between two "
        "checkpoints is lost at each stop",
        evidence=[
            Evidence(
                view="attempt_redone",
                rows={"pipeline_id": facts.run["pipeline_id"]},
                figures={"num_attempts": num, "redone_s": lost_s},
            )
        ],
        confidence=Confidence(
            level="medium" if num > 1 else "low",
            reason=f"{num} stop(s) were seen; how often they come is not known from that",
            num_steps=facts.num_steps,
            share_lower=None,
            share_upper=None,
        ),
        **per_day(facts, share, of=TRAINED),
    )


def skipped(facts: RunFacts) -> Finding:
    """Steps whose gradient was not finite trained nothing."""
    if not facts.num_skipped_steps or not facts.window_s:
        return None
    share = facts.skipped_busy_s / facts.window_s
    if share < LEAST_SHARE:
        return Note(
            kind="skipped_steps",
            status=NOTHING,
            text=f"{facts.num_skipped_steps} step(s) were left out, {share:.2%} of the time.",
        )
    return Advice(
        kind="skipped_steps",
        recommendation=f"{facts.num_skipped_steps} of {facts.num_steps} steps were left out since "
        "their gradient was not finite: lower the learning rate, warm up longer, or train the "
        "dense part in fp32.",
        part=None,
        recoverable_share=share,
        recoverable_s=facts.skipped_busy_s,
        floor_s=0.0,
        floor="0: no step need be left out; only the ranks' own work in them is counted",
        evidence=[
            Evidence(
                view="fact_step",
                rows={"run_id": facts.run["run_id"], "was_skipped": True},
                figures={
                    "num_steps": facts.num_skipped_steps,
                    "busy_s": facts.skipped_busy_s,
                },
            )
        ],
        confidence=Confidence(
            level="medium",
            reason=f"all {facts.num_steps:,} steps are counted; whether another setting leaves "
            "none out is not known",
            num_steps=facts.num_steps,
            share_lower=None,
            share_upper=None,
        ),
        **per_day(facts, share, of=STEPS),
    )


def evaluation(facts: RunFacts) -> Finding:
    """Evaluate less often; the last evaluation of each run and kind stays.

    `seqscale run` evaluates once, when training has ended, so it gets a note; spans of other loops
    may tell of more.
    """
    if not facts.evaluations or not facts.wall_s:
        return None
    [told] = facts.evaluations
    share, saved = told["duration_s"] / facts.wall_s, told["repeated_s"] / facts.wall_s
    num, num_repeated = told["num_spans"], told["num_repeated"]
    if share <= MOST_EVALUATION or saved < LEAST_SHARE:
        what = f"those that were repeated later {saved:.1%}" if num_repeated else "none is repeated"
        return Note(
            kind="evaluation",
            status=NOTHING,
            text=f"Evaluation takes {share:.1%} of the job in {num} evaluation(s); {what}.",
        )
    return Advice(
        kind="evaluation",
        recommendation="Evaluate less often, or on fewer users before the last time: "
        f"{num_repeated} of {num} evaluations were repeated later and took {saved:.1%} of the job.",
        part=None,
        recoverable_share=saved,
        recoverable_s=saved * facts.wall_s * facts.run["num_devices"],
        floor_s=(share - saved) * facts.wall_s * facts.run["num_devices"],
        floor="the last evaluation of each run and kind",
        evidence=[
            Evidence(
                view="fact_span",
                rows={"pipeline_id": facts.run["pipeline_id"], "span_kind": "evaluation"},
                figures={
                    "num_spans": num,
                    "num_repeated": num_repeated,
                    "duration_s": told["duration_s"],
                    "repeated_s": told["repeated_s"],
                    "wall_s": facts.wall_s,
                },
            )
        ],
        confidence=Confidence(
            level="medium",
            reason=f"{num} evaluations of one job were timed",
            num_steps=facts.num_steps,
            share_lower=None,
            share_upper=None,
        ),
        **per_day(facts, saved, of=JOB),
    )


def idle(facts: RunFacts) -> Finding:
    """Give back devices that are paid for and do nothing."""
    all_s = sum(row["seconds"] for row in facts.states)
    if not all_s:
        return None
    by_state = {row["cause"]: row for row in facts.states}
    row = by_state.get("allocated_idle")
    share = 0.0 if row is None else row["seconds"] / all_s
    if row is None or share < LEAST_SHARE:
        return Note(
            kind="idle_devices",
            status=NOTHING,
            text=f"{share:.2%} of the allocated time was seen to be idle.",
        )
    num_devices = row["num_all_devices"]
    seconds = share * num_devices * DAY_S
    price = None if row["cost"] is None else row["cost"] / (row["seconds"] / 3600)
    return Advice(
        kind="idle_devices",
        recommendation=f"Release devices sooner or start the job faster: {share:.1%} of the "
        "allocated time was sampled with at most 1 % of activity, outside of any step.",
        part=None,
        recoverable_share=share,
        recoverable_s=row["seconds"],
        floor_s=0.0,
        floor="0: a device that does nothing can be released; start-up keeps a little",
        share_of=ALLOCATED,
        recoverable_s_per_day=seconds,
        cost_per_day=None if price is None else round(seconds / 3600 * price, 6),
        currency=row["currency"],
        evidence=[
            Evidence(
                view="allocation_state",
                rows={"pipeline_id": facts.run["pipeline_id"], "cause": "allocated_idle"},
                figures={"seconds": row["seconds"], "allocated_s": all_s, "cost": row["cost"]},
            )
        ],
        confidence=Confidence(
            level="medium",
            reason=f"sampled on {row['num_devices']} of {num_devices} device(s)",
            num_steps=facts.num_steps,
            share_lower=None,
            share_upper=None,
        ),
    )


def unobserved(facts: RunFacts) -> Finding:
    """Allocated time that neither steps nor samples tell of is to be measured, not judged."""
    all_s = sum(row["seconds"] for row in facts.states)
    lost_s = sum(row["seconds"] for row in facts.states if row["cause"] == "unobserved")
    if not all_s or lost_s / all_s < LEAST_SHARE:
        return None
    return Note(
        kind="unobserved_devices",
        status=MEASURE,
        text=f"{lost_s / all_s:.1%} of the allocated device time is in no step and no sample: it "
        "may be busy or idle. Run the sampler on every host that is allocated.",
    )


def spot(facts: RunFacts) -> Finding:
    """Rent the other way where dated prices say that it is cheaper."""
    dear = [row for row in facts.savings if (row["net_saving_cost"] or 0) < 0]
    if dear:
        row = min(dear, key=lambda saving: float(saving["net_saving_cost"]))
        return _other_purchase(
            facts,
            row,
            "spot_saving",
            hours=row["spot_hours"],
            saved=-row["net_saving_cost"],
            words=f"Rent the pool {row['pool_id']} on demand: after {row['num_preemptions']} "
            "preemption(s) and what was redone, spot cost more.",
        )
    cheaper = [row for row in facts.prices if row["spot_cost"] < row["on_demand_cost"]]
    if not cheaper:
        return None
    row = max(cheaper, key=lambda price: float(price["on_demand_cost"] - price["spot_cost"]))
    return _other_purchase(
        facts,
        row,
        "allocation",
        hours=row["device_hours"],
        saved=row["on_demand_cost"] - row["spot_cost"],
        words=f"Rent the pool {row['pool_id']} on spot, with checkpoints: the same hours cost "
        f"{row['spot_cost']:,.2f} instead of {row['on_demand_cost']:,.2f} {row['currency']} at the "
        "spot price of that time. What preemptions would make be redone is not in it.",
    )


def _other_purchase(
    facts: RunFacts, row: Row, view: str, *, hours: float, saved: float, words: str
) -> Finding:
    if hours <= 0:
        return None
    a_day = saved / hours * row["num_devices"] * 24
    return Advice(
        kind="purchase",
        recommendation=words,
        part=None,
        recoverable_share=None,
        recoverable_s=None,
        floor_s=None,
        floor="money alone: no time is recovered",
        recoverable_s_per_day=None,
        cost_per_day=round(a_day, 6),
        currency=row["currency"],
        evidence=[
            Evidence(
                view=view,
                rows={"pipeline_id": facts.run["pipeline_id"], "pool_id": row["pool_id"]},
                figures={k: v for k, v in row.items() if k.endswith(("_cost", "_hours"))},
            )
        ],
        confidence=Confidence(
            level="low",
            reason="prices and preemptions of one job",
            num_steps=facts.num_steps,
            share_lower=None,
            share_upper=None,
        ),
    )


JOB_RULES = (redone, skipped, evaluation, idle, unobserved, spot)
