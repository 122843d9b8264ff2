"""Rules of advice about waiting for the slowest rank: is it the machine, the data, or neither.

Both speak of the same seconds: what slow ranks cause is no gain of a better placement, nor is
waiting that the predicted costs of the ranks' work do not explain.

Before: run_facts.py; who was waited for, view straggler_ranking.   After: run_advice.py ranks what
they find.
Definition: docs/advice.md.
"""

from __future__ import annotations

from analytics.plain_rows import Row
from analytics.run_facts import RunFacts, slow_ranks
from analytics.run_findings import (
    ALREADY,
    LEAST_SHARE,
    MEASURE,
    NOTHING,
    Evidence,
    Finding,
    Note,
    shared,
)

RANDOM_PLACEMENT = "random_equal"


def slow_rank(facts: RunFacts) -> Finding:
    """Ranks that are slower than the others for the same work: the machine, not the data."""
    slow, wait_s = slow_ranks(facts.stragglers), facts.part_s["straggler_wait"]
    if not slow:
        return _no_slow_rank(facts.stragglers)
    found = "; ".join(
        f"{_named(row)} takes {row['cost_ratio']:.2f} times as long as the others for the same "
        f"work and is the last in {row['last_share']:.0%} of the steps"
        for row in slow
    )
    if wait_s is None:
        return Note(
            kind="slow_rank",
            status=MEASURE,
            text=f"{found}. What the others wait for that is not known: record arrivals at "
            "collectives.",
        )
    return shared(
        facts,
        "slow_rank",
        part_s=wait_s,
        floor_s=wait_s - slow_saved_s(facts),
        floor="the wait that is left when each slow rank is as fast as the median of the others",
        recommendation=f"Replace or repair the device of each slow rank: {found}. Look for "
        "throttling, a busy neighbour or a slow link first.",
        evidence=[_ranking(row) for row in slow],
        parts=("straggler_wait",),
        part="straggler_wait",
        doubt="work is told in events alone, and those of long sequences take longer"
        if slow[0]["work_basis"] == "num_tokens"
        else "",
    )


def _no_slow_rank(stragglers: list[Row]) -> Finding:
    """What is known instead of the rank that the others waited for most."""
    if not stragglers:
        return None
    most = stragglers[0]
    kind = "slow_rank"
    if not most["is_beyond_chance"]:
        text = "No rank is the last more often than chance allows."
        return Note(kind=kind, status=NOTHING, text=text)
    last = f"{_named(most)} is the last in {most['last_share']:.0%} of the steps"
    if most["straggler_kind"] == "data_driven":
        text = f"{last}, and holds the most work when it is: that is its data, not its device."
        return Note(kind=kind, status=NOTHING, text=text)
    if most["cost_ratio"] is None:
        text = (
            f"{last}, but what work each rank held was not recorded: record predicted costs or "
            "events, to tell a slow device from long sequences."
        )
        return Note(kind=kind, status=MEASURE, text=text)
    return Note(
        kind=kind,
        status=MEASURE,
        text=f"{last}, though it takes {most['cost_ratio']:.2f} times as long as the others for "
        "the same work and does not hold the most of it: look on its host for what holds it up "
        "outside of its own work, such as other load or a late start.",
    )


def _named(row: Row) -> str:
    return f"rank {row['rank']}" + (f" on {row['host']}" if row["host"] else "")


def _ranking(row: Row) -> Evidence:
    names = (
        "cost_ratio", "work_basis", "last_share", "chance_share", "num_steps_told", "basis",
        "waited_for_s", "host", "device_id",
    )  # fmt: skip
    return Evidence(
        view="straggler_ranking",
        rows={"run_id": row["run_id"], "rank": row["rank"]},
        figures={name: row[name] for name in names},
    )


def slow_saved_s(facts: RunFacts) -> float:
    """Rank-seconds of waiting that persistently slow ranks alone cause; 0 without one."""
    return min(facts.slow_saved_s, facts.part_s["straggler_wait"] or 0.0)


