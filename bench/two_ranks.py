"""Straggler wait on two real ranks: forward and backward of the model on placed sequences.

Random and balanced placement take turns, batch by batch and repeat by repeat. Each step: compute
on one thread, then an all-reduce of the dense gradients; a rank's wait for the other is the time
from its own arrival at the all-reduce to the last rank's. The times of the random arm's first pass
(which is not shown) refit the calibrated cost model; the third arm is placed by the refitted one.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from length_laws import Ints, log_normal_lengths

from training.calibrate import calibrate, synthetic_batch
from training.config import ArmConfig, ModelConfig, RunConfig, TrainConfig
from training.model import SASRec
from training.planning.balance import straggler_share
from training.planning.cost import CostModel
from training.planning.plan import ArmPlan, Plan, make_plan
from training.planning.refit import CostFit
from training.planning.replan import refit_arm, replan, rows_of
from training.ranks import joined

NUM_RANKS, PER_RANK, NUM_BATCHES = 2, 16, 12
NUM_ROWS, NUM_NEGATIVES = 4096, 64
MODEL = ModelConfig(dropout=0.0, max_length=2000)
RANDOM = ArmConfig(name="random_equal", placement="random_equal", schedule="synchronous")
BALANCED = ArmConfig(name="lpt_free", placement="lpt_free", schedule="synchronous")
Times = Any  # float64, shape (repeats, steps, ranks, 3): CPU time, wall time, wait [s]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredArm:
    """Medians over repeats, with the least and the largest."""

    name: str
    predicted_share: float  # by the cost model it is placed by
    cpu_share: float
    cpu_range: str
    wall_share: float
    wall_range: str
    wait_s: float  # of the earlier rank, a step
    step_s: float

    def as_row(self) -> dict[str, Any]:
        """A row of the bench's JSON."""
        return {
            "law": "log-normal, median 150, measured",
            "ranks": NUM_RANKS,
            "per_rank": PER_RANK,
            "placement": self.name,
            "straggler_share": self.wall_share,
            "straggler_share_cpu": self.cpu_share,
            "straggler_share_predicted": self.predicted_share,
            "straggler_wait_s": self.wait_s,
            "step_s": self.step_s,
        }


def measure(repeats: int, seed: int) -> tuple[list[MeasuredArm], CostFit]:
    """(arms in the order random, balanced, balanced by the refitted model; the refit)."""
    rng = np.random.default_rng(seed)
    lengths = log_normal_lengths(
        NUM_BATCHES * NUM_RANKS * PER_RANK, rng, median=150.0, longest=MODEL.max_length
    )
    quantiles = np.quantile(lengths, [0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1.0])
    train = TrainConfig(num_negatives=NUM_NEGATIVES)
    config = RunConfig(recipe="bench", model=MODEL, train=train)
    cost = calibrate(config, [int(q) for q in quantiles], NUM_ROWS)
    plan = make_plan(
        lengths, cost, (RANDOM, BALANCED), num_ranks=NUM_RANKS,
        batch_sequences=NUM_RANKS * PER_RANK, num_epochs=1, seed=seed,
    )  # fmt: skip
    first = _on_two_ranks(plan, dict(plan.arms), 3)
    fit = _refitted(plan, first["random_equal"], cost)
    arms = dict(plan.arms)
    words = "taken" if fit.taken else "not taken"
    arms[f"lpt_free, refitted cost ({words})"] = replan(plan, BALANCED, fit.cost, first_step=0)
    times = _on_two_ranks(plan, arms, repeats)
    return [_summary(name, arm, times[name]) for name, arm in arms.items()], fit


def _refitted(plan: Plan, times: Times, cost: CostModel) -> CostFit:
    """Refit from the CPU times of the random arm, all repeats and ranks."""
    rows, step_s = [], []
    for step in range(plan.num_steps):
        for rank in range(NUM_RANKS):
            for repeat in range(len(times)):
                rows.append(plan.windows.lengths[plan.arms["random_equal"].of_rank(step, rank)])
                step_s.append(float(times[repeat, step, rank, 0]))
    return refit_arm(plan, BALANCED, rows_of(rows, step_s), cost, step=0, first_step=0)


