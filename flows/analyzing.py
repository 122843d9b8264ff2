"""`seqscale analyze-trace`: where the time of traced steps went, shown and, if asked, stored.

Before: torch.profiler wrote a trace for each rank.   After: analytics/kineto/ analyzes them.
Price: reading the traces; nothing else is imported unless the result is stored.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer


def analyze_trace(
    paths: Annotated[
        list[Path], typer.Argument(help="Traces of one job, one a rank, or their folder.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document.")
    ] = False,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Store it in the warehouse of this folder, like a run.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Host of the ranks, to be stored.")] = None,
    device_hour_cost: Annotated[
        float | None, typer.Option(min=0, help="Price of one device for one hour, to be stored.")
    ] = None,
    currency: Annotated[str | None, typer.Option(help="ISO 4217 code of the price.")] = None,
    kernel_gap_us: Annotated[
        float, typer.Option(min=0, max=1e9, help="Idle times below this are gaps of kernels.")
    ] = 30.0,
    max_trace_gib: Annotated[
        float, typer.Option(min=0.001, help="Refuse a trace that is larger, decompressed.")
    ] = 8.0,
) -> None:
    """Tell where the time of traced steps went: parts, idle causes, stragglers, kernels."""
    with _without_threads_of_blas():
        from analytics.kineto.analysis import analyze_files, as_mapping
        from analytics.kineto.collective_waits import collective_waits, waits_by_kind
        from analytics.kineto.files import not_looked_at

    limits = {"max_bytes": int(max_trace_gib * 2**30), "gap_ns": round(kernel_gap_us * 1000)}
    analysis = analyze_files(paths, **limits)
    found = as_mapping(analysis)
    found["collectives"] = collective_waits(analysis)
    found["waits_by_kind"] = waits_by_kind(found["collectives"])
    found["not_looked_at"] = not_looked_at(paths)
    if runs_dir is not None:
        from analytics import warehouse
        from analytics.kineto.importing import import_traces, stored_gap_us

        about = import_traces(
            paths, runs_dir, host=host, device_hour_cost=device_hour_cost, currency=currency,
            analysis=analysis, **limits,
        )  # fmt: skip
        found["import_id"] = about.import_id
        found["run_id"] = f"trace-{about.import_id}"
        found["stored_kernel_gap_us"] = stored_gap_us(about)
        warehouse.load(runs_dir)
        warehouse.publish(runs_dir)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo(table(found))
        if runs_dir is not None and found["stored_kernel_gap_us"] != kernel_gap_us:
            typer.echo(
                f"it was stored before with --kernel-gap-us {found['stored_kernel_gap_us']:g}, and "
                f"stays so; the table above is of {kernel_gap_us:g}"
            )


_MOST_NAMED = 5
_LEGEND = (
    "busy to rest are shares of the window and sum to it: kernels; waiting for the last rank, then "
    "the wire; copies; waiting for data; late launches; gaps between kernels; what none explains. "
    "overlap: share of communication under kernels. idle_us to non_compute_us as HTA counts them. "
    "docs/traces.md"
)


@contextlib.contextmanager
def _without_threads_of_blas() -> Iterator[None]:
    """Let numpy start no threads as it is imported: nothing here multiplies matrices.

    They took 5 to 60 ms of a start that takes 200, the more the busier the machine was.
    """
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def table(found: dict[str, Any]) -> str:
    """The result as text: one line a rank, then kernel families, then what was left out."""
    head = (
        "rank  window_ms   busy straggler   comm   copy   data   host    gap   rest  "
        "overlap  idle_us  compute_us  non_compute_us"
    )
    lines = [f"{found['num_ranks']} of {found['world_size']} ranks", head]
    for one in found["ranks"]:
        lines.append(_line(one))
    unsplit = [one["rank"] for one in found["ranks"] if one["straggler_wait_s"] is None]
    if unsplit:
        lines.append(
            "comm holds the wait for stragglers too where straggler is '-': not every rank's "
            "arrival is in these traces."
        )
    lines.append(_LEGEND)
    lines += [
        f"{row['kind']}: all ranks together waited {row['wait_us'] / 1e3:.3f} ms for the last one "
        f"in {_counted(row['num_collectives'], 'collective')}; most often for rank "
        f"{row['most_often_last']} ({_counted(row['num_last'], 'time')})"
        for row in found["waits_by_kind"]
    ]
    for one in found["ranks"][:1]:
        total = sum(row["total_s"] for row in one["kernel_families"])
        rows = [
            f"{row['kernel_family']} {row['total_s'] / total:.1%} ({row['num_kernels']})"
            for row in one["kernel_families"][:6]
            if total > 0
        ]
        lines.append(f"kernels of rank {one['rank']}: " + (", ".join(rows) or "none"))
        lines += _fullness(one)
    rejected = sum(one["num_rejected"] for one in found["ranks"])
    if rejected:
        lines.append(f"{rejected} events were refused; with --runs-dir each is kept with a reason.")
    clamped = sum(one["num_clamped"] for one in found["ranks"])
    if clamped:
        lines.append(f"{clamped} events last less than nothing; they were taken as 0 long.")
    if names := found["not_looked_at"]:
        more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
        lines.append(
            f"not looked at, subfolders and names that do not end like a trace's: "
            f"{', '.join(names[:_MOST_NAMED])}{more}"
        )
    if "run_id" in found:
        lines.append(f"stored as run {found['run_id']}")
    return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _fullness(one: dict[str, Any]) -> list[str]:
    """How full the device was, as far as the trace tells: evidence beside the parts."""
    told = [
        f"{words} {one[key]:.1%}"
        for words, key in (
            ("a kernel ran", "gpu_utilization_share"),
            ("est. SM efficiency", "est_sm_efficiency_share"),
            ("est. occupancy", "est_occupancy_share"),
        )
        if one[key] is not None
    ]
    return [f"device of rank {one['rank']}: " + ", ".join(told)] if told else []


def _line(one: dict[str, Any]) -> str:
    window_s = one["window_s"]
    comm_s = one["exposed_comm_s"]
    comm_s = one["exposed_comm_total_s"] if comm_s is None else comm_s
    shares = [one["busy_s"], one["straggler_wait_s"], comm_s, one["exposed_copy_s"]]
    shares += [one[f"{name}_s"] for name in ("data_wait", "host_wait", "kernel_gap")]
    shares += [one["unattributed_s"]]
    cells = ["-" if part is None else f"{part / window_s:.1%}" for part in shares]
    widths = (6, 9, 6, 6, 6, 6, 6, 6)
    text = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    overlap = one["overlap_share"]
    figures = [one["idle_us"], one["compute_us"], one["non_compute_us"]]
    told = ["-" if figure is None else f"{figure:.0f}" for figure in figures]
    overlapped = "-" if overlap is None else f"{overlap:.1%}"
    return (
        f"{one['rank']:>4} {window_s * 1e3:>10.3f} {text} "
        f"{overlapped:>8} {told[0]:>8} {told[1]:>11} {told[2]:>15}"
    )
