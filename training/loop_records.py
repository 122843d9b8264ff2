"""What somebody else's training loop tells of its steps, and its run's record.

Before: step_recording.py counts the steps.   After: dim_run in the journal.
Price: placeholders for whatever only the loop knows and has not told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from analytics.hosts import CPU, host_name
from analytics.schema import DimRun

_UNTOLD_SHA256 = "0" * 64


@dataclasses.dataclass
class RecordedStep:
    """What a step tells about itself; the loop may set any of it while the step runs."""

    step: int
    epoch: int = 0
    num_sequences: int = 0
    num_tokens: int = 0
    num_targets: int = 0
    loss_sum: float = 0.0  # sum of the losses of this rank's targets
    predicted_cost_s: float = 0.0  # of this rank's sequences by cost model [s]
    num_rows: int = 0  # distinct embedding rows; overlapped tables tell theirs
    num_rows_ahead: int = 0  # of these, fetched during the step before
    sent_bytes: int = 0  # to other ranks; the communication hook adds its own
    model_flops: float | None = None  # of the real lengths, forward and backward; None: untold


def loop_run(
    run_id: str,
    described: Mapping[str, object],
    *,
    attempt: int,
    world_size: int,
    num_steps: int,
    started_unix_ns: int,
) -> DimRun:
    """The run as far as it is known; described: columns of dim_run that the loop has told."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "pipeline_id": run_id,
        "attempt": attempt,
        "arm": "own loop",
        "placement": "unknown",
        "schedule": "unknown",
        "dataset_id": "unknown",
        "config_sha256": _UNTOLD_SHA256,
        "seed": 0,
        "world_size": world_size,
        "device": CPU,
        "host": host_name(),
        "num_steps": num_steps,
        "num_epochs": 1,
        "global_batch_sequences": 1,
        "predicted_straggler_share": None,
        "bound_straggler_share": None,
        "collision_share": None,
        "instance_type": "own",
        "device_hour_cost": 0.0,
        "currency": "USD",
        "started_unix_ns": started_unix_ns,
        "seqscale_version": metadata.version("seqscale"),
    }
    return DimRun(**(values | dict(described)))
