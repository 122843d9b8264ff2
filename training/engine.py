"""Everything one rank needs to train a model over sharded tables under one schedule.

The product's trainer builds its arms of it, and so may anybody with a model of their own:

    engine = Engine(workload, [TableConfig(name="item", num_rows=n, width=64)], optimizer)
    for result in engine.run(batches): ...

Before: a workload (pipeline/workload.py) and the batches of this rank, ids included.
After: trained tables and parameters on this rank; a recorder that knows where the time went.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

from analytics.errors import ConfigError, IdError, InputError
from training.comm.gloo import GlooTransport
from training.comm.host_staged import HostStagedTransport
from training.comm.lanes import Lane
from training.comm.transport import Transport
from training.config import TableConfig, TrainConfig
from training.embeddings.exchange import Exchange
from training.embeddings.ids import checked_ids
from training.embeddings.memory import refuse_on_every_rank
from training.embeddings.table import ShardedTable
from training.pipeline.choose import make_schedule
from training.pipeline.dense import DenseSide, OptimizerFactory
from training.pipeline.lanes import Lanes
from training.pipeline.step import StepResult
from training.pipeline.synchronous import WholeGradient
from training.pipeline.workload import Batch, Workload
from training.randomness import table_seed
from training.ranks import another_group
from training.recorder import StepRecorder

CHUNK_BYTES = 1 << 20
BatchT = TypeVar("BatchT")
_FAILED = 2  # beside 0 (none) and 1: what a rank tells of its next batch
# one more process group, for what is urgent or for what can wait; a collective
TransportFactory = Callable[[bool], Transport]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine computes and communicates."""

    schedule: str = "auto"
    seed: int = 1  # of the tables' first weights
    micro_batches: int = 1
    precision: str = "fp32"
    clip_norm: float | None = None
    skip_non_finite: bool = False
    chunk_bytes: int = CHUNK_BYTES  # about five milliseconds of wire; the same on every rank
    timeout_s: int = 45  # a rank that waits longer than this ends with the reason
    norms_every: int = 0  # steps from one StepResult.norms to the next; 0: none, as under 'split'

    def __post_init__(self) -> None:
        # the bounds are those of a run's settings
        TrainConfig(
            micro_batches=self.micro_batches,
            precision=self.precision,
            clip_norm=self.clip_norm,
            collective_timeout_s=self.timeout_s,
        )
        if self.chunk_bytes < 1:
            raise ConfigError(f"chunk_bytes is {self.chunk_bytes}; a piece needs at least 1 byte.")
        if self.norms_every < 0:
            raise ConfigError(f"norms_every is {self.norms_every}; it is 0 (never) or more.")


class Engine:
    """One rank's tables, dense part, lanes, schedule and recorder. Made by all ranks together.

    transport: makes a transport over a new process group; when left out gloo between CPU tensors,
    host_staged between those of a GPU.
    Raises ConfigError on every rank when one of them cannot hold its share of the tables.
    """

    def __init__(
        self,
        workload: Workload,
        tables: Sequence[TableConfig],
        optimizer: OptimizerFactory,
        options: EngineOptions = EngineOptions(),
        *,
        transport: TransportFactory | None = None,
        device: torch.device | None = None,
    ) -> None:
        names = [table.name for table in tables]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"Tables are named {names}; at least one is needed, each name once.")
        self.device = device or torch.device("cpu")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.workload = workload
        self.recorder = StepRecorder(synchronized(self.device))
        self.lanes = made_lanes(
            transport, self.device, chunk_bytes=options.chunk_bytes, timeout_s=options.timeout_s
        )
        self.tables = made_tables(tables, self.lanes, seed=options.seed)
        self.dense = DenseSide(
            workload,
            optimizer,
            micro_batches=options.micro_batches,
            precision=options.precision,
            bucket_bytes=options.chunk_bytes,
            norms_every=options.norms_every,
        )
        self._check_equal_start()
        self.schedule = make_schedule(
            options.schedule,
            Exchange(self.tables, rank=rank, world_size=world_size),
            self.dense,
            self.lanes,
            self.recorder,
            WholeGradient(clip_norm=options.clip_norm, skip_non_finite=options.skip_non_finite),
        )

    def run(self, batches: Iterable[Batch], empty: Batch | None = None) -> Iterator[StepResult]:
        """Train on every batch, looking one ahead; ends when no rank has a batch any more.

        empty: what a rank trains on that has run out before others, a batch without targets.
        Raises ConfigError on every rank when one has run out and no `empty` was given.
        """
        self.schedule.settle()  # of an earlier run that was left before its end
        self.schedule.forget()
        pairs = together(self._checked(batches), self.lanes.deferred, empty)
        while True:
            with self.recorder.data_wait():
                pair = next(pairs, None)
            if pair is None:
                break
            self.recorder.begin_step()
            yield self.schedule.step(*pair)
        self.schedule.settle()

    def close(self) -> None:
        """End the threads and take the hooks off the model."""
        self.schedule.close()
        self.dense.close()
        self.lanes.close()

    def settle(self) -> None:
        """Finish what steps have deferred: before parameters or tables are read. A collective."""
        self.schedule.settle()

    def _check_equal_start(self) -> None:
        """Raise ConfigError, on every rank, unless all hold the same first dense parameters."""
        transport = self.lanes.urgent.transport
        parameters = [p.detach().double() for p in self.workload.model.parameters()]
        sums = torch.tensor(
            [sum(float(p.sum()) for p in parameters), sum(float(p.abs().sum()) for p in parameters)]
        )
        sums_R2 = transport.all_gather(sums.to(transport.device)).cpu()
        if not torch.equal(sums_R2, sums_R2[:1].expand_as(sums_R2)):
            raise ConfigError(
                "Ranks start from different dense parameters, so they would train different "
                "models. Seed torch alike on every rank before the model is made."
            )

    def _checked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, each held against the tables it is to read. Raises IdError."""
        for number, batch in enumerate(batches):
            for table, ids_U in zip(self.tables, batch.row_ids, strict=True):
                name, num_rows = table.config.name, table.config.num_rows
                checked_ids(ids_U, table=name, num_rows=num_rows, step=number, column=name)
                if ids_U.ndim != 1:
                    raise IdError(
                        f"batch of step {number}, table {name!r}: row_ids are of shape "
                        f"{tuple(ids_U.shape)}; give the distinct ids as one dimension."
                    )
            yield batch


@dataclasses.dataclass(frozen=True)
class Asked(Generic[BatchT]):
    """This rank's next batch, and what all ranks tell of theirs."""

    batch: BatchT | None
    problem: Exception | None
    answer: concurrent.futures.Future[list[int]]


