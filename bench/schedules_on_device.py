"""Every schedule and table optimiser against `synchronous` on one device; see gpu_check.py.

Two processes share the device, so their tensors travel by host_staged. On a CPU the same program
runs with plain copies, which is how the test suite tries it.

What of the engine was read for CUDA, line by line, before any GPU was at hand (torch 2.13):
- lanes, host_staged, engine against "CUDA semantics" (docs: notes/cuda) and Tensor.record_stream:
  a lane's stream waits for an event of the submitter's stream; inputs are held until the lane's
  stream is done; results are marked as used by the submitter's stream. The end of a stretch of work
  waits for the loop's own stream, never for the device, or it would wait for the lanes' traffic.
- exchange, gradient_sum, optimizers against torch.use_deterministic_algorithms: bincount without
  weights, integer cumsum, index_copy_, index_put_, stable sort and unique are on no list of
  nondeterministic operations or have a deterministic form under it; no index_add_ runs on a GPU.
- cuBLAS's "results reproducibility": CUBLAS_WORKSPACE_CONFIG is set before CUDA starts.
- host syncs (`tolist`, counts of an all-to-all) are made on the lanes' threads where the schedule
  allows; torch.unique and boolean masks sync too, in group_by_owner on the loop's own thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.carrier import repeatable
from training.comm.contention import make_transport
from training.config import TABLE_OPTIMIZERS, TableConfig
from training.engine import Engine, EngineOptions
from training.ranks import joined

SCHEDULES = ("synchronous", "ids_ahead", "prioritised", "split")
TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is trained."""

    num_items: int
    num_users: int
    width: int
    events: int  # of a rank's batch
    num_steps: int


FULL = Size(num_items=2000, num_users=200, width=64, events=4096, num_steps=30)
SMALL = Size(num_items=60, num_users=11, width=8, events=40, num_steps=10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventBatch:
    """Pairs of item and user on one rank; a rank without any is among them."""

    row_ids: tuple[Tensor, Tensor]
    item_N: Tensor  # places in row_ids
    user_N: Tensor
    num_targets: int
    global_targets: int


class EventWorkload:
    """Two dense layers over rows of two widths."""

    def __init__(self, size: Size, device: torch.device) -> None:
        torch.manual_seed(5)
        entries = size.width + size.width // 2
        self.model = nn.Sequential(
            nn.Linear(entries, 2 * size.width),
            nn.LayerNorm(2 * size.width),
            nn.GELU(),
            nn.Linear(2 * size.width, size.width),
        ).to(device)

    def parts(self, batch: EventBatch, num_parts: int) -> list[EventBatch]:
        """Micro-batches are not used here."""
        assert num_parts == 1
        return [batch]

    def loss_sum(self, rows_T: Sequence[Tensor], part: EventBatch) -> Tensor:
        """Distance of the model's output to the item's row, away from the next item's."""
        item_ND = rows_T[0][part.item_N]
        found_ND = self.model(torch.cat([item_ND, rows_T[1][part.user_N]], dim=1))
        other_ND = item_ND.roll(1, dims=0)
        return functional.softplus((found_ND * (other_ND - item_ND)).sum(1)).sum()


def batches_of(size: Size, rank: int, world_size: int, device: torch.device) -> list[EventBatch]:
    """Nearly every row collides with the next batch; every fourth batch leaves one rank empty."""
    batches = []
    for step in range(size.num_steps):
        counts = [0 if step % 4 == 3 and r == step // 4 % world_size else size.events + r
                  for r in range(world_size)]  # fmt: skip
        rng = np.random.default_rng([step, rank])
        items_N = np.minimum(rng.zipf(1.2, counts[rank]) - 1, size.num_items - 1)
        item_U, item_N = np.unique(items_N, return_inverse=True)
        user_U, user_N = np.unique(
            rng.integers(0, size.num_users, counts[rank]), return_inverse=True
        )
        parts = [torch.from_numpy(a.astype(np.int64)).to(device)
                 for a in (item_U, user_U, item_N, user_N)]  # fmt: skip
        batches.append(
            EventBatch(
                row_ids=(parts[0], parts[1]),
                item_N=parts[2],
                user_N=parts[3],
                num_targets=counts[rank],
                global_targets=sum(counts),
            )
        )
    return batches


def trained(
    schedule: str, optimizer: str, size: Size, batches: list[EventBatch], device: torch.device
) -> dict[str, Tensor]:
    """Everything that training leaves on this rank, by name, on the host."""
    tables = [
        TableConfig(name="item", num_rows=size.num_items, width=size.width, optimizer=optimizer),
        TableConfig(
            name="user", num_rows=size.num_users, width=size.width // 2, optimizer=optimizer
        ),
    ]
    engine = Engine(
        EventWorkload(size, device),
        tables,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        EngineOptions(schedule=schedule, chunk_bytes=32 * size.events, timeout_s=TIMEOUT_S),
        transport=lambda urgent: make_transport("host_staged", device, timeout_s=TIMEOUT_S),
        device=device,
    )
    losses = torch.stack([result.local_loss_sum for result in engine.run(batches)])
    engine.close()
    left: dict[str, Any] = {"loss": losses, **engine.dense.state()}
    for table in engine.tables:
        left[table.config.name] = table.weight_MD
        left |= {f"{table.config.name}/{name}": kept for name, kept in table.state.items()}
    return {name: tensor.double().cpu() for name, tensor in left.items()}


def differences(
    rank: int, world_size: int, init_method: str, device: torch.device, small: bool
) -> dict[str, float]:
    """Largest absolute difference from `synchronous` over all ranks, by schedule and optimiser.

    Its own entry, `synchronous again`, says whether the device repeats itself at all.
    """
    if device.type == "cuda":
        repeatable()
        torch.cuda.set_device(device)
    size = SMALL if small else FULL
    found: dict[str, float] = {}
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        batches = batches_of(size, rank, world_size, device)
        for optimizer in TABLE_OPTIMIZERS:
            expected = trained("synchronous", optimizer, size, batches, device)
            for schedule in SCHEDULES:
                got = trained(schedule, optimizer, size, batches, device)
                name = "synchronous again" if schedule == "synchronous" else schedule
                found[f"{name}, {optimizer}"] = max(
                    float((got[key] - value).abs().max()) if value.numel() else 0.0
                    for key, value in expected.items()
                )
        worst = torch.tensor([v if v == v else torch.inf for v in found.values()])
        torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX)
    return dict(zip(found, worst.tolist(), strict=True))
