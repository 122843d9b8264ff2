"""Ranks that train one small model under several schedules, for the laws of exactness.

The model reads two tables of different widths, so that one exchange carries both. What a step holds
is drawn from (seed, step) for all ranks together and then dealt out, so that one rank can train
what four trained.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from analytics.errors import IdError, InputError
from training.config import TableConfig
from training.engine import Engine, EngineOptions
from training.pipeline.step import Schedule
from training.ranks import joined

SCHEDULES = ("synchronous", "ids_ahead", "prioritised", "split", "auto")
ITEM_WIDTH, USER_WIDTH, HIDDEN = 8, 4, 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and what befalls the ranks."""

    optimizer: str = "rowwise_adagrad"
    num_items: int = 60  # nearly every row collides
    num_steps: int = 30
    max_sequences: int = 3  # a rank holds 0 to so many
    empty_every: int = 3  # every so many steps one rank holds nothing
    huge_at: int = 7  # a step with one sequence of 120 events
    jitter_ms: float = 0.0
    micro_batches: int = 1
    precision: str = "fp32"
    clip_norm: float | None = None
    skip_non_finite: bool = False
    nan_at: int = -1  # the loss of this step is not finite on rank 0
    placement: str = "round_robin"
    user_placement: str = "round_robin"
    chunk_bytes: int = 4096
    schedules: tuple[str, ...] = SCHEDULES


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallBatch:
    """One rank's sequences; places are those in the batch's distinct ids."""

    row_ids: tuple[Tensor, ...]
    items: list[Tensor]
    users: list[Tensor]
    num_targets: int
    global_targets: int
    is_bad: bool = False


class SmallModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(ITEM_WIDTH + USER_WIDTH, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.positions = nn.Embedding(128, HIDDEN)
        self.leave = nn.Linear(HIDDEN, ITEM_WIDTH)

    def forward(self, item_ND: Tensor, user_ND: Tensor) -> Tensor:
        hidden = self.enter(torch.cat([item_ND, user_ND], dim=1))
        hidden = hidden + self.positions(torch.arange(len(item_ND)))
        return self.leave(functional.gelu(self.norm(hidden)))


class SmallWorkload:
    def __init__(self, jitter_ms: float = 0.0, rank: int = 0) -> None:
        torch.manual_seed(5)
        self.model = SmallModel()
        self._jitter = np.random.default_rng([17, rank])
        self._jitter_ms = jitter_ms

    def parts(self, batch: SmallBatch, num_parts: int) -> list[Any]:
        sequences = list(zip(batch.items, batch.users, strict=True))
        size = -(-len(sequences) // num_parts)
        return [(sequences[at : at + size], batch.is_bad) for at in range(0, len(sequences), size)]

    def loss_sum(self, rows_T: Sequence[Tensor], part: Any) -> Tensor:
        if self._jitter_ms:
            time.sleep(self._jitter.uniform(0, self._jitter_ms) / 1e3)
        item_UD, user_UD = rows_T
        sequences, is_bad = part
        losses = []
        for items, users in sequences:
            found = self.model(item_UD[items[:-1]], user_UD[users[:-1]])
            losses.append((found.float() - item_UD[items[1:]]).square().sum())
        total = torch.stack(losses).sum()
        return total * torch.nan if is_bad else total


def sequences_of(case: Case, step: int, world_size: int) -> list[list[tuple[Any, Any]]]:
    """(items, users) of each sequence of each rank, drawn for all ranks together."""
    rng = np.random.default_rng([3, step])
    ranks: list[list[tuple[Any, Any]]] = []
    for rank in range(world_size):
        count = int(rng.integers(1, case.max_sequences + 1))
        if step % case.empty_every == 0 and rank == (step // case.empty_every) % world_size:
            count = 0 if world_size > 1 else count
        lengths = rng.integers(2, 14, count)
        if step == case.huge_at and rank == world_size - 1 and count:
            lengths[0] = 120
        held = []
        for length in lengths:
            items = np.minimum(rng.zipf(1.2, int(length)) - 1, case.num_items - 1)
            held.append((items, rng.integers(0, 11, int(length))))
        ranks.append(held)
    return ranks


def batch_of(
    case: Case, step: int, world_size: int, rank: int, *, all_in_one: bool = False
) -> SmallBatch:
    ranks = sequences_of(case, step, world_size)
    mine = [s for held in ranks for s in held] if all_in_one else ranks[rank]
    items = [torch.from_numpy(i.astype(np.int64)) for i, _ in mine]
    users = [torch.from_numpy(u.astype(np.int64)) for _, u in mine]
    none = torch.zeros(0, dtype=torch.int64)
    item_U, item_at = torch.unique(torch.cat([none, *items]), return_inverse=True)
    user_U, user_at = torch.unique(torch.cat([none, *users]), return_inverse=True)
    sizes = [len(i) for i in items]
    return SmallBatch(
        row_ids=(item_U, user_U),
        items=list(torch.split(item_at, sizes)) if sizes else [],
        users=list(torch.split(user_at, sizes)) if sizes else [],
        num_targets=sum(len(i) - 1 for i, _ in mine),
        global_targets=sum(len(i) - 1 for held in ranks for i, _ in held),
        is_bad=step == case.nan_at and (all_in_one or rank == 0),
    )


def table_configs(case: Case) -> list[TableConfig]:
    # each optimiser at a rate that is usual for it; a larger one only magnifies rounding
    rate = 0.01 if case.optimizer in ("lazy_adam", "sgd") else 0.1
    return [
        TableConfig(
            name="item",
            num_rows=case.num_items,
            width=ITEM_WIDTH,
            optimizer=case.optimizer,
            learning_rate=rate,
            placement=case.placement,
        ),
        TableConfig(
            name="user",
            num_rows=11,
            width=USER_WIDTH,
            optimizer=case.optimizer,
            learning_rate=rate,
            placement=case.user_placement,
        ),
    ]


def train_schedule(
    name: str, case: Case, group: Any, *, dealt_for: int
) -> tuple[dict[str, Any], Schedule]:
    """Train one schedule over the case's steps; dealt_for: the ranks the batches are drawn for."""
    rank, world_size = group.rank(), group.size()
    engine = Engine(
        SmallWorkload(case.jitter_ms, rank),
        table_configs(case),
        # with a small eps Adam divides rounding by rounding where a gradient is nearly nought
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4),
        EngineOptions(
            schedule=name,
            seed=2,
            micro_batches=case.micro_batches,
            precision=case.precision,
            clip_norm=case.clip_norm,
            skip_non_finite=case.skip_non_finite,
            chunk_bytes=case.chunk_bytes,
            timeout_s=30,
        ),
    )
    schedule = engine.schedule
    batches = [
        batch_of(case, step, dealt_for, rank, all_in_one=world_size != dealt_for)
        for step in range(case.num_steps)
    ]
    losses, ahead, skipped = [], 0, 0
    for step, batch in enumerate(batches):
        engine.recorder.begin_step()
        following = batches[step + 1] if step + 1 < case.num_steps else None
        result = schedule.step(batch, following)
        losses.append(float(result.local_loss_sum))
        ahead += result.num_rows_ahead
        skipped += result.was_skipped
        if step % 10 == 9:
            schedule.settle()
    schedule.settle()
    engine.recorder.end_block()
    engine.close()
    state: dict[str, Any] = {
        "losses": np.array(losses),
        "ahead": ahead,
        "skipped": skipped,
        "dense": {k: v.clone().numpy() for k, v in engine.dense.state().items()},
    }
    for table in engine.tables:
        state[table.config.name] = table.weight_MD.numpy()
        state[f"{table.config.name} ids"] = table.placement.local_ids(rank)
        for key, value in table.state.items():
            state[f"{table.config.name}/{key}"] = value.numpy()
    return state, schedule


def train_schedules(
    rank: int, world_size: int, init_method: str, case: Case, dealt_for: int | None = None
) -> dict[str, dict[str, Any]]:
    with joined(30, init_method=init_method, rank=rank, world_size=world_size) as group:
        return {
            name: train_schedule(name, case, group, dealt_for=dealt_for or world_size)[0]
            for name in case.schedules
        }


def announced_and_rows(rank: int, world_size: int, init_method: str) -> list[tuple[int, int]]:
    """Under ids_ahead, per step: when the next ids were announced and when the rows were there."""
    case = Case(num_steps=5, huge_at=-1)
    found: list[int] = []
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        engine = Engine(
            SmallWorkload(),
            table_configs(case),
            lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
            EngineOptions(schedule="ids_ahead", timeout_s=30),
        )
        submit = engine.lanes.deferred.submit

        def noted(work: Any) -> Any:
            found.append(time.monotonic_ns())
            return submit(work)

        engine.lanes.deferred.submit = noted  # type: ignore[method-assign]
        batches = [batch_of(case, step, world_size, rank) for step in range(case.num_steps)]
        for batch, following in itertools.pairwise(batches):
            engine.recorder.begin_step()
            engine.schedule.step(batch, following)
        engine.schedule.settle()
        windows = engine.recorder.end_block()
        engine.close()
    rows = [wait.end_ns for window in windows for wait in window.waits if wait.kind == "rows"]
    return list(zip(found, rows, strict=True))


def train_with_a_bad_id(
    rank: int, world_size: int, init_method: str, placement: str, bad_id: int
) -> str:
    """What each rank says when rank 0's third batch asks for a row that the table does not have."""
    case = Case(placement=placement)
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        engine = Engine(
            SmallWorkload(),
            table_configs(case),
            lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
            EngineOptions(schedule="prioritised", chunk_bytes=512, timeout_s=30),
        )
        given = [batch_of(case, step, world_size, rank) for step in range(1, 8)]
        if rank == 0:
            items, users = given[2].row_ids
            broken = (torch.cat([items, torch.tensor([bad_id])]), users)
            given[2] = dataclasses.replace(given[2], row_ids=broken)
        try:
            for _ in engine.run(given):
                pass
        except (IdError, InputError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            engine.close()
    return ""
