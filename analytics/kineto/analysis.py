"""Analyzes the traces of one job: parts of each step, waits for stragglers, kernels, HTA's figures.

Before: reading.py gives a trace for each file.   After: importing.py stores what is found here,
flows/analyzing.py shows it.
Price: the arrays of all traces at once, about 60 bytes an event that is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analytics.errors import InputError
from analytics.kineto import files, intervals
from analytics.kineto.breakdown import KERNEL_DELAY_NS, Breakdown, breakdown, num_steps
from analytics.kineto.clocks import Clock, clocks
from analytics.kineto.collectives import Collective, collectives, join, waits
from analytics.kineto.fullness import Fullness, fullness
from analytics.kineto.kernels import kernel_family
from analytics.kineto.parts import PARTS, Covered, Parts, covered, parts
from analytics.kineto.reading import Trace, read
from analytics.kineto.windows import Windows, windows

_MAX_KERNELS = 500  # names kept of a rank; the rest is summed up by family


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelTime:
    """How much device time one kernel took on one rank [ns]."""

    family: str
    name: str
    num_kernels: int
    total_ns: int
    min_ns: int
    max_ns: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankAnalysis:
    """What one rank's trace says."""

    rank: int
    trace: Trace
    tiles: Windows
    cover: Covered
    found: Parts
    is_split: bool  # whether waiting for stragglers is told apart from the wire
    hta: Breakdown | None
    full: Fullness
    collectives: list[Collective]
    clock: Clock
    kernels: list[KernelTime]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """What the traces of one job say."""

    world_size: int
    ranks: list[RankAnalysis]


def analyze_files(
    paths: Sequence[Path],
    *,
    max_bytes: int = files.MAX_BYTES,
    gap_ns: int = KERNEL_DELAY_NS,
) -> Analysis:
    """Analyze files or folders of traces, one trace a rank, of one job.

    Raises InputError when one is no trace, or two are of one rank.
    """
    found = files.trace_files(paths)
    return analyze([t for path in found for t in read(path, max_bytes=max_bytes)], gap_ns=gap_ns)


def analyze(traces: Sequence[Trace], *, gap_ns: int = KERNEL_DELAY_NS) -> Analysis:
    """Analyze the traces of one job.

    Raises InputError when two are of one rank, or they tell different numbers of ranks.
    """
    by_rank = _by_rank(traces)
    ordered = list(by_rank.values())
    told = [trace.world_size for trace in ordered if trace.world_size is not None]
    if len(set(told)) > 1:
        raise InputError(
            "The traces tell of "
            + ", ".join(f"{trace.world_size} ranks ({trace.name})" for trace in ordered)
            + ": they are not of one job. Analyze each job's folder by itself."
        )
    world_size = max([*told, len(ordered), max(by_rank) + 1 if told else 1])
    tiles = {rank: windows(trace) for rank, trace in by_rank.items()}
    own = {rank: collectives(trace, rank, tiles[rank]) for rank, trace in by_rank.items()}
    found = join(list(own.values()), ordered, world_size) or {}
    alone = clocks(by_rank, [], world_size)
    drop = num_steps(ordered) > 1
    return Analysis(
        world_size=world_size,
        ranks=[
            _rank(
                rank, trace, tiles[rank], own[rank], found.get(rank, alone[rank]),
                breakdown(trace, drop_last_step=drop), gap_ns,
            )
            for rank, trace in by_rank.items()
        ],
    )  # fmt: skip


def _rank(
    rank: int, trace: Trace, tiles: Windows, own: list[Collective], clock: Clock,
    hta: Breakdown | None, gap_ns: int,
) -> RankAnalysis:  # fmt: skip
    cover = covered(trace, gap_ns=gap_ns)
    waited = waits(own, cover.comm, trace.base_unix_ns)
    none = np.empty((0, 2), np.int64)
    found = parts(
        cover, none if waited is None else waited, tiles, has_launches=len(trace.launch_ns) > 0
    )
    return RankAnalysis(
        rank=rank, trace=trace, tiles=tiles, cover=cover, found=found,
        is_split=waited is not None, hta=hta,
        full=fullness(trace, int(tiles.bounds_ns[0]), int(tiles.bounds_ns[-1])),
        collectives=own, clock=clock, kernels=_kernels(trace),
    )  # fmt: skip


def _by_rank(traces: Sequence[Trace]) -> dict[int, Trace]:
    """The traces by rank; a single one of no rank is rank 0."""
    if len(traces) == 1:
        return {traces[0].rank or 0: traces[0]}
    found: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            raise InputError(
                f"{trace.name}: neither the trace nor its name tells which rank it is of, so it "
                "cannot be set beside others. Name the file rank-N.json, or analyze it alone."
            )
        if trace.rank in found:
            raise InputError(
                f"{trace.name}: this and {found[trace.rank].name} are both of rank {trace.rank}. "
                "Name the traces of one run and one cycle of the profiler, one a rank."
            )
        found[trace.rank] = trace
    return dict(sorted(found.items()))


