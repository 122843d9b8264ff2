"""Ranks that end, or fail, in the middle of a step; imported by name on every rank."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.training.schedule_programs import Case, SmallWorkload, batch_of, table_configs
from training.comm.lanes import Lane
from training.comm.transport import Transport
from training.engine import Engine, EngineOptions, plain_transport
from training.ranks import joined

DIES_AT, TIMEOUT_S = 4, 10


class DyingWorkload(SmallWorkload):
    """Rank 1 ends, or only sleeps, in the middle of a forward pass."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__()
        self._how = how if rank == 1 else ""
        self._num_steps = 0

    def loss_sum(self, rows_T: Sequence[Tensor], part: Any) -> Tensor:
        self._num_steps += 1
        if self._how and self._num_steps == DIES_AT:
            if self._how == "dies":
                os._exit(3)
            time.sleep(4 * TIMEOUT_S)
        return super().loss_sum(rows_T, part)


def train_with_a_death(
    rank: int, world_size: int, init_method: str, schedule: str, how: str
) -> tuple[str, float, float]:
    """What a rank that lives on is told, how long that took, and how long close() did."""
    case = Case(empty_every=10**6)
    problem = ""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        engine = Engine(
            DyingWorkload(rank, how),
            table_configs(case),
            lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
            EngineOptions(schedule=schedule, chunk_bytes=512, timeout_s=TIMEOUT_S),
        )
        begin = time.monotonic()
        try:
            for _ in engine.run([batch_of(case, s, world_size, rank) for s in range(12)]):
                pass
        except RuntimeError as error:
            problem = str(error)
        told_s, begin = time.monotonic() - begin, time.monotonic()
        engine.close()
        return problem, told_s, time.monotonic() - begin


def failing_lane(rank: int, world_size: int, init_method: str) -> tuple[list[str], str, float]:
    """Work that raises, work behind it, and close()."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        lane = Lane("deferred", plain_transport(torch.device("cpu"), TIMEOUT_S)(False))

        def broken(transport: Transport) -> None:
            try:
                raise KeyError("a row")
            except KeyError as error:
                raise ValueError("the table is broken") from error

        told, cause = [], ""
        for work in (broken, lambda transport: transport.rank):
            try:
                lane.submit(work).result()
            except ValueError as error:
                told.append(str(error))
                cause = repr(error.__cause__)
        begin = time.monotonic()
        lane.close()
        return told, cause, time.monotonic() - begin
