"""What a rank writes about its steps and about what it decided: one place that fills the records.

Before: trainer.py runs a block of steps.   After: the journal, analytics/warehouse.py.
Price: one exchange of arrival times a block, when its last window has closed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib import metadata

import torch.distributed as dist

from analytics.hosts import host_name
from analytics.journal import JournalWriter
from analytics.schema import (
    DimRun,
    FactCostFit,
    FactScheduleTrial,
    FactTransportTrial,
    Scalar,
)
from training.arms import Arm
from training.block_records import BlockRecords
from training.comm.clocks import ClockOffset, last_arrivals
from training.comm.contention import TransportTrial
from training.config import TrainJob
from training.feed import ArmPlans, RankBatch
from training.job_records import JobSpans, rank_record
from training.pipeline.choose import Trial
from training.pipeline.step import StepResult
from training.planning.model_flops import model_flops
from training.planning.plan import Plan
from training.planning.refit import CostFit
from training.planning.windows import Ints
from training.ranks import share_one_clock
from training.recorder import Window


class StepJournal:
    """One rank's records of all arms."""

    def __init__(
        self,
        job: TrainJob,
        plan: Plan,
        plans: ArmPlans,
        lengths_W: Ints,
        group: dist.ProcessGroup,
        journal: JournalWriter,
    ) -> None:
        """A collective. plans: where windows lie by now; lengths_W: events of each window."""
        self._job = job
        self._plan = plan
        self._plans = plans
        self._lengths_W = lengths_W
        self._group = group
        self._rank = dist.get_rank(group)
        self._journal = journal
        self._clock: ClockOffset | None = None  # as the last block compared it
        self._shares_clock = share_one_clock(group)
        self.spans = JobSpans(
            journal,
            pipeline_id=job.pipeline_id,
            attempt=job.attempt,
            rank=self._rank,
            launched_unix_ns=job.launched_unix_ns,
        )
        self._blocks = BlockRecords(
            journal,
            self.spans,
            pipeline_id=job.pipeline_id,
            attempt=job.attempt,
            rank=self._rank,
            record_collectives=job.config.train.record_collectives,
        )

    def write_steps(
        self,
        arm: Arm,
        block: int,
        windows: Sequence[Window],
        results: Sequence[StepResult],
        lengths: Sequence[Ints],
    ) -> None:
        """The steps of a block and their waits, every rank its own. A collective.

        lengths: of each step, those of `lengths_of`.
        """
        begin_cpu_ns = time.thread_time_ns()
        arrivals = [[wait.arrival_ns for wait in w.sorted_waits()] for w in windows]
        lasts = last_arrivals(arrivals, self._group, shares_clock=self._shares_clock)
        self._clock = lasts.clock
        told = [self._told(*of_step) for of_step in zip(results, lengths, strict=True)]
        self._blocks.write(
            self._job.run_id(arm.config.name),
            block,
            windows,
            {name: [of_step[name] for of_step in told] for name in told[0]},
            lasts,
            mark_ns=arm.engine.recorder.mark_ns,
            begin_cpu_ns=begin_cpu_ns,
        )

    def write_rank(self, arm: Arm) -> None:
        """Where this rank runs; written again at the end, when more is known of it."""
        self._journal.write(
            rank_record(
                run_id=self._job.run_id(arm.config.name),
                pipeline_id=self._job.pipeline_id,
                attempt=self._job.attempt,
                rank=self._rank,
                device=arm.engine.device,
                clock=self._clock,
            )
        )

    def lengths_of(self, arm: str, step: int) -> Ints:
        """Events of each window that this rank held in a step of an arm."""
        held: Ints = self._lengths_W[self._plans.at(arm, step).of_rank(step, self._rank)]
        return held

    def write_run(self, arm: Arm, colliding: float | None, transport: str) -> None:
        """The run, by rank 0."""
        if self._rank == 0:
            self._journal.write(self._run(arm, colliding, transport))

    def write_transports(
        self, arm: Arm, trials: Sequence[TransportTrial], chosen: str, reason: str
    ) -> None:
        """What was measured of the transports at the start, by rank 0."""
        for trial in trials if self._rank == 0 else ():
            is_chosen = trial.name == chosen
            self._journal.write(
                FactTransportTrial(
                    run_id=self._job.run_id(arm.config.name),
                    pipeline_id=self._job.pipeline_id,
                    attempt=self._job.attempt,
                    transport=trial.name,
                    is_available=trial.available,
                    is_chosen=is_chosen,
                    alone_s=trial.alone_s,
                    beside_s=trial.beside_s,
                    slowdown_share=trial.slowdown_share,
                    bytes_per_s=trial.bytes_per_s,
                    reason=reason if is_chosen else trial.reason or "another one was chosen",
                )
            )

    def write_schedules(self, arm: Arm, step: int, trials: Sequence[Trial]) -> None:
        """Which schedules were tried and which was taken, by rank 0."""
        for trial in trials if self._rank == 0 else ():
            self._journal.write(
                FactScheduleTrial(
                    run_id=self._job.run_id(arm.config.name),
                    pipeline_id=self._job.pipeline_id,
                    attempt=self._job.attempt,
                    step=step,
                    schedule=trial.schedule,
                    num_steps=trial.num_steps,
                    step_s=trial.step_s,
                    is_chosen=trial.is_chosen,
                    reason=trial.reason,
                )
            )

    def write_fit(self, arm: Arm, fit: CostFit) -> None:
        """A refit of the cost model, by rank 0."""
        if self._rank != 0:
            return
        self._journal.write(
            FactCostFit(
                run_id=self._job.run_id(arm.config.name),
                pipeline_id=self._job.pipeline_id,
                attempt=self._job.attempt,
                step=fit.step,
                num_measured=fit.num_measured,
                t_step_s=fit.cost.t_step_s,
                c0_s=fit.cost.c0_s,
                a_s=fit.cost.a_s,
                b_s=fit.cost.b_s,
                residual_ratio=fit.residual_ratio,
                is_taken=fit.taken,
                reason=fit.reason,
            )
        )

    def _told(self, result: StepResult, mine_B: Ints) -> dict[str, Scalar]:
        """What a step tells beside its window; mine_B: the events of its sequences."""
        batch = result.batch
        assert isinstance(batch, RankBatch)
        own_sq, whole_sq = _norms_of(result, batch)
        return {
            "step": batch.step,
            "epoch": int(self._plan.epochs[batch.step]),
            "predicted_cost_s": float(self._plan.cost.sequence_cost_s(mine_B).sum()),
            "num_sequences": len(mine_B),
            "num_tokens": int(mine_B.sum()),
            "num_targets": 0 if result.was_skipped else batch.num_targets,
            "loss_sum": 0.0 if result.was_skipped else float(result.local_loss_sum),
            "was_skipped": result.was_skipped,
            "num_rows": len(batch.row_ids_U),
            "num_rows_ahead": result.num_rows_ahead,
            "sent_bytes": result.sent_bytes,
            "model_flops": self._flops(batch),
            "rank_gradient_norm_sq": own_sq,
            "gradient_norm_sq": whole_sq,
        }

    def _flops(self, batch: RankBatch) -> float:
        return model_flops(
            self._job.config.model,
            num_negatives=self._job.config.train.num_negatives,
            lengths=batch.batch.lengths,
            num_targets=batch.batch.num_targets,
        )

    def _run(self, arm: Arm, colliding: float | None, transport: str) -> DimRun:
        job, train = self._job, self._job.config.train
        placed = self._plan.arms[arm.config.name]
        return DimRun(
            run_id=job.run_id(arm.config.name),
            pipeline_id=job.pipeline_id,
            attempt=job.attempt,
            arm=arm.config.name,
            placement=arm.config.placement,
            schedule=arm.config.schedule,
            dataset_id=job.dataset_id,
            config_sha256=job.config.sha256(),
            scaling_sha256=job.config.scaling_sha256(),
            seed=train.seed,
            world_size=dist.get_world_size(self._group),
            device=arm.engine.device.type,
            host=host_name(),
            num_steps=self._plan.num_steps,
            num_epochs=train.num_epochs,
            global_batch_sequences=train.global_batch_sequences,
            predicted_straggler_share=placed.predicted_straggler_share,
            bound_straggler_share=placed.bound_straggler_share,
            collision_share=colliding,
            instance_type=job.instance_type,
            device_hour_cost=job.device_hour_cost,
            currency=job.currency,
            started_unix_ns=time.time_ns(),
            seqscale_version=metadata.version("seqscale"),
            transport=transport,
            precision=train.precision,
            micro_batches=train.micro_batches,
            table_optimizer=train.table_optimizer,
        )


def _norms_of(result: StepResult, batch: RankBatch) -> tuple[float | None, float | None]:
    """(this rank's squared norm, all ranks') for fact_step; a rank without targets has none."""
    if result.norms is None or result.was_skipped:
        return None, None
    own, whole = float(result.norms.rank_sq), float(result.norms.whole_sq)
    if not math.isfinite(own) or not math.isfinite(whole):
        return None, None
    return own if batch.num_targets else None, whole
