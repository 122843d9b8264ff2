"""Ranks that measure the norms of their dense gradients, and the same by plain autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.training.schedule_programs import Case, SmallWorkload, batch_of, table_configs
from training.engine import Engine, EngineOptions
from training.ranks import joined

CASE = Case(num_steps=6, huge_at=-1)
Norms = tuple[float, float] | None


def _engine(schedule: str, norms_every: int) -> Engine:
    return Engine(
        SmallWorkload(),
        table_configs(CASE),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        EngineOptions(schedule=schedule, seed=2, norms_every=norms_every, timeout_s=30),
    )


def measured(
    rank: int, world_size: int, init_method: str, schedules: list[str], norms_every: int
) -> dict[str, tuple[list[Norms], dict[str, Any]]]:
    """Under each schedule: (this rank's norms and all ranks' of every step, the dense state)."""
    found = {}
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        for name in schedules:
            engine = _engine(name, norms_every)
            batches = [batch_of(CASE, step, world_size, rank) for step in range(CASE.num_steps)]
            norms = [
                None
                if result.norms is None
                else (float(result.norms.rank_sq), float(result.norms.whole_sq))
                for result in engine.run(batches)
            ]
            state = {key: value.clone().numpy() for key, value in engine.dense.state().items()}
            found[name] = (norms, state)
            engine.close()
    return found


def worked_out(
    rank: int, world_size: int, init_method: str, num_ranks: int
) -> tuple[list[float], float]:
    """By autograd alone, of the first step: each rank's squared norm, and that of all of them."""
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        engine = _engine("synchronous", 0)
        weights = [table.weight_MD.clone() for table in engine.tables]
        engine.close()
    sums = [_gradient_of_sum(num_ranks, place, weights) for place in range(num_ranks)]
    targets = [batch_of(CASE, 0, num_ranks, place).num_targets for place in range(num_ranks)]
    means = [
        float((gradient / max(count, 1)).square().sum())
        for gradient, count in zip(sums, targets, strict=True)
    ]
    return means, float((torch.stack(sums).sum(0) / sum(targets)).square().sum())


def _gradient_of_sum(num_ranks: int, place: int, weights: list[Tensor]) -> Tensor:
    workload, batch = SmallWorkload(), batch_of(CASE, 0, num_ranks, place)
    parameters = list(workload.model.parameters())
    if not batch.num_targets:
        return torch.zeros(sum(p.numel() for p in parameters))
    rows = [weight[ids] for weight, ids in zip(weights, batch.row_ids, strict=True)]
    [part] = workload.parts(batch, 1)
    gradients = torch.autograd.grad(workload.loss_sum(rows, part), parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])
