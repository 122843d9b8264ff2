"""What ranks with streams do; a module of its own, because every rank imports it by name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from training.comm.gloo import GlooTransport
from training.planning.cost import CostModel
from training.ranks import another_group, joined
from training.streaming import BalancedStream, Sample

COST = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1.0, b_s=0.01, source="test")
TIMEOUT_S = 30


def stream_of(rank: int, num_samples: int) -> list[Sample]:
    """Samples whose events tell where they came from: 1,000,000 rank + 1,000 number + place."""
    rng = np.random.default_rng([5, rank])
    return [
        Sample(
            events=rank * 1_000_000 + n * 1000 + np.arange(rng.integers(0, 60), dtype=np.int64),
            sample_id=rank * 1000 + n,
        )
        for n in range(num_samples)
    ]


def read_streams(
    rank: int, world_size: int, init_method: str, counts: list[int], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Read everything; what each batch held."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        transport = GlooTransport(another_group(TIMEOUT_S), torch.device("cpu"))
        given = {"samples_per_rank": 4, "cost": COST} | settings
        stream = BalancedStream(stream_of(rank, counts[rank]), transport, **given)
        return [_told(batch) for batch in stream]


def _told(batch: Any) -> dict[str, Any]:
    return {
        "step": batch.step,
        "ids": [sample.sample_id for sample in batch.samples],
        "events": [sample.events.tolist() for sample in batch.samples],
        "num_samples": batch.num_samples,
        "num_targets": batch.num_targets,
        "global_targets": batch.global_targets,
        "cost_s": batch.cost_s,
    }


def failing_stream(rank: int, world_size: int, init_method: str, failing: int) -> str:
    """One rank's iterator raises after ten samples; what every rank is told."""

    def samples() -> Iterator[Any]:
        yield from stream_of(rank, 10)
        if rank == failing:
            raise OSError("the disk is gone")
        yield from stream_of(rank, 100)

    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        transport = GlooTransport(another_group(TIMEOUT_S), torch.device("cpu"))
        seen = 0
        try:
            for _ in BalancedStream(samples(), transport, samples_per_rank=4, cost=COST):
                seen += 1
        except Exception as error:
            return f"{seen} {type(error).__name__} {error}"
        return "ended"


def wrong_samples(rank: int, world_size: int, init_method: str, what: str) -> str:
    """Samples that are no flat int64 array, or too long for a rank; what every rank is told."""
    made: Any = {
        "float": [np.zeros(3)],
        "long": [np.arange(50, dtype=np.int64)],
    }[what]
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        transport = GlooTransport(another_group(TIMEOUT_S), torch.device("cpu"))
        stream = BalancedStream(
            made if rank == 1 else [], transport, samples_per_rank=2, cost=COST,
            max_tokens_per_rank=40,
        )  # fmt: skip
        try:
            list(stream)
        except Exception as error:
            return f"{type(error).__name__} {error}"
        return "ended"


def leave_early(
    rank: int, world_size: int, init_method: str, after_R: list[int]
) -> tuple[float, int, str]:
    """Leave after so many batches; (seconds that leaving took, batches seen, what was raised)."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        transport = GlooTransport(another_group(TIMEOUT_S), torch.device("cpu"))
        stream = BalancedStream(stream_of(rank, 400), transport, samples_per_rank=4, cost=COST)
        seen, raised = 0, ""
        try:
            while seen < after_R[rank]:
                next(stream)
                seen += 1
        except Exception as error:
            raised = str(error)
        begin = time.monotonic()
        stream.close()
        took_s = time.monotonic() - begin
        stream.close()  # a second time changes nothing
        assert list(stream) == []
        torch.distributed.barrier(group=group)
        return took_s, seen, raised
