"""Rules of advice about the parts of a step: what to change, with what is known of the run.

Each rule reads facts and gives an advice, or a note why there is none. What is recoverable is the
part less a floor that is stated; a knob that is on already is not advised again.

Waiting for the slowest rank is straggler_rules.py's.

Before: run_facts.py.   After: run_advice.py ranks what they find.
Definition: docs/advice.md; the floor of exchange, training/planning/overlap_forecast.py.
"""

from __future__ import annotations

from analytics.run_facts import KINDS, RunFacts
from analytics.run_findings import ALREADY, MEASURE, Evidence, Finding, Note, shared

OVERLAPPING = ("split", "prioritised")
MOST_UNATTRIBUTED = 0.05


def overlap(facts: RunFacts) -> Finding:
    """Hide the exchange under compute, as far as the law of exact overlap lets it."""
    run, wire_s = facts.run, facts.part_s["exposed_comm"]
    if wire_s is None or run["world_size"] < 2:
        return None  # 'balance' has said what to measure
    schedule = run["chosen_schedule"]
    if schedule in OVERLAPPING:
        return Note(
            kind="overlap",
            status=ALREADY,
            text=f"The exchange is overlapped already (schedule {schedule}).",
        )
    if run["schedule"] == "auto":
        return Note(
            kind="overlap",
            status=ALREADY,
            text="The run tries the schedules out itself (--schedule auto); it ended before one "
            "was chosen."
            if schedule is None
            else "The run tried the schedules out itself (--schedule auto) and found none that "
            f"overlaps faster than {schedule}.",
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
    hidden_s = min(free_s, _free_busy_s(facts))
    return shared(
        facts,
        "overlap",
        part_s=wire_s,
        floor_s=wire_s - hidden_s,
        floor="rows that two batches in a row touch, the dense sum, and what does not fit under "
        "the ranks' own work that no communication runs beside yet",
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
    return shared(
        facts,
        "overlap",
        part_s=wire_s,
        floor_s=wire_s - min(wire_s, _free_busy_s(facts)),
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


def _free_busy_s(facts: RunFacts) -> float:
    """The ranks' own work that no communication runs beside yet."""
    return max(0.0, (facts.part_s["busy"] or 0.0) - facts.overlapped_comm_s)


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
    overlap,
    data_wait,
    launches,
    copies,
    unattributed,
)