def balance(facts: RunFacts) -> Finding:
    """Place sequences by cost, or what is left once they are."""
    run, wait_s = facts.run, facts.part_s["straggler_wait"]
    if run["world_size"] < 2:
        return None
    if wait_s is None:
        return Note(
            kind="balance",
            status=MEASURE,
            text="Nothing recorded when each rank arrived at its collectives, so that waiting for "
            "the slowest rank cannot be told from the wire; record arrivals, or a trace of every "
            "rank.",
        )
    bound = run["bound_straggler_share"]
    is_random = run["placement"] in (None, RANDOM_PLACEMENT)
    predicted = run["predicted_straggler_share"]
    if not is_random and (predicted is None or bound is None or predicted - bound < 0.01):
        return Note(
            kind="balance",
            status=ALREADY,
            text=f"Sequences are placed by cost already ({run['placement']})"
            + (
                "; how far from the bound was not recorded."
                if predicted is None or bound is None
                else ", within 1 % of the bound by the plan."
            ),
        )
    others_s = wait_s - slow_saved_s(facts)
    work_s = others_s if facts.imbalance_s is None else min(others_s, facts.imbalance_s)
    if work_s / facts.window_s < LEAST_SHARE <= others_s / facts.window_s:
        return Note(
            kind="balance",
            status=NOTHING,
            text=f"Ranks wait {others_s / facts.window_s:.1%} of their time for the slowest one, "
            f"but the work they held explains {work_s / facts.window_s:.2%} alone, by the cost "
            "model: another placement would not change the rest.",
        )
    busy_s = facts.part_s["busy"] or 0.0
    bound_s = 0.0 if bound is None else busy_s * bound / max(1e-9, 1 - bound)
    return shared(
        facts,
        "balance",
        part_s=wait_s,
        floor_s=wait_s - work_s + min(work_s, bound_s),
        floor=_floor_of_balance(facts, others_s - work_s),
        recommendation=f"{_how_to_balance(run)}: ranks wait {wait_s / facts.window_s:.1%} of their "
        "time for the slowest one.",
        evidence=[
            Evidence(
                view="run_cause",
                rows={"run_id": run["run_id"], "cause": "straggler_wait"},
                figures={
                    "seconds": wait_s,
                    "explained_by_predicted_cost_s": facts.imbalance_s,
                    "num_steps": facts.num_steps,
                },
            ),
            Evidence(
                view="dim_run",
                rows={"run_id": run["run_id"]},
                figures={
                    "placement": run["placement"],
                    "predicted_straggler_share": predicted,
                    "bound_straggler_share": bound,
                },
            ),
        ],
        parts=("straggler_wait",),
        part="straggler_wait",
        doubt=_doubt_of_balance(facts),
    )


def _how_to_balance(run: Row) -> str:
    if run["placement"] is None:
        return "Place sequences on ranks by cost (how they are placed was not recorded)"
    if run["placement"] == RANDOM_PLACEMENT:
        return (
            "Place sequences on ranks by cost instead of at random ('seqscale run' does so in the "
            "arm 'balanced')"
        )
    return (
        "Look ahead over several batches (--lookahead) or cut giants (--cut-giants): the plan's "
        f"{run['placement']} loses {run['predicted_straggler_share']:.1%}, and "
        f"{run['bound_straggler_share']:.1%} is the least that whole sequences can reach"
    )


def _floor_of_balance(facts: RunFacts, unexplained_s: float) -> str:
    bound = facts.run["bound_straggler_share"]
    stays = [
        "no bound was recorded: taken as 0, what a perfect balance reaches"
        if bound is None
        else f"the least that any placement of whole sequences reaches, {bound:.1%} of the slowest "
        "rank's time"
    ]
    if slow_saved_s(facts) > 0:
        stays.append("what slow ranks cause")
    if unexplained_s > 0:
        stays.append("waiting that the predicted costs do not explain")
    return "; ".join(stays)


def _doubt_of_balance(facts: RunFacts) -> str:
    doubts = []
    if facts.run["bound_straggler_share"] is None:
        doubts.append("no bound of the balance was recorded")
    if facts.imbalance_s is None:
        doubts.append("no cost was predicted, so what else ranks wait for is in it")
    if facts.run["placement"] is None:
        doubts.append("the placement was not recorded")
    return "; ".join(doubts)


STRAGGLER_RULES = (slow_rank, balance)
