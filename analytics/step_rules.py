"""Rules of advice about the parts of a step: what to change, with what is known of the run.

Each rule reads facts and gives an advice, or a note why there is none. What is recoverable is the
part less a floor that is stated; a knob that is on already is not advised again.

Before: run_facts.py.   After: run_advice.py ranks what they find.
Definition: docs/advice.md; the floor of exchange, training/planning/overlap_forecast.py.
"""

from __future__ import annotations

from analytics.run_facts import KINDS, RunFacts
from analytics.run_findings import ALREADY, MEASURE, NOTHING, Evidence, Finding, Note, shared

RANDOM_PLACEMENT = "random_equal"
OVERLAPPING = ("split", "prioritised")
PERSISTENT_SHARE = 0.75  # of the steps: below, a rank is slow by chance or by its data
SLOW_RATIO = 1.1  # a rank's time for its work over the others'
MOST_UNATTRIBUTED = 0.05


def slow_rank(facts: RunFacts) -> Finding:
    """A rank that is slower than the others for the same work: the machine, not the data."""
    slow, wait_s = facts.slow_rank, facts.part_s["straggler_wait"]
    if slow is None:
        return None
    if slow.slowdown_ratio < SLOW_RATIO or slow.slowest_share < PERSISTENT_SHARE:
        return Note(
            kind="slow_rank",
            status=NOTHING,
            text=f"No rank is slower than the others for the same work: the slowest, rank "
            f"{slow.rank}, takes {slow.slowdown_ratio:.2f} times as long and is the slowest in "
            f"{slow.slowest_share:.0%} of the steps.",
        )
    if not wait_s:
        return None
    where = f"rank {slow.rank} on {slow.host}"
    return shared(
        facts,
        "slow_rank",
        part_s=wait_s,
        floor_s=wait_s - slow_saved_s(facts),
        floor="the wait that is left when this rank is as fast as the median of the others",
        recommendation=f"Replace or repair the device of {where}: it takes "
        f"{slow.slowdown_ratio:.2f} times as long as the others for the same work, in "
        f"{slow.slowest_share:.0%} of the steps. Look for throttling, a busy neighbour or a slow "
        "link first.",
        evidence=[
            Evidence(
                view="fact_step",
                rows={"run_id": facts.run["run_id"], "rank": slow.rank},
                figures={
                    "slowdown_ratio": slow.slowdown_ratio,
                    "slowest_share": slow.slowest_share,
                    "last_to_arrive_share": slow.last_share,
                    "host": slow.host,
                    "device_id": slow.device_id,
                    "num_steps": facts.num_steps,
                },
            )
        ],
        parts=("straggler_wait",),
        part="straggler_wait",
    )


