"""How each figure of the receipt is worded and written; NULL is a dash, never a nought.

Before: plain rows from analytics/metrics.py.   After: flows/receipt.py lays them out.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from typing import Any

from analytics.sources.options import ReadingOptions
from flows.request import RunRequest

Json = dict[str, Any]
MISSING = "-"


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{value * 1e3:,.1f} ms"


def percent(value: float) -> str:
    """A share as per cent."""
    return f"{value * 100:.1f} %"


def figure(value: float) -> str:
    """A quality figure, three places."""
    return f"{value:.3f}"


def rate(value: float) -> str:
    """Something per second."""
    return f"{value:,.1f} /s"


def count(value: float) -> str:
    """A whole number."""
    return f"{value:,.0f}"


# label, column of run_efficiency, how it is written
ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("step time", "step_s", milliseconds),
    ("samples", "samples_per_s", rate),
    ("straggler share, predicted", "predicted_straggler_share", percent),
    ("straggler share, least possible", "bound_straggler_share", percent),
    ("straggler share, measured", "straggler_share", percent),
    ("straggler share, in CPU time", "straggler_cpu_share", percent),
    ("bubble", "bubble_share", percent),
    ("  waiting for the slowest rank", "straggler_wait_share", percent),
    ("  exchange on the wire", "exposed_comm_share", percent),
    ("  copies", "exposed_copy_share", percent),
    ("  waiting for data", "data_wait_share", percent),
    ("  late launches", "host_wait_share", percent),
    ("  kernel gaps", "kernel_gap_share", percent),
    ("  not attributed", "unattributed_share", percent),
    ("exchange under compute", "overlap_share", percent),
    ("rows fetched ahead", "rows_ahead_share", percent),
    ("rows that the batch before also touches", "collision_share", percent),
    ("gradient noise scale, sequences", "noise_scale_sequences", count),
    ("HR@10", "hr_at_10", figure),
    ("  of popularity ranking", "popularity_hr_at_10", figure),
    ("NDCG@10", "ndcg_at_10", figure),
    ("  of popularity ranking", "popularity_ndcg_at_10", figure),
    ("MRR", "mrr", figure),
    ("  of popularity ranking", "popularity_mrr", figure),
    ("targets never trained on, scored as misses", "num_cold_targets", count),
)


def table_cells(arms: list[Json]) -> list[list[str]]:
    """Label and one cell an arm, line by line; a line that no arm has measured is left out."""
    lines = [
        [label, *(_cell(arm.get(column), write) for arm in arms)] for label, column, write in ROWS
    ]
    lines = [line for line in lines if any(cell != MISSING for cell in line[1:])]
    lines.append(["cost of this run", *(_money(arm, "cost", 6) for arm in arms)])
    wasted = "bubble_cost_per_1000_device_hours"
    lines.append(
        ["bubble's cost per 1,000 device-hours", *(_money(arm, wasted, 2) for arm in arms)]
    )
    return lines


def comparison_lines(comparison: Json | None) -> list[str]:
    """What the balanced arm changed, each with its 95 % interval over blocks."""
    if comparison is None:
        return ["only one arm was run, so there is nothing to compare"]
    blocks = f"{comparison['num_blocks']} blocks run by both arms, 95 % intervals"
    return [
        f"straggler wait, balanced / baseline: {_interval(comparison['straggler_wait_ratio'])}",
        f"CPU-time imbalance, balanced / baseline: {_interval(comparison['cpu_imbalance_ratio'])}",
        f"step time, balanced / baseline: {_interval(comparison['step_time_ratio'])}",
        f"bubble reduction: {_interval(comparison['bubble_reduction_share'])} ({blocks})",
        _own_work_line(comparison["step_time_ratio"]),
    ]


def _own_work_line(step_time_ratio: Json) -> str:
    """What to make of the step time."""
    lower = step_time_ratio["lower"]
    if lower is not None and lower > 1:
        return "the balanced arm was slower here: what moved under compute took cores from it"
    return (
        "step time gains less than the bubble loses where ranks share cores with the exchange: own "
        "work then takes longer"
    )


def choice_lines(receipt: Json) -> list[str]:
    """What the run found out and chose by itself: transport, schedule, cost model."""
    lines = [
        f"transport {trial['label']}, {trial['reason']}"
        for trial in receipt["transport_trials"]
        if trial["is_chosen"]
    ]
    lines += [_schedule_line(arm) for arm in receipt["arms"]]
    for trial in receipt["schedule_trials"]:
        time = "" if trial["step_s"] is None else f" {milliseconds(trial['step_s'])} a step,"
        lines.append(f"{trial['arm']}, schedule {trial['schedule']}:{time} {trial['reason']}")
    for fit in receipt["cost_fits"]:
        lines.append(
            f"{fit['arm']}, after step {fit['step']} a cost model was fitted to "
            f"{fit['num_measured']:,} measured steps of ranks, which it misses by "
            f"{percent(fit['residual_ratio'])}: {fit['reason']}"
        )
    share = receipt["recording_share"]
    if share is not None:
        lines.append(f"recording the steps took {share * 100:.2f} % of their time")
    return lines


def _schedule_line(arm: Json) -> str:
    """Which schedule an arm ran under."""
    name, schedule, chosen = arm["arm"], arm["schedule"], arm["chosen_schedule"]
    if schedule != "auto":
        return f"{name}: schedule {schedule}, as given"
    if chosen is None:
        return f"{name}: too few steps for auto to try every schedule, so it chose none"
    return f"{name}: schedule {chosen}, picked by auto"


def title(receipt: Json) -> str:
    """What the receipt is of, and the link when it was emulated: then no figure is a real one."""
    emulated = {
        arm["transport"]
        for arm in receipt["arms"]
        if arm["transport"] is not None and "emulated" in arm["transport"]
    }
    link = f" ({', '.join(sorted(emulated))})" if emulated else ""
    return f"{receipt['pipeline_id']}{link}"


def device_lines(devices: list[Json]) -> list[str]:
    """How busy each device was in training and evaluation, and what watching it took."""
    lines = []
    for device in devices:
        used, own = device["utilization_share"], device["sampler_cpu_share"]
        memory = device["memory_used_bytes"]
        words = [f"in use {MISSING if used is None else percent(used)} of the time"]
        if memory is not None:
            words.append(f"at most {memory / 2**30:.1f} GiB of memory in use")
        if own is not None:
            words.append(f"the sampler took {percent(own)} of one core")
        lines.append(f"{device['device_id']} of {device['host']}: {', '.join(words)}")
    return lines


def reporting_lines(reporting: list[Json]) -> list[str]:
    """How long it took to tell of the job once it was over, step by step; this is not in it."""
    if not reporting:
        return []
    parts = ", ".join(f"{part['label']} {part['duration_s']:.1f} s" for part in reporting)
    return [f"after the job: {parts}; the warehouse has these times from the next load on"]


def money_line(receipt: Json) -> str:
    """Which price was applied, from which list."""
    price = receipt["price"]
    if price is None:
        return "no price was applied"
    hours_cost = price["device_hour_cost"] * 1000
    return (
        f"priced as {price['instance_type']} ({price['device_name']}, {price['region']}): "
        f"{hours_cost:,.2f} {price['currency']} per 1,000 device-hours, as if each rank were one "
        f"of its devices; {price['source']}"
    )


def quality_lines(arms: list[Json]) -> list[str]:
    """A word of warning for every arm whose model ranks no better than popularity."""
    return [
        f"{arm['arm']}: the model ranks worse than popularity does (NDCG@10); train it longer or "
        "on more data before anybody uses it"
        for arm in arms
        if (arm.get("ndcg_at_10") or 0.0) < (arm.get("popularity_ndcg_at_10") or 0.0)
    ]


def next_steps(request: RunRequest) -> list[tuple[str, str]]:
    """(command, why) of what one would do after this run."""
    runs = shlex.quote(str(request.runs))
    source = " ".join([shlex.quote(request.interactions), *_typed(request.reading)])
    instance = request.price.instance_type
    return [
        (f"seqscale dashboard --runs-dir {runs}", "the same figures as pictures"),
        (
            f"seqscale profile {source} --gpus 64 --instance {instance}",
            "what imbalance would cost on 64 GPUs",
        ),
        ("seqscale run --interactions FILE --user U --item I --time T", "your own data"),
    ]


def _typed(reading: ReadingOptions) -> list[str]:
    """Options as one would type them again."""
    words = []
    for name, value in dataclasses.asdict(reading).items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words.append(f"--{name.replace('_', '-')} {shlex.quote(value)}")
    return words


def _cell(value: Any, write: Callable[[float], str]) -> str:
    return MISSING if value is None else write(value)


def _money(arm: Json, column: str, places: int) -> str:
    value = arm.get(column)
    return MISSING if value is None else f"{value:,.{places}f} {arm['currency']}"


def _interval(estimate: Json) -> str:
    value, lower, upper = (estimate[name] for name in ("value", "lower", "upper"))
    if value is None:
        return "not measurable"
    if lower is None or upper is None:
        return f"{value:.3f} (too few blocks for an interval)"
    return f"{value:.3f} ({lower:.3f} to {upper:.3f})"
