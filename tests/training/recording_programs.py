"""What ranks with a loop of their own do; a module of its own, imported by name on every rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from training.ranks import joined
from training.step_recording import StepRecording

TIMEOUT_S = 30


def ddp_loop(
    rank: int, world_size: int, init_method: str, runs_dir: Path, late_s: float, hooked: bool
) -> dict[str, Any]:
    """Five recorded steps of a small DDP model; rank 1 is late by late_s in each."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64) for _ in range(4)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
        recording = StepRecording(
            runs_dir, run_id="mine", block_steps=2, described={"placement": "lpt_free"}
        )
        if hooked:
            model.register_comm_hook(None, recording.communication_hook())
        generator = torch.Generator().manual_seed(rank)
        with recording:
            for _ in range(5):
                with recording.step(num_sequences=4 + rank, num_tokens=40) as step:
                    model.zero_grad()
                    loss = model(torch.randn(4, 64, generator=generator)).square().mean()
                    if rank == 1:
                        time.sleep(late_s)
                    loss.backward()
                    step.loss_sum = loss.item()
                    with recording.wait("loss"):
                        dist.all_reduce(loss.detach(), group=group)
                time.sleep(0.01)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return {
            "gradient": gradient.numpy(),
            "overhead_share": recording.overhead_share,
            "waited": dict(recording.waited_s),
        }


def uneven_waits(rank: int, world_size: int, init_method: str, runs_dir: Path) -> int:
    """Rank 1 marks a wait more than rank 0."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        with StepRecording(runs_dir, run_id="mine") as recording, recording.step():
            for _ in range(1 + rank):
                with recording.wait():
                    time.sleep(0.001)
        return rank


def failing_loop(rank: int, world_size: int, init_method: str, runs_dir: Path) -> str:
    """Rank 1 raises in its second step; nobody waits for anybody."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        try:
            with StepRecording(runs_dir, run_id="mine") as recording:
                for step in range(2):
                    with recording.step(), recording.wait():
                        time.sleep(0.001)
                        if step == 1:
                            raise OSError("the disk is full")
        except OSError as error:
            return str(error)
    return "ended"
