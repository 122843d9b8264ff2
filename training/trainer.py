"""Trains every arm in one set of ranks, taking turns in blocks of steps from equal first states.

Whatever else the machine does then falls on all arms alike. Each arm has its own table, dense
parameters, optimiser and recorder; they share the ranks, the store and the order of global batches.

Before: a job file from the flow.   After: fact_step records, parameters on disk, evaluate.py.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist

from analytics.errors import ConfigError
from analytics.journal import JournalWriter
from analytics.schema import DimRun, FactStep
from analytics.store import SequenceStore
from training.config import ArmConfig, RunConfig, TrainJob
from training.embeddings.table import ShardedTable
from training.feed import BatchBuilder, Order, RankBatch, feed
from training.parameters import gather_table, save_parameters
from training.pipeline.exclusive_ahead import ExclusiveAhead
from training.pipeline.step import DenseSide, Schedule, StepResult
from training.pipeline.synchronous import Synchronous
from training.planning.collisions import collision_share
from training.planning.plan import ArmPlan, Plan
from training.ranks import another_group, gather_ids, share_one_clock
from training.recorder import StepRecorder, Window, step_parts

logger = logging.getLogger(__name__)

_COLLISION_BATCHES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm's whole state on this rank."""

    config: ArmConfig
    plan: ArmPlan
    table: ShardedTable
    dense: DenseSide
    schedule: Schedule
    recorder: StepRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive steps of one arm."""

    number: int
    arm: str
    steps: range


def make_arm(
    arm: ArmConfig, config: RunConfig, plan: Plan, num_items: int, group: dist.ProcessGroup
) -> Arm:
    """An arm in its first state, equal for every arm and number of ranks. A collective."""
    recorder = StepRecorder()
    table = ShardedTable(
        num_rows=num_items,
        width=config.model.embedding_dim,
        rank=dist.get_rank(group),
        world_size=dist.get_world_size(group),
        learning_rate=config.train.table_learning_rate,
        seed=config.train.seed,
    )
    dense = DenseSide(config, group, recorder)
    schedule: Schedule
    if arm.schedule == "synchronous":
        schedule = Synchronous(table, dense, group, recorder)
    else:
        ahead_group = another_group(config.train.collective_timeout_s)
        schedule = ExclusiveAhead(table, dense, group, ahead_group, recorder)
    return Arm(
        config=arm,
        plan=plan.arms[arm.name],
        table=table,
        dense=dense,
        schedule=schedule,
        recorder=recorder,
    )


def turns(arm_names: list[str], num_steps: int, block_steps: int) -> list[Block]:
    """Which arm runs which steps when: every block once per arm, the first arm alternating."""
    blocks: list[Block] = []
    for number, start in enumerate(range(0, num_steps, block_steps)):
        steps = range(start, min(start + block_steps, num_steps))
        order = arm_names if number % 2 == 0 else arm_names[::-1]
        blocks.extend(Block(number=number, arm=name, steps=steps) for name in order)
    return blocks


def orders_of(blocks: list[Block], num_steps: int) -> list[Order]:
    """The batches in the order in which the loop asks for them: each arm one step ahead."""
    orders = []
    for block in blocks:
        if block.number == 0:
            orders.append(Order(arm=block.arm, step=0))
        orders.extend(Order(arm=block.arm, step=s + 1) for s in block.steps if s + 1 < num_steps)
    return orders


class Trainer:
    """Runs the blocks of all arms on one rank and records every step."""

    def __init__(
        self,
        job: TrainJob,
        store: SequenceStore,
        plan: Plan,
        group: dist.ProcessGroup,
        journal: JournalWriter,
    ) -> None:
        self._job = job
        self._plan = plan
        self._group = group
        self._rank = dist.get_rank(group)
        self._journal = journal
        self._one_clock = share_one_clock(group)
        self._builder = BatchBuilder(store, job.config, plan.windows)
        self._num_items = store.header.num_items
        self.arms = {
            arm.name: make_arm(arm, job.config, plan, self._num_items, group)
            for arm in job.config.arms
        }

    def run(self) -> None:
        """Train every arm over the whole plan and write its parameters. A collective."""
        plans = {name: arm.plan for name, arm in self.arms.items()}
        colliding = self._collision_share(next(iter(plans.values())))  # the same in every arm
        if self._rank == 0:
            for arm in self.arms.values():
                self._journal.write(self._run_record(arm, colliding))
        self._warm_up()
        blocks = turns(list(self.arms), self._plan.num_steps, self._job.config.train.block_steps)
        orders = orders_of(blocks, self._plan.num_steps)
        batches = feed(self._builder, plans, self._plan.epochs, orders, rank=self._rank)
        held: dict[str, RankBatch] = {}
        for turn, block in enumerate(blocks):
            self._run_block(turn, block, batches, held, len(blocks))
        tables = {name: gather_table(arm.table, self._group) for name, arm in self.arms.items()}
        for name, arm in self.arms.items():
            arm.schedule.close()
            table_VD = tables[name]
            if table_VD is not None:  # rank 0, when no other rank waits for it any more
                save_parameters(self._job.parameters_path(name), table_VD, arm.dense.model)

    def _run_block(
        self,
        turn: int,
        block: Block,
        batches: Iterator[RankBatch],
        held: dict[str, RankBatch],
        num_turns: int,
    ) -> None:
        """One arm's turn; `held` keeps each arm's next batch between its turns."""
        arm = self.arms[block.arm]
        if block.number == 0:
            held[block.arm] = next(batches)
        results = []
        dist.barrier(group=self._group)  # no arm starts with the lag of the one before
        for step in block.steps:
            arm.recorder.begin_step()
            with arm.recorder.data_wait():
                following = next(batches) if step + 1 < self._plan.num_steps else None
            results.append(arm.schedule.step(held.pop(block.arm), following))
            check_finite(self._job.config, block.arm, step, results[-1].global_loss)
            if following is not None:
                held[block.arm] = following
        windows = arm.recorder.end_block()
        self._write_steps(arm, block, windows, results)
        if self._rank == 0:
            self._write_progress(turn + 1, num_turns, block.arm, results[-1].global_loss)

    def _write_steps(
        self, arm: Arm, block: Block, windows: list[Window], results: list[StepResult]
    ) -> None:
        last_arrivals = self._last_arrivals(windows)
        for window, result, last in zip(windows, results, last_arrivals, strict=True):
            self._journal.write(self._step_record(arm, block, window, result, last))

    def _last_arrivals(self, windows: list[Window]) -> list[list[int] | None]:
        """When the last rank arrived at each wait of each window; None without a common clock."""
        arrivals = [wait.arrival_ns for window in windows for wait in window.waits]
        if not self._one_clock or dist.get_world_size(self._group) == 1:
            alone = [[wait.arrival_ns for wait in window.waits] for window in windows]
            return list(alone) if self._one_clock else [None] * len(windows)
        last = torch.tensor(arrivals, dtype=torch.int64)
        dist.all_reduce(last, op=dist.ReduceOp.MAX, group=self._group)
        parts = torch.split(last, [len(window.waits) for window in windows])
        return [part.tolist() for part in parts]

    def _step_record(
        self, arm: Arm, block: Block, window: Window, result: StepResult, last: list[int] | None
    ) -> FactStep:
        batch = result.batch
        mine_B = self._builder.lengths_W[arm.plan.of_rank(batch.step, self._rank)]
        parts = step_parts(window, last)
        return FactStep(
            run_id=self._job.run_id(arm.config.name),
            pipeline_id=self._job.pipeline_id,
            attempt=self._job.attempt,
            rank=self._rank,
            step=batch.step,
            epoch=int(self._plan.epochs[batch.step]),
            block=block.number,
            started_unix_ns=window.started_unix_ns,
            exposed_copy_s=0.0,
            host_wait_s=None,
            kernel_gap_s=None,
            predicted_cost_s=float(self._plan.cost.sequence_cost_s(mine_B).sum()),
            num_sequences=len(mine_B),
            num_tokens=int(mine_B.sum()),
            num_targets=batch.num_targets,
            loss_sum=result.local_loss_sum,
            num_rows=len(batch.row_ids_U),
            num_rows_ahead=result.num_rows_ahead,
            sent_bytes=result.sent_bytes,
            **dataclasses.asdict(parts),
        )

    def _run_record(self, arm: Arm, colliding: float | None) -> DimRun:
        job, train = self._job, self._job.config.train
        return DimRun(
            run_id=job.run_id(arm.config.name),
            pipeline_id=job.pipeline_id,
            attempt=job.attempt,
            arm=arm.config.name,
            placement=arm.config.placement,
            schedule=arm.config.schedule,
            dataset_id=job.dataset_id,
            config_sha256=job.config.sha256(),
            seed=train.seed,
            world_size=dist.get_world_size(self._group),
            device="cpu",
            host=platform.node() or "unknown",
            num_steps=self._plan.num_steps,
            num_epochs=train.num_epochs,
            global_batch_sequences=train.global_batch_sequences,
            predicted_straggler_share=arm.plan.predicted_straggler_share,
            bound_straggler_share=arm.plan.bound_straggler_share,
            collision_share=colliding,
            instance_type=job.instance_type,
            device_hour_cost=job.device_hour_cost,
            currency=job.currency,
            started_unix_ns=time.time_ns(),
            seqscale_version=metadata.version("seqscale"),
        )

    def _collision_share(self, plan: ArmPlan) -> float | None:
        """Over the first batches, histories and negatives of all ranks. A collective."""
        rows = []
        for step in range(min(_COLLISION_BATCHES, self._plan.num_steps)):
            epoch = int(self._plan.epochs[step])
            own = self._builder.row_ids(step=step, epoch=epoch, arm=plan, rank=self._rank)
            rows.append(gather_ids(torch.from_numpy(own), self._group).numpy())
        return collision_share(rows)

    def _warm_up(self) -> None:
        """Pay for first calls (kernels, memory) on a scratch copy, before any step is timed."""
        name, arm = next(iter(self.arms.items()))
        scratch = DenseSide(self._job.config, self._group, StepRecorder())
        batch = self._builder.build(step=0, epoch=0, arm=self._plan.arms[name], rank=self._rank)
        for _ in range(2):
            rows_UD = torch.ones(len(batch.row_ids_U), arm.table.width)
            scratch.forward_backward(rows_UD, batch)
        dist.barrier(group=self._group)

    def _write_progress(self, done: int, total: int, arm: str, loss: float) -> None:
        """For whoever watches; written aside and renamed."""
        write_progress(
            Path(self._job.attempt_dir),
            {"phase": "train", "done": done, "total": total, "arm": arm, "loss": loss},
        )
        logger.info("%s: turn %d of %d done, loss %.4f", arm, done, total, loss)


def check_finite(config: RunConfig, arm: str, step: int, loss: float) -> None:
    """Raise ConfigError when the training has diverged; all ranks see the same loss."""
    if not math.isfinite(loss):
        raise ConfigError(
            f"Arm {arm}, step {step}: the loss is {loss}, so the training has diverged. Lower "
            f"table_learning_rate ({config.train.table_learning_rate:g}) or dense_learning_rate "
            f"({config.train.dense_learning_rate:g}), or raise the temperature "
            f"({config.model.temperature:g})."
        )


def write_progress(attempt_dir: Path, progress: dict[str, object]) -> None:
    """Replace progress.json as a whole, so that a reader never sees half of it."""
    aside = attempt_dir / "progress.json.part"
    aside.write_text(json.dumps(progress), encoding="utf-8")
    aside.replace(attempt_dir / "progress.json")
