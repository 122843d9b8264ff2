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
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from analytics.errors import ConfigError
from analytics.journal import JournalWriter
from analytics.store import SequenceStore
from training.arms import Arm, make_arm
from training.carrier import chosen_carrier, device_of
from training.config import RunConfig, TrainJob
from training.feed import ArmPlans, BatchBuilder, Order, RankBatch, feed
from training.parameters import gather_table, save_parameters
from training.pipeline.choose import AutoSchedule
from training.pipeline.dense import DenseSide
from training.pipeline.step import StepResult
from training.planning.collisions import collision_share
from training.planning.plan import ArmPlan, Plan
from training.ranks import gather_ids
from training.refitting import CostRefits
from training.sequences import SequenceWorkload, dense_optimizer
from training.step_records import StepJournal

logger = logging.getLogger(__name__)

_COLLISION_BATCHES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive steps of one arm."""

    number: int
    arm: str
    steps: range


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
        self._builder = BatchBuilder(store, job.config, plan.windows)
        self._plans = ArmPlans(plan.arms)
        self._records = StepJournal(job, plan, self._plans, self._builder.lengths_W, group, journal)
        self._device = device_of(job.config.train)
        self._carrier = chosen_carrier(job.config.train, self._device, group)
        self.arms = {
            arm.name: make_arm(
                arm,
                job.config,
                num_items=store.header.num_items,
                transport=self._carrier.transport,
                chunk_bytes=self._carrier.chunk_bytes,
                device=self._device,
            )
            for arm in job.config.arms
        }
        self._refits = {
            arm.name: CostRefits(arm, plan, self._plans, job.config.train, group)
            for arm in job.config.arms
        }
        self._num_taken = 0  # batches taken from the feed
        self._undecided = {
            name for name, arm in self.arms.items() if isinstance(arm.engine.schedule, AutoSchedule)
        }

    def run(self) -> None:
        """Train every arm over the whole plan and write its parameters. A collective."""
        # the same in every arm
        colliding = self._collision_share(next(iter(self._plan.arms.values())))
        carrier = self._carrier
        for arm in self.arms.values():
            self._records.write_run(arm, colliding, carrier.label)
            self._records.write_transports(arm, carrier.trials, carrier.name, carrier.reason)
            self._records.write_rank(arm)
        self._warm_up()
        blocks = turns(list(self.arms), self._plan.num_steps, self._job.config.train.block_steps)
        orders = orders_of(blocks, self._plan.num_steps)
        batches = feed(self._builder, self._plans, self._plan.epochs, orders, rank=self._rank)
        held: dict[str, RankBatch] = {}
        for turn, block in enumerate(blocks):
            loss = self._run_block(block, batches, held)
            self._adjust(self.arms[block.arm], block, orders)
            if self._rank == 0:
                self._write_progress(turn + 1, len(blocks), block.arm, loss)
        spans = self._records.spans
        spans.until_now("other", "from the last step to the end of its records")
        tables = {name: gather_table(arm.table, self._group) for name, arm in self.arms.items()}
        for name, arm in self.arms.items():
            arm.engine.close()
            table_VD = tables[name]
            if table_VD is not None:  # rank 0, when no other rank waits for it any more
                save_parameters(self._job.parameters_path(name), table_VD, arm.workload.model)
        spans.until_now("checkpoint", "trained parameters gathered and written")
        for arm in self.arms.values():
            self._records.write_rank(arm)  # now with its memory and its clock

    def _run_block(
        self, block: Block, batches: Iterator[RankBatch], held: dict[str, RankBatch]
    ) -> float:
        """One arm's turn; `held` keeps each arm's next batch between its turns; the last loss."""
        arm = self.arms[block.arm]
        recorder, schedule = arm.engine.recorder, arm.engine.schedule
        if block.number == 0:
            held[block.arm] = self._next(batches)
        results = []
        dist.barrier(group=self._group)  # no arm starts with the lag of the one before
        for step in block.steps:
            recorder.begin_step()
            with recorder.data_wait():
                following = self._next(batches) if step + 1 < self._plan.num_steps else None
            results.append(schedule.step(held.pop(block.arm), following))
            if following is not None:
                held[block.arm] = following
        schedule.settle()  # the next arm's turn must not carry this one's traffic
        windows = recorder.end_block()
        losses = self._global_losses(block, results)
        lengths = [self._records.lengths_of(block.arm, step) for step in block.steps]
        self._refits[block.arm].measured(lengths, [window.work_ns / 1e9 for window in windows])
        self._records.write_steps(arm, block.number, windows, results, lengths)
        return losses[-1]

    def _next(self, batches: Iterator[RankBatch]) -> RankBatch:
        self._num_taken += 1
        return next(batches).to(self._device)

    def _adjust(self, arm: Arm, block: Block, orders: list[Order]) -> None:
        """After a block: refit the arm's cost model, and tell which schedule it has picked."""
        name = arm.config.name
        fit = self._refits[name].after(block.steps[-1], orders, self._num_taken)
        if fit is not None:
            self._records.write_fit(arm, fit)
            if self._rank == 0:
                logger.info("%s: cost model refitted, %s", name, fit.reason)
        schedule = arm.engine.schedule
        if name in self._undecided and isinstance(schedule, AutoSchedule) and schedule.trials:
            self._undecided.discard(name)
            self._records.write_schedules(arm, schedule.decided_at or 0, schedule.trials)
            if self._rank == 0:
                chosen = next(trial for trial in schedule.trials if trial.is_chosen)
                logger.info("%s: schedule %s %s", name, chosen.schedule, chosen.reason)

    def _global_losses(self, block: Block, results: list[StepResult]) -> list[float]:
        """Mean loss of each step over all ranks' targets. A collective.

        Raises ConfigError, on every rank, at the first step whose loss is not finite.
        """
        sums = torch.stack([result.local_loss_sum.double().cpu() for result in results])
        dist.all_reduce(sums, group=self._group)
        targets = [max(result.batch.global_targets, 1) for result in results]
        losses: list[float] = (sums / torch.tensor(targets)).tolist()
        for step, loss, result in zip(block.steps, losses, results, strict=True):
            if not result.was_skipped:
                check_finite(self._job.config, block.arm, step, loss)
        return losses

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
        scratch = DenseSide(
            SequenceWorkload(self._job.config, self._device),
            dense_optimizer(self._job.config),
            precision=self._job.config.train.precision,
        )
        batch = self._builder.build(step=0, epoch=0, arm=self._plan.arms[name], rank=self._rank)
        batch = batch.to(self._device)
        for _ in range(2):
            rows_UD = torch.ones(len(batch.row_ids_U), arm.table.config.width, device=self._device)
            scratch.forward_backward([rows_UD], batch)
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
