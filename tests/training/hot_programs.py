"""Ranks that train with and without replicated hot rows; imported by name on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.training.schedule_programs import Case, SmallWorkload, batch_of, table_configs
from training.engine import Engine, EngineOptions
from training.pipeline.hot_tables import HotTables
from training.ranks import joined


def train_hot(rank: int, world_size: int, init_method: str, schedule: str) -> list[dict[str, Any]]:
    """Without hot rows, and with seven of the item table's."""
    case, results = Case(optimizer="adagrad", num_items=200, num_steps=15), []
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        for ids in ({}, {"item": np.array([0, 1, 2, 3, 5, 8, 199])}):
            hot = HotTables(table_configs(case), ids)
            engine = Engine(
                hot.workload(SmallWorkload()),
                hot.configs,
                lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
                EngineOptions(schedule=schedule, seed=2, chunk_bytes=512, timeout_s=20),
            )
            hot.start(engine.tables, seed=2)
            batches = [batch_of(case, step, world_size, rank) for step in range(case.num_steps)]
            losses = [float(r.local_loss_sum) for r in engine.run(map(hot.batch, batches))]
            engine.close()
            hot.write_back(engine.tables, rank)
            found: dict[str, Any] = {"losses": np.array(losses)}
            found |= {name: v.numpy() for name, v in engine.dense.state().items()}
            for table in engine.tables:
                if table.config.name != "item.hot":
                    found[table.config.name] = table.weight_MD.numpy()
                    found[f"{table.config.name}/state"] = table.state["accumulator"].numpy()
            results.append(found)
    return results