def together(
    batches: Iterable[BatchT], lane: Lane, empty: BatchT | None = None
) -> Iterator[tuple[BatchT, BatchT | None]]:
    """(batch, the one after it), until no rank has a batch any more. A collective.

    Ranks agree one batch ahead and off the loop, so that it costs no wait. When reading a batch
    fails on one rank, all ranks end at that batch: this one with its error, the others with an
    InputError.
    """
    source = iter(batches)

    def ask() -> Asked[BatchT]:
        batch: BatchT | None = None
        problem: Exception | None = None
        try:
            batch = next(source, None)
        except Exception as error:
            problem = error
        state = _FAILED if problem is not None else int(batch is not None)
        flag = torch.tensor([state], dtype=torch.uint8)
        future = lane.submit(
            lambda transport: transport.all_gather(flag.to(transport.device)).flatten().tolist()
        )
        return Asked(batch, problem, future)

    def agreed(asked: Asked[BatchT]) -> BatchT | None:
        has_batch_R, batch = asked.answer.result(), asked.batch
        if asked.problem is not None:
            raise asked.problem
        if _FAILED in has_batch_R:
            raise InputError(
                f"Rank {has_batch_R.index(_FAILED)} could not read its next batch, so all ranks "
                "end here; its own message says why."
            )
        if not any(has_batch_R):
            return None
        if not all(has_batch_R) and empty is None:
            raise ConfigError(
                f"Rank {has_batch_R.index(0)} has run out of batches while others have more. Give "
                "`empty`, a batch without targets, or give every rank as many batches."
            )
        return empty if batch is None else batch

    asked = ask()
    current, asked = agreed(asked), ask()
    while current is not None:
        following, asked = agreed(asked), ask()  # answered while the step before ran
        yield current, following
        current = following


def made_lanes(
    transport: TransportFactory | None, device: torch.device, *, chunk_bytes: int, timeout_s: int
) -> Lanes:
    """Both lanes, over a process group each. A collective."""
    make = transport or plain_transport(device, timeout_s)
    return Lanes(
        urgent=Lane("urgent", make(True)),
        deferred=Lane("deferred", make(False)),
        chunk_bytes=chunk_bytes,
    )


def made_tables(tables: Sequence[TableConfig], lanes: Lanes, *, seed: int) -> list[ShardedTable]:
    """This rank's shares, once all ranks have found that theirs fit. A collective."""
    transport = lanes.urgent.transport
    refuse_on_every_rank(tables, transport)
    return [
        ShardedTable(
            config,
            rank=transport.rank,
            world_size=transport.world_size,
            seed=table_seed(seed, config.name),
            device=transport.device,
        )
        for config in tables
    ]


def plain_transport(device: torch.device, timeout_s: int) -> TransportFactory:
    """Transports over new gloo groups that carry the device's tensors."""
    if device.type == "cpu":
        return lambda urgent: GlooTransport(another_group(timeout_s), device)
    return lambda urgent: HostStagedTransport(another_group(timeout_s), device)


def synchronized(device: torch.device) -> Callable[[], None] | None:
    """Waits until the loop's own stream is done; None where launching is doing.

    Not the whole device: the lanes' streams carry what is to stay under the loop's work.
    """
    if device.type != "cuda":
        return None
    return lambda: torch.cuda.current_stream(device).synchronize()