def _summary(name: str, arm: ArmPlan, times: Times) -> MeasuredArm:
    cpu, wall = (
        [float(straggler_share(repeat[:, :, which]) or 0.0) for repeat in times] for which in (0, 1)
    )
    waits = times[..., 2].max(axis=2).mean(axis=1)
    steps = (times[..., 1] + times[..., 2]).max(axis=2).mean(axis=1)
    assert arm.predicted_straggler_share is not None
    return MeasuredArm(
        name=name,
        predicted_share=arm.predicted_straggler_share,
        cpu_share=statistics.median(cpu),
        cpu_range=f"{min(cpu):.1%} to {max(cpu):.1%}",
        wall_share=statistics.median(wall),
        wall_range=f"{min(wall):.1%} to {max(wall):.1%}",
        wait_s=float(np.median(waits)),
        step_s=float(np.median(steps)),
    )


def _on_two_ranks(plan: Plan, arms: dict[str, ArmPlan], repeats: int) -> dict[str, Times]:
    """Times of each arm; the ranks are processes of their own."""
    held = {
        name: [[plan.windows.lengths[arm.of_rank(s, r)] for r in range(NUM_RANKS)]
               for s in range(plan.num_steps)]
        for name, arm in arms.items()
    }  # fmt: skip
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{Path(folder)}/rendezvous"
        running = []
        for rank in range(NUM_RANKS):
            mine, theirs = context.Pipe()
            arguments = (theirs, rank, init_method, held, repeats)
            process = context.Process(target=_rank, args=arguments)
            process.start()
            theirs.close()
            running.append((process, mine))
        times = [mine.recv() for _, mine in running]
        for process, _ in running:
            process.join()
    return {name: np.stack([of_rank[name] for of_rank in times], axis=2) for name in arms}


def _rank(
    channel: Connection,
    rank: int,
    init_method: str,
    held: dict[str, list[list[Ints]]],
    repeats: int,
) -> None:
    with joined(60, init_method=init_method, rank=rank, world_size=NUM_RANKS) as group:
        torch.manual_seed(0)
        model = SASRec(MODEL)
        batches = {
            name: [
                synthetic_batch(model, tuple(of_rank[rank].tolist()), NUM_NEGATIVES, NUM_ROWS)
                for of_rank in steps
            ]
            for name, steps in held.items()
        }
        num_steps = len(next(iter(held.values())))
        times = {name: np.zeros((repeats, num_steps, 3)) for name in held}
        for name in held:
            _step(model, batches[name][0], group)  # first calls
        for repeat in range(repeats):
            for step in range(num_steps):
                turn = list(held) if (repeat + step) % 2 == 0 else list(held)[::-1]
                for name in turn:
                    times[name][repeat, step] = _step(model, batches[name][step], group)
        channel.send(times)


def _step(model: SASRec, batch: Any, group: dist.ProcessGroup) -> tuple[float, float, float]:
    """(CPU time, wall time until the rank is ready, wait for the last rank) [s]."""
    rows_UD = torch.ones(NUM_ROWS, MODEL.embedding_dim, requires_grad=True)
    model.zero_grad()
    dist.barrier(group=group)
    begin, cpu_begin = time.monotonic_ns(), time.thread_time_ns()
    if batch.lengths:
        model.loss_sum(rows_UD, batch, 1.0).backward()  # type: ignore[no-untyped-call]
    ready, cpu_ready = time.monotonic_ns(), time.thread_time_ns()
    flat = torch.cat(
        [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )
    dist.all_reduce(flat, group=group)
    last = torch.tensor([ready])
    dist.all_reduce(last, op=dist.ReduceOp.MAX, group=group)
    return (cpu_ready - cpu_begin) / 1e9, (ready - begin) / 1e9, (int(last) - ready) / 1e9
