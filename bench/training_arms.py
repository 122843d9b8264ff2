"""Arms that a bench trains in turn on the same batches: ours by the engine; what they are fed.

An arm is anything with `run(batches) -> steps`, `close()` and a state to compare. The two models:
the emulated one (emulated.py) and SASRec on drawn histories, whose ids follow Zipf's law and are
shuffled, so that a table cut by rows has its popular rows on every rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.emulated import EmulatedLoad, EmulatedWorkload
from training.comm.clocks import last_arrivals
from training.comm.gloo import GlooTransport
from training.comm.paced import Link, PacedTransport
from training.config import ModelConfig, RunConfig, TableConfig, TrainConfig
from training.engine import Engine, EngineOptions, TransportFactory
from training.feed import BatchBuilder
from training.links import parse_link
from training.planning.plan import Plan
from training.ranks import another_group
from training.sequences import SequenceWorkload
from training.step_parts import step_parts

TIMEOUT_S = 60
NUM_ITEMS = 50_000
ITEM_ZIPF = 1.05
Ints = Any  # int64 arrays
Step = dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A model to train and its table; made anew for every arm, with the same first weights."""

    workload: Callable[[], Any]
    table: TableConfig
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    seed: int = 1


def emulated_task(load: EmulatedLoad) -> Task:
    """The model whose compute is sleep."""
    return Task(
        workload=lambda: EmulatedWorkload(load),
        table=TableConfig(name="item", num_rows=load.num_rows, width=load.width),
        optimizer=adamw,
    )


def real_task(config: RunConfig) -> Task:
    """SASRec over its item table."""
    return Task(
        workload=lambda: SequenceWorkload(config),
        table=TableConfig(name="item", num_rows=NUM_ITEMS, width=config.model.embedding_dim),
        optimizer=adamw,
    )


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What the dense part is trained with, in every arm.

    eps: a softmax does not change with its keys' bias, whose gradient is rounding alone; with 1e-8
    Adam makes steps of it, and two orders of summation end 5e-4 apart there.
    """
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-5)


def real_config(max_length: int) -> RunConfig:
    """The real model of the benches: two blocks, width 64, no dropout."""
    return RunConfig(
        recipe="bench",
        model=ModelConfig(dropout=0.0, max_length=max_length),
        train=TrainConfig(num_negatives=32),
    )


class DrawnStore:
    """Histories of drawn items in memory, as BatchBuilder reads a store; the same on every rank."""

    def __init__(self, length_N: Ints, *, seed: int = 1) -> None:
        rng = np.random.default_rng([seed, len(length_N)])
        share = np.arange(1, NUM_ITEMS + 1.0) ** -ITEM_ZIPF
        ranked = rng.choice(NUM_ITEMS, int(length_N.sum()), p=share / share.sum())
        items = rng.permutation(NUM_ITEMS)[ranked]
        self._items = np.split(items, np.cumsum(length_N)[:-1])
        self._length_N = np.asarray(length_N, dtype=np.int64)
        self.header = SimpleNamespace(num_items=NUM_ITEMS)

    def training_lengths(self) -> Ints:
        """Events of each history."""
        return self._length_N

    def training_items(self, sequence: int) -> Ints:
        """Items of one history, the oldest first."""
        return self._items[sequence]


def real_batches(
    config: RunConfig, length_N: Ints, plan: Plan, arm: str, *, rank: int
) -> list[Any]:
    """Every batch of one rank, as the plan's arm places them."""
    builder = BatchBuilder(DrawnStore(length_N), config, plan.windows)  # type: ignore[arg-type]
    return [
        builder.build(step=step, epoch=int(plan.epochs[step]), arm=plan.arms[arm], rank=rank)
        for step in range(plan.num_steps)
    ]


def transport_factory(link: str | None) -> TransportFactory:
    """Our gloo transport over new groups; with a link, held as if over one."""
    if link is None:
        return lambda urgent: GlooTransport(another_group(TIMEOUT_S), torch.device("cpu"))
    shared = Link(parse_link(link))
    return lambda urgent: PacedTransport(
        GlooTransport(another_group(TIMEOUT_S), torch.device("cpu")), shared
    )


class EngineArm:
    """One of our schedules."""

    def __init__(
        self, task: Task, schedule: str, *, chunk_bytes: int, transport: TransportFactory
    ) -> None:
        self.name = schedule
        options = EngineOptions(schedule=schedule, chunk_bytes=chunk_bytes, seed=task.seed)
        self.engine = Engine(
            task.workload(), [task.table], task.optimizer, options, transport=transport
        )

    def run(self, batches: Sequence[Any]) -> list[Step]:
        """Train on a block; where each step's time went on this rank. A collective."""
        results = list(self.engine.run(iter(batches)))
        windows = self.engine.recorder.end_block()
        assert dist.group.WORLD is not None
        arrivals = [[wait.arrival_ns for wait in w.sorted_waits()] for w in windows]
        lasts = last_arrivals(arrivals, dist.group.WORLD).arrival_ns
        mark_ns = self.engine.recorder.mark_ns
        steps = []
        for window, last, result in zip(windows, lasts, results, strict=True):
            parts = dataclasses.asdict(step_parts(window, last, mark_ns))
            batch = result.batch
            parts["loss"] = float(result.local_loss_sum) / max(batch.global_targets, 1)
            parts["num_rows"] = len(batch.row_ids[0])
            parts["num_rows_ahead"] = result.num_rows_ahead
            parts["sent_bytes"] = result.sent_bytes
            steps.append(parts)
        return steps

    def state(self) -> dict[str, Tensor]:
        """Table share, its optimiser's state, dense parameters and theirs, by name."""
        (table,) = self.engine.tables
        rows = {"table/weight": table.weight_MD}
        rows |= {f"table/{name}": value for name, value in table.state.items()}
        return rows | {f"dense/{name}": value for name, value in self.engine.dense.state().items()}

    def close(self) -> None:
        """End the threads."""
        self.engine.close()


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference of tables, their state, dense parameters and theirs, on this rank."""
    assert one.keys() == other.keys()
    found = dict.fromkeys(("table", "table_state", "dense", "dense_state"), 0.0)
    for name, value in one.items():
        kind, rest = name.split("/", 1)
        is_state = rest != "weight" if kind == "table" else "/" in rest
        key = f"{kind}_state" if is_state else kind
        difference = (value.double() - other[name].double()).abs()
        found[key] = max(found[key], float(difference.max()))
    return found