def _kernels(trace: Trace) -> list[KernelTime]:
    """Time by kernel, most first; beyond _MAX_KERNELS names, by family as 'others'."""
    length = trace.spans[:, 1] - trace.spans[:, 0]
    place, size = trace.name_id, len(trace.names)
    number = np.bincount(place, minlength=size)
    total, most = np.zeros((2, size), np.int64)
    least = np.full(size, 2**62, np.int64)
    its_class = np.zeros(size, np.int64)
    np.add.at(total, place, length)
    np.maximum.at(most, place, length)
    np.minimum.at(least, place, length)
    its_class[place] = trace.its_class
    found: dict[tuple[str, str], KernelTime] = {}
    for nth, i in enumerate(np.argsort(-total, kind="stable").tolist()):
        name = trace.names[i]
        family = kernel_family(name, int(its_class[i]))
        one = KernelTime(
            family=family, name=name if nth < _MAX_KERNELS else "others",
            num_kernels=int(number[i]), total_ns=int(total[i]), min_ns=int(least[i]),
            max_ns=int(most[i]),
        )  # fmt: skip
        same = found.get((family, one.name))
        found[family, one.name] = one if same is None else _sum(same, one)
    return list(found.values())


def _sum(one: KernelTime, other: KernelTime) -> KernelTime:
    return KernelTime(
        family=one.family, name=one.name, num_kernels=one.num_kernels + other.num_kernels,
        total_ns=one.total_ns + other.total_ns, min_ns=min(one.min_ns, other.min_ns),
        max_ns=max(one.max_ns, other.max_ns),
    )  # fmt: skip


def as_mapping(found: Analysis) -> dict[str, Any]:
    """What was found as plain numbers and texts; a figure that is not known is None."""
    return {
        "world_size": found.world_size,
        "num_ranks": len(found.ranks),
        "ranks": [_rank_mapping(one) for one in found.ranks],
    }


def _rank_mapping(one: RankAnalysis) -> dict[str, Any]:
    trace, hta = one.trace, one.hta
    part_s = part_seconds(one, one.found.part_ns.sum(axis=0))
    window_ns = int(one.tiles.bounds_ns[-1] - one.tiles.bounds_ns[0])
    comm_ns = int(one.found.comm_ns.sum())
    return {
        "rank": one.rank,
        "file": trace.name,
        "device_name": device_name(trace),
        "num_events": trace.num_read,
        "num_rejected": len(trace.rejects),
        "num_clamped": trace.num_clamped,
        "idle_us": hta.idle_ns / 1000 if hta else None,
        "compute_us": hta.compute_ns / 1000 if hta else None,
        "non_compute_us": hta.non_compute_ns / 1000 if hta else None,
        "kernel_us": hta.kernel_ns / 1000 if hta else None,
        "overlap_share": hta.overlap_share if hta else None,
        "idle_causes": [
            {
                "stream": cause.stream,
                "host_wait_us": cause.host_wait_ns / 1000,
                "kernel_wait_us": cause.kernel_wait_ns / 1000,
                "other_us": cause.other_ns / 1000,
            }
            for cause in (hta.idle_causes if hta else ())
        ],
        "window_is": "steps" if one.tiles.is_of_steps else "whole trace",
        "num_steps": len(one.tiles.steps),
        "window_s": window_ns / 1e9,
        **part_s,
        "bubble_share": 1 - int(one.found.part_ns[:, 0].sum()) / window_ns,
        "comm_s": comm_ns / 1e9,
        "window_overlap_share": (
            int(one.found.overlapped_comm_ns.sum()) / comm_ns if comm_ns else None
        ),
        "gpu_utilization_share": one.full.utilization_share,
        "est_sm_efficiency_share": one.full.sm_efficiency_share,
        "est_occupancy_share": one.full.occupancy_share,
        "steps": [
            {"step": step, "window_s": int(length) / 1e9, **part_seconds(one, row)}
            for step, length, row in zip(
                one.tiles.steps, np.diff(one.tiles.bounds_ns), one.found.part_ns, strict=True
            )
        ],
        "clock_offset_ns": one.clock.offset_ns,
        "clock_uncertainty_ns": one.clock.uncertainty_ns,
        "num_collectives": len(one.collectives),
        "num_collectives_joined": sum(c.last_arrived_ns is not None for c in one.collectives),
        "kernel_families": families(one),
    }


def part_seconds(one: RankAnalysis, part_ns: np.ndarray) -> dict[str, float | None]:
    """Parts of a window in seconds; those that this trace cannot tell are None."""
    found: dict[str, float | None] = {
        f"{name}_s": int(length) / 1e9 for name, length in zip(PARTS, part_ns, strict=True)
    }
    both = int(part_ns[PARTS.index("straggler_wait")] + part_ns[PARTS.index("exposed_comm")])
    found["exposed_comm_total_s"] = both / 1e9
    if not one.is_split:
        found["straggler_wait_s"] = found["exposed_comm_s"] = None
    if not one.trace.has_device:
        found["kernel_gap_s"] = None
    if not one.trace.has_device or not one.found.has_launches:
        found["host_wait_s"] = None
    return found


def families(one: RankAnalysis) -> list[dict[str, Any]]:
    """Time of each kernel family, most first."""
    total: dict[str, list[int]] = {}
    for kernel in one.kernels:
        row = total.setdefault(kernel.family, [0, 0])
        row[0] += kernel.total_ns
        row[1] += kernel.num_kernels
    return [
        {"kernel_family": family, "total_s": ns / 1e9, "num_kernels": number}
        for family, (ns, number) in sorted(total.items(), key=lambda item: -item[1][0])
    ]


def device_name(trace: Trace) -> str | None:
    """Model of the device that the trace's kernels ran on; None when untold."""
    told = np.sort(trace.device[trace.device >= 0])
    if not len(told):
        return None
    devices = intervals.distinct(told)
    ends = np.searchsorted(told, devices, side="right")
    index = int(devices[np.argmax(np.diff(ends, prepend=0))])
    return trace.device_names[index] or None if index < len(trace.device_names) else None
