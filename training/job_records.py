"""What a rank tells of the job beside its steps: where it runs, and what took the time between.

Spans lie between a job's blocks of steps, so that both together tile its time: the start-up until
the first step, then what happens from the end of each block to the next, then whatever the end of
the training took. What no record covers is unknown.

Before: a rank has joined the others.   After: dim_rank and fact_span in the journal.
Price: one line a block and two a run and arm.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time
from collections.abc import Sequence

import torch

from analytics.hosts import CPU, cpu_name, host_name, process_began_unix_ns
from analytics.journal import JournalWriter
from analytics.schema import DimRank, FactSpan
from training.comm.clocks import ClockOffset
from training.recorder import Window


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankDevice:
    """The device of a rank, as the sampler names it."""

    device_id: str
    device_name: str
    peak_memory_bytes: int


def rank_device(device: torch.device) -> RankDevice:
    """What is known of a rank's device by now; on CPU the memory is this process's largest."""
    if device.type != "cuda":
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return RankDevice(device_id=CPU, device_name=cpu_name(), peak_memory_bytes=peak_kib * 1024)
    properties = torch.cuda.get_device_properties(device)
    return RankDevice(
        device_id=f"GPU-{properties.uuid}",
        device_name=properties.name,
        peak_memory_bytes=torch.cuda.max_memory_allocated(device),
    )


def rank_record(
    *,
    run_id: str,
    pipeline_id: str,
    attempt: int,
    rank: int,
    device: torch.device,
    clock: ClockOffset | None,
) -> DimRank:
    """Where a rank runs; clock: against rank 0's, None when it was not compared."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    return DimRank(
        run_id=run_id,
        pipeline_id=pipeline_id,
        attempt=attempt,
        rank=rank,
        local_rank=int(local_rank) if local_rank.isdigit() else None,
        host=host_name(),
        clock_offset_ns=None if clock is None else clock.offset_ns,
        clock_uncertainty_ns=None if clock is None else clock.uncertainty_ns,
        **dataclasses.asdict(rank_device(device)),
    )


class JobSpans:
    """Writes, on rank 0, the job's time between its blocks of steps."""

    def __init__(
        self,
        journal: JournalWriter,
        *,
        pipeline_id: str,
        attempt: int,
        rank: int,
        launched_unix_ns: int | None = None,
    ) -> None:
        """launched_unix_ns: when the ranks were started, UTC; None: when this process began."""
        self._journal = journal
        self._pipeline_id = pipeline_id
        self._attempt = attempt
        self._rank = rank
        self._told_to_ns = launched_unix_ns or process_began_unix_ns()
        self._is_started = False

    def block(self, windows: Sequence[Window]) -> None:
        """A block of steps has run: what came before its first step, back to the block before."""
        if not windows:
            return
        first, last = windows[0], windows[-1]
        kind, label = "other", "between two blocks of steps"
        if not self._is_started:
            kind, label = "start_up", "from the start of the ranks to the first step"
        self._is_started = True
        self._add(kind, label, first.started_unix_ns)
        self._told_to_ns = last.started_unix_ns + last.end_ns - last.begin_ns

    def until_now(self, span_kind: str, label: str) -> None:
        """What happened since the last step or span."""
        now_ns = time.time_ns()
        self._add(span_kind, label, now_ns)
        self._told_to_ns = now_ns

    def _add(self, span_kind: str, label: str, ended_unix_ns: int) -> None:
        if self._rank != 0 or self._told_to_ns is None or ended_unix_ns <= self._told_to_ns:
            return  # another rank, an unknown start, or a clock that was set back
        self._journal.write(
            FactSpan(
                pipeline_id=self._pipeline_id,
                attempt=self._attempt,
                run_id=None,
                rank=self._rank,
                span_kind=span_kind,
                label=label,
                began_unix_ns=self._told_to_ns,
                duration_s=(ended_unix_ns - self._told_to_ns) / 1e9,
            )
        )
