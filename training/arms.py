"""One arm's whole state on a rank: an engine for the product's model, made from a run's settings.

Before: a run's configuration and plan.   After: training/trainer.py gives the arms their turns.
"""

from __future__ import annotations

import dataclasses

import torch

from training.config import ArmConfig, RunConfig
from training.embeddings.table import ShardedTable
from training.engine import Engine, EngineOptions, TransportFactory
from training.sequences import SequenceWorkload, dense_optimizer, item_table

NORMS_EVERY = 4  # steps; what ranks hold at random tells the noise of gradients, see noise_scale.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm on this rank."""

    config: ArmConfig
    workload: SequenceWorkload
    engine: Engine

    @property
    def table(self) -> ShardedTable:
        """This rank's share of the item table."""
        return self.engine.tables[0]


def make_arm(
    arm: ArmConfig,
    config: RunConfig,
    *,
    num_items: int,
    transport: TransportFactory,
    chunk_bytes: int,
    device: torch.device,
) -> Arm:
    """An arm in its first state, equal for every arm and number of ranks. A collective."""
    train = config.train
    workload = SequenceWorkload(config, device)
    options = EngineOptions(
        schedule=arm.schedule,
        seed=train.seed,
        micro_batches=train.micro_batches,
        precision=train.precision,
        clip_norm=train.clip_norm,
        skip_non_finite=train.skip_non_finite,
        chunk_bytes=chunk_bytes,
        timeout_s=train.collective_timeout_s,
        # ranks that were balanced by length hold no random samples
        norms_every=NORMS_EVERY if arm.placement == "random_equal" else 0,
    )
    engine = Engine(
        workload,
        [item_table(config, num_items)],
        dense_optimizer(config),
        options,
        transport=transport,
        device=device,
    )
    return Arm(config=arm, workload=workload, engine=engine)