def slow_saved_s(facts: RunFacts) -> float:
    """Rank-seconds of waiting that a persistently slow rank alone causes; 0 without one."""
    slow, wait_s = facts.slow_rank, facts.part_s["straggler_wait"] or 0.0
    if slow is None or slow.slowdown_ratio < SLOW_RATIO or slow.slowest_share < PERSISTENT_SHARE:
        return 0.0
    return min(slow.saved_s, wait_s)


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
            text=f"Sequences are placed by cost already ({run['placement']}), as close to the "
            "bound as the plan can tell.",
        )
    others_s = wait_s - slow_saved_s(facts)
    busy_s = facts.part_s["busy"] or 0.0
    bound_s = 0.0 if bound is None else busy_s * bound / max(1e-9, 1 - bound)
    floor_s = slow_saved_s(facts) + min(others_s, bound_s)
    what = (
        "Place sequences on ranks by cost instead of at random ('seqscale run' does so in the arm "
        "'balanced')"
        if is_random
        else f"Look ahead over several batches (--lookahead) or cut giants (--cut-giants): the "
        f"plan's {run['placement']} loses {predicted:.1%}, and {bound:.1%} is the least that whole "
        "sequences can reach"
    )
    return shared(
        facts,
        "balance",
        part_s=wait_s,
        floor_s=floor_s,
        floor="no bound was recorded: taken as 0, what a perfect balance reaches"
        if bound is None
        else f"the least that any placement of whole sequences reaches, {bound:.1%} of the slowest "
        "rank's time, and what a slow rank causes",
        recommendation=f"{what}: ranks wait {wait_s / facts.window_s:.1%} of their time for the "
        "slowest one.",
        evidence=[
            Evidence(
                view="run_cause",
                rows={"run_id": run["run_id"], "cause": "straggler_wait"},
                figures={"seconds": wait_s, "num_steps": facts.num_steps},
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
        doubt="no bound of the balance was recorded" if bound is None else "",
    )


def overlap(facts: RunFacts) -> Finding:
    """Hide the exchange under compute, as far as the law of exact overlap lets it."""
    run, wire_s = facts.run, facts.part_s["exposed_comm"]
    if wire_s is None or run["world_size"] < 2:
        return None  # 'balance' has said what to measure
    schedule = run["chosen_schedule"]
    if schedule in OVERLAPPING or run["schedule"] == "auto":
        return Note(
            kind="overlap",
            status=ALREADY,
            text=f"The exchange is overlapped already (schedule {schedule or 'auto'}).",
        )
    kinds = facts.kind_s
    known_s = sum(value or 0.0 for value in kinds.values())
    if all(kinds[kind] is None for kind in KINDS) or known_s <= 0:
        return _overlap_of_a_trace(facts, wire_s)
    if run["collision_share"] is None:
        return Note(
            kind="overlap",
            status=MEASURE,
            text="The share of rows that two batches in a row touch was not recorded, so that "
            "nobody can tell how much of the exchange may be hidden.",
        )
    wire_of = {kind: wire_s * (kinds[kind] or 0.0) / known_s for kind in KINDS}
    colliding_s = run["collision_share"] * (wire_of["rows"] + wire_of["gradients"])
    ahead_s = 0.0 if schedule == "ids_ahead" else wire_of["ids"]
    free_s = wire_of["rows"] + wire_of["gradients"] - colliding_s + ahead_s
    hidden_s = min(free_s, facts.part_s["busy"] or 0.0)
    return shared(
        facts,
        "overlap",
        part_s=wire_s,
        floor_s=wire_s - hidden_s,
        floor="rows that two batches in a row touch, the dense sum, and what does not fit under "
        "the ranks' own work",
        recommendation="Send what does not collide while the step still runs (--schedule split, or "
        f"prioritised): {wire_s / facts.window_s:.1%} of the time is exchange on the wire, and "
        f"{run['collision_share']:.1%} of the rows must wait.",
        evidence=[
            Evidence(
                view="fact_step",
                rows={"run_id": run["run_id"]},
                figures={f"exposed_{kind}_s": kinds[kind] for kind in KINDS}
                | {"exposed_comm_s": wire_s, "num_steps": facts.num_steps},
            ),
            Evidence(
                view="dim_run",
                rows={"run_id": run["run_id"]},
                figures={"collision_share": run["collision_share"], "schedule": schedule},
            ),
        ],
        parts=("exposed_comm",),
        part="exposed_comm",
    )


def _overlap_of_a_trace(facts: RunFacts, wire_s: float) -> Finding:
    """The same where nothing says what was exchanged: what compute has not covered yet."""
    free_s = max(0.0, (facts.part_s["busy"] or 0.0) - facts.overlapped_comm_s)
    return shared(
        facts,
        "overlap",
        part_s=wire_s,
        floor_s=wire_s - min(wire_s, free_s),
        floor="what does not fit under the compute that no communication runs beside yet",
        recommendation="Start collectives as soon as their input is ready and let them run beside "
        "the backward pass; try larger buckets, gradient accumulation or bf16 in the exchange: "
        f"{wire_s / facts.window_s:.1%} of the time is exchange on the wire.",
        evidence=[
            Evidence(
                view="run_cause",
                rows={"run_id": facts.run["run_id"], "cause": "exposed_comm"},
                figures={
                    "seconds": wire_s,
                    "overlapped_comm_s": facts.overlapped_comm_s,
                    "num_steps": facts.num_steps,
                },
            )
        ],
        parts=("exposed_comm",),
        part="exposed_comm",
        doubt="which of it may run ahead depends on the model",
    )


def data_wait(facts: RunFacts) -> Finding:
    """Prepare batches ahead."""
    return _part(
        facts,
        "prefetch",
        ("data_wait",),
        floor="0: batches can be prepared ahead of the step that needs them",
        words="Prepare batches ahead (more workers, a deeper prefetch, pinned memory)",
    )


def launches(facts: RunFacts) -> Finding:
    """Fewer and larger launches."""
    if facts.part_s["host_wait"] is None and facts.part_s["kernel_gap"] is None:
        if facts.run["device"] == "cpu":
            return None
        return Note(
            kind="launches",
            status=MEASURE,
            text="Late launches and gaps between kernels were not measured; record a trace of some "
            "steps and read it with 'seqscale analyze-trace'.",
        )
    return _part(
        facts,
        "launches",
        ("host_wait", "kernel_gap"),
        floor="0: a graph of a step is launched once; steps that change their shape keep some",
        words="Launch less often: larger batches, torch.compile, CUDA graphs",
    )


def copies(facts: RunFacts) -> Finding:
    """Copies that run beside compute."""
    copy_s = facts.part_s["exposed_copy"]
    if not copy_s:
        return None
    return _part(
        facts,
        "copies",
        ("exposed_copy",),
        floor="what does not fit under the ranks' own work",
        words="Copy from pinned memory, on a stream of its own, ahead of need",
        floor_s=max(0.0, copy_s - (facts.part_s["busy"] or 0.0)),
    )


def unattributed(facts: RunFacts) -> Finding:
    """Look closer where nobody knows what the time went to: a measurement, not a gain."""
    part_s = facts.part_s["unattributed"] or 0.0
    if not facts.window_s or part_s / facts.window_s <= MOST_UNATTRIBUTED:
        return None
    return Note(
        kind="unattributed",
        status=MEASURE,
        text=f"{part_s / facts.window_s:.1%} of the time is explained by no part; record a trace "
        "of some steps and read it with 'seqscale analyze-trace'. Nothing is said of what it would "
        "recover.",
    )


def _part(
    facts: RunFacts,
    kind: str,
    parts: tuple[str, ...],
    *,
    floor: str,
    words: str,
    floor_s: float = 0.0,
) -> Finding:
    part_s = sum(facts.part_s[part] or 0.0 for part in parts)
    return shared(
        facts,
        kind,
        part_s=part_s,
        floor_s=floor_s,
        floor=floor,
        recommendation=f"{words}: {part_s / facts.window_s:.1%} of the time goes to this."
        if facts.window_s
        else words,
        evidence=[
            Evidence(
                view="run_cause",
                rows={"run_id": facts.run["run_id"], "cause": part},
                figures={"seconds": facts.part_s[part], "num_steps": facts.num_steps},
            )
            for part in parts
        ],
        parts=parts,
        part=parts[0],
    )


STEP_RULES = (
    slow_rank,
    balance,
    overlap,
    data_wait,
    launches,
    copies,
    unattributed,
)
