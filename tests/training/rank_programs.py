"""What test ranks do; a module of its own, because every rank imports it by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analytics.journal import JournalWriter
from analytics.store import (
    SCHEMA_VERSION,
    TEST,
    VALIDATION,
    StoreHeader,
    open_store,
    write_header,
)
from training.config import ArmConfig, ModelConfig, RunConfig, TrainConfig, TrainJob
from training.evaluate import evaluate
from training.parameters import gather_table
from training.planning.cost import CostModel
from training.planning.plan import make_run_plan, read_plan, write_plan
from training.ranks import joined
from training.trainer import Trainer

COST = CostModel(t_step_s=1e-3, c0_s=1e-4, a_s=1e-5, b_s=1e-7, source="test")


def make_store(path: Path, lengths: list[int], num_items: int) -> Path:
    """A store of random histories of the given lengths."""
    path.mkdir(parents=True)
    total = sum(lengths)
    rng = np.random.default_rng(7)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    items = rng.integers(0, num_items, total).astype(np.int32)
    splits = np.zeros(total, dtype=np.uint8)
    splits[offsets[1:] - 1] = TEST
    splits[offsets[1:] - 2] = VALIDATION
    times = np.arange(total, dtype=np.int64)
    for name, column in (("items", items), ("times", times), ("splits", splits)):
        np.save(path / f"{name}.npy", column)
    np.save(path / "offsets.npy", offsets)
    header = StoreHeader(
        schema_version=SCHEMA_VERSION,
        dataset_id="0" * 16,
        dataset_name="made",
        content_sha256="0" * 64,
        source_sha256="0" * 64,
        terms="none",
        num_rows_read=total,
        num_events=total,
        num_users=len(lengths),
        num_items=num_items,
        dropped_rows={},
        num_in_split={},
        tied_share=0.0,
        has_times=True,
        actions=[],
        has_ratings=False,
        sources=[],
        rules={},
        pseudonyms=None,
        data_sheet={},
    )
    write_header(path, header)
    return path


def make_job(
    directory: Path,
    store_dir: Path,
    arms: tuple[ArmConfig, ...],
    *,
    num_ranks: int,
    num_epochs: int = 1,
    batch: int = 8,
    train: dict[str, Any] | None = None,
    **model: Any,
) -> TrainJob:
    """A planned job on a store, ready for its ranks; giants stay whole unless `train` says so."""
    config = RunConfig(
        recipe="test",
        model=ModelConfig(
            **({"embedding_dim": 16, "num_blocks": 1, "ffn_dim": 16, "max_length": 64} | model)
        ),
        train=TrainConfig(
            num_epochs=num_epochs,
            global_batch_sequences=batch,
            num_negatives=8,
            collective_timeout_s=30,
            **({"split_giants": False, "block_steps": 4} | (train or {})),
        ),
        arms=arms,
        num_ranks=num_ranks,
    )
    store = open_store(store_dir)
    plan_dir, attempt_dir = directory / "plan", directory / "attempt-0"
    plan_dir.mkdir(parents=True)
    attempt_dir.mkdir()
    plan = make_run_plan(store.training_lengths(), COST, config)
    write_plan(plan, plan_dir)
    return TrainJob(
        pipeline_id="p",
        attempt=0,
        config=config,
        dataset_id="0" * 16,
        store_dir=str(store_dir),
        plan_dir=str(plan_dir),
        attempt_dir=str(attempt_dir),
        instance_type="none",
        device_hour_cost=3.6,
        currency="USD",
    )


def train(rank: int, world_size: int, init_method: str, job: TrainJob) -> dict[str, Any]:
    """Train every arm; returns each arm's state at the end (tables on rank 0 only)."""
    store, plan = open_store(Path(job.store_dir)), read_plan(Path(job.plan_dir))
    timeout = job.config.train.collective_timeout_s
    with joined(timeout, init_method=init_method, rank=rank, world_size=world_size) as group:
        with JournalWriter(job.journal_dir, f"rank-{rank:05d}") as journal:
            trainer = Trainer(job, store, plan, group, journal)
            trainer.run()
        return {
            name: {
                "table": _numpy(gather_table(arm.table, group)),
                "accumulator": arm.table.state["accumulator"].numpy(),
                "weight": arm.table.weight_MD.numpy(),
                "dense": {k: v.numpy() for k, v in arm.engine.dense.state().items()},
            }
            for name, arm in trainer.arms.items()
        }


def train_with_a_bad_step(
    rank: int, world_size: int, init_method: str, job: TrainJob, bad_step: int
) -> None:
    """Train; in one step rank 0's loss is not a number."""
    store, plan = open_store(Path(job.store_dir)), read_plan(Path(job.plan_dir))
    with (
        joined(30, init_method=init_method, rank=rank, world_size=world_size) as group,
        JournalWriter(job.journal_dir, f"rank-{rank:05d}") as journal,
    ):
        trainer = Trainer(job, store, plan, group, journal)
        for arm in trainer.arms.values():
            plain, calls = arm.workload.loss_sum, iter(range(1000))

            def loss_sum(rows_T: Any, part: Any, plain: Any = plain, calls: Any = calls) -> Any:
                is_bad = rank == 0 and next(calls) == bad_step
                return plain(rows_T, part) * (float("nan") if is_bad else 1.0)

            arm.workload.loss_sum = loss_sum  # type: ignore[method-assign]
        trainer.run()


def evaluate_job(
    rank: int, world_size: int, init_method: str, job: TrainJob
) -> list[dict[str, Any]]:
    """Evaluate a trained job."""
    timeout = job.config.train.collective_timeout_s
    with joined(timeout, init_method=init_method, rank=rank, world_size=world_size) as group:
        records = evaluate(job, open_store(Path(job.store_dir)), group)
    return [dataclasses.asdict(record) for record in records]


def _numpy(table: torch.Tensor | None) -> Any:
    return None if table is None else table.numpy()
