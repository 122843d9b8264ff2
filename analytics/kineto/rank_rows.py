"""The rows of one rank's trace: its steps, its collectives, its kernels.

Before: analysis.py has analyzed the trace.   After: importing.py lands the rows.
Price: a Python object a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analytics.kineto import intervals
from analytics.kineto.analysis import RankAnalysis, part_seconds
from analytics.schema import DimRun, FactCollective, FactKernelFamily, FactStep


def step_rows(one: RankAnalysis, run: DimRun) -> Iterator[FactStep]:
    """A row for each window; its parts sum to it."""
    starts = one.tiles.bounds_ns[:-1] + one.trace.base_unix_ns
    for i, (step, start, length) in enumerate(
        zip(one.tiles.steps, starts.tolist(), np.diff(one.tiles.bounds_ns).tolist(), strict=True)
    ):
        part_s = part_seconds(one, one.found.part_ns[i])
        yield FactStep(
            run_id=run.run_id, pipeline_id=run.pipeline_id, attempt=0, rank=one.rank, step=step,
            epoch=None, block=0, started_unix_ns=max(0, start), window_s=length / 1e9,
            busy_s=part_s["busy_s"] or 0.0, straggler_wait_s=part_s["straggler_wait_s"],
            exposed_comm_s=part_s["exposed_comm_s"],
            exposed_copy_s=part_s["exposed_copy_s"] or 0.0,
            data_wait_s=part_s["data_wait_s"] or 0.0, host_wait_s=part_s["host_wait_s"],
            kernel_gap_s=part_s["kernel_gap_s"], unattributed_s=part_s["unattributed_s"] or 0.0,
            exposed_comm_total_s=part_s["exposed_comm_total_s"] or 0.0,
            comm_s=int(one.found.comm_ns[i]) / 1e9,
            overlapped_comm_s=int(one.found.overlapped_comm_ns[i]) / 1e9, cpu_s=None,
            predicted_cost_s=None, num_sequences=None, num_tokens=None, num_targets=None,
            loss_sum=None, num_rows=None, num_rows_ahead=None, sent_bytes=None,
            exposed_ids_s=None, exposed_rows_s=None, exposed_gradients_s=None,
            exposed_dense_s=None, recorder_cpu_s=None, was_skipped=None, model_flops=None,
            recording_block_cpu_s=None, rank_gradient_norm_sq=None, gradient_norm_sq=None,
        )  # fmt: skip


def collective_rows(one: RankAnalysis, run: DimRun) -> Iterator[FactCollective]:
    """A row for each collective of a window."""
    base = one.trace.base_unix_ns
    for own in one.collectives:
        span = np.array([[own.arrived_ns - base, own.ended_ns - base]], np.int64)
        outside = intervals.without(intervals.union(span), one.cover.compute)
        exposed_ns = intervals.length_ns(outside)
        wait_ns = None
        if own.last_arrived_ns is not None:
            until = np.array([[span[0, 0], max(span[0, 0], own.last_arrived_ns - base)]], np.int64)
            wait_ns = intervals.length_ns(intervals.overlap(outside, intervals.union(until)))
        yield FactCollective(
            run_id=run.run_id, pipeline_id=run.pipeline_id, attempt=0, rank=one.rank,
            step=own.step, collective=own.place, kind=own.kind, label="",
            process_group=own.group, arrived_unix_ns=max(0, own.arrived_ns),
            last_arrived_unix_ns=own.last_arrived_ns, began_unix_ns=max(0, own.arrived_ns),
            duration_s=(own.ended_ns - own.arrived_ns) / 1e9, exposed_s=exposed_ns / 1e9,
            straggler_wait_s=None if wait_ns is None else wait_ns / 1e9,
            wire_s=None if wait_ns is None else (exposed_ns - wait_ns) / 1e9,
            last_rank=own.last_rank, sent_bytes=own.sent_bytes,
        )  # fmt: skip


def kernel_rows(one: RankAnalysis, run: DimRun) -> Iterator[FactKernelFamily]:
    """A row for each kernel name."""
    for kernel in one.kernels:
        yield FactKernelFamily(
            run_id=run.run_id, pipeline_id=run.pipeline_id, rank=one.rank,
            kernel_family=kernel.family, kernel_name=kernel.name, num_kernels=kernel.num_kernels,
            total_s=kernel.total_ns / 1e9, min_s=kernel.min_ns / 1e9, max_s=kernel.max_ns / 1e9,
        )  # fmt: skip
