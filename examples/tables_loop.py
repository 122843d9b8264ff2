"""A plain PyTorch loop whose embedding tables are sharded and travel under its compute.

    .venv/bin/torchrun --nproc-per-node 2 examples/tables_loop.py

The model scores an item for a user. Its dense part stays in DistributedDataParallel; the two tables
lie in shares on the ranks. The lines marked seqscale take the place of two nn.Embedding.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from training.config import TableConfig  # seqscale
from training.overlapped_tables import OverlappedTables  # seqscale

ROWS, WIDTH = {"item": 2000, "user": 300}, 16
Batch = dict[str, Any]


def batches(rank: int, num_ranks: int, num_steps: int, size: int) -> list[Batch]:
    """Made-up clicks; every rank has its part of each global batch."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(num_steps):
        user = torch.randint(ROWS["user"], (size,), generator=generator)
        skew = torch.rand(size, 2, generator=generator) ** 3  # few items are in most batches
        item = (skew * ROWS["item"]).long()
        click = ((item + user[:, None]) % 3 == 0).float()
        mine = slice(rank, None, num_ranks)
        made.append({"ids": {"user": user[mine], "item": item[mine]}, "click": click[mine]})
    return made


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="A plain loop and sharded tables")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256, help="samples in a global batch")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    loader = batches(rank, num_ranks, given.steps, given.batch)
    dense = nn.Sequential(nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DistributedDataParallel(dense)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    configs = [TableConfig(name=n, num_rows=r, width=WIDTH) for n, r in ROWS.items()]  # seqscale
    tables = OverlappedTables(configs, average=True)  # seqscale
    for step, (batch, rows) in enumerate(tables.over(loader, lambda b: b["ids"])):  # seqscale
        optimizer.zero_grad()
        user = rows["user"][:, None].expand(-1, 2, -1)
        scores = model(torch.cat([rows["item"], user], dim=2))[..., 0]
        loss_sum = functional.binary_cross_entropy_with_logits(
            scores, batch["click"], reduction="sum"
        )
        (loss_sum * num_ranks / (2 * given.batch)).backward()  # 2 scores a sample; ranks average
        optimizer.step()
        tables.step()  # seqscale
        if step % 10 == 9:
            mean = loss_sum.detach() / (2 * given.batch)
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item():.5f}")
    tables.close()  # seqscale
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
