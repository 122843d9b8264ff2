"""The product's own model as the engine sees it: SASRec over one item table.

Before: feed.py builds a rank's batch.   After: pipeline/ trains it under any schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import RunConfig, TableConfig
from training.feed import RankBatch
from training.model import JaggedBatch, SASRec
from training.pipeline.dense import OptimizerFactory
from training.randomness import kept_scale


class SequenceWorkload:
    """SASRec with first weights from the run's seed, equal on every rank."""

    def __init__(self, config: RunConfig, device: torch.device | None = None) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(config.train.seed)
            self.model = SASRec(config.model)
        self.model.to(device or torch.device("cpu"))
        self._kept_scale = kept_scale(config.model.dropout)

    def parts(self, batch: RankBatch, num_parts: int) -> Sequence[JaggedBatch]:
        """Micro-batches of whole sequences."""
        return [batch.batch] if num_parts == 1 else batch.batch.split(num_parts)

    def loss_sum(self, rows_T: Sequence[Tensor], part: JaggedBatch) -> Tensor:
        """Sum over the part's targets of the sampled softmax loss."""
        (rows_UD,) = rows_T
        return self.model.loss_sum(rows_UD, part, self._kept_scale)


def item_table(config: RunConfig, num_items: int) -> TableConfig:
    """The one table of the model."""
    train = config.train
    return TableConfig(
        name="item",
        num_rows=num_items,
        width=config.model.embedding_dim,
        optimizer=train.table_optimizer,
        learning_rate=train.table_learning_rate,
        placement=train.table_placement,
    )


def dense_optimizer(config: RunConfig) -> OptimizerFactory:
    """AdamW; weight decay on matrices only."""
    train = config.train

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        matrices: dict[str, Any] = {"params": [p for p in parameters if p.ndim > 1]}
        vectors = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
        groups = [group for group in (matrices, vectors) if group["params"]]
        return torch.optim.AdamW(
            groups, lr=train.dense_learning_rate, weight_decay=train.weight_decay
        )

    return make
