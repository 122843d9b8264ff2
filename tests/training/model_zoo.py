"""Models of every awkward shape, and ranks that train them under two schedules."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import weight_norm
from torch.utils.checkpoint import checkpoint

from training.config import TableConfig
from training.engine import Engine, EngineOptions
from training.ranks import joined

WIDTH, NUM_ROWS, NUM_STEPS = 8, 20, 8


class Recurrent(nn.Module):
    """One layer, called as often as the batch says: once in the first step, more often later."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, step: int) -> Tensor:
        for _ in range(1 + step % 3):
            x = torch.tanh(self.cell(x))
        return self.out(x)


class Tied(nn.Module):
    """The last layer's weight is used a second time, behind a gate that is shut at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, step: int) -> Tensor:
        x = functional.linear(x, self.b.weight) * self.gate + torch.tanh(self.a(x))
        return self.b(x)


class TiedModules(nn.Module):
    """Two layers that hold one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor, step: int) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class Pair(nn.Module):
    """Puts out two tensors, the second made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        first = self.a(x) * self.scale
        return first, {"second": torch.relu_(first * 2.0)}


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.out = Pair(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, step: int) -> Tensor:
        first, rest = self.pair(x)
        return self.out(first + rest["second"])


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, step: int) -> Tensor:
        return checkpoint(self.m, x, use_reentrant=False)


class Reentrant(Checkpointed):
    def forward(self, x: Tensor, step: int) -> Tensor:
        return checkpoint(self.m, x, use_reentrant=True)


class Ordinary(nn.Module):
    """In-place activations, normalisation, attention, a layer that never runs, a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, step: int) -> Tensor:
        x = torch.relu_(self.a(x))
        mixed, _ = self.attention(x[None], x[None], x[None], need_weights=False)
        return self.norm(self.frozen(x) + mixed[0])


class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():  # its successor parametrizes; this one uses a hook
            warnings.simplefilter("ignore", FutureWarning)
            self.a = weight_norm(nn.Linear(WIDTH, WIDTH))
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, step: int) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class NoDense(nn.Module):
    def forward(self, x: Tensor, step: int) -> Tensor:
        return torch.tanh(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        Recurrent,
        Tied,
        TiedModules,
        Pairs,
        Checkpointed,
        Reentrant,
        Ordinary,
        WeightNormed,
        NoDense,
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    step: int
    row_ids: tuple[Tensor, ...]
    num_targets: int
    global_targets: int


class ZooWorkload:
    def __init__(self, kind: str) -> None:
        torch.manual_seed(3)
        self.model = MODELS[kind]()

    def parts(self, batch: Rows, num_parts: int) -> list[Rows]:
        return [batch]

    def loss_sum(self, rows_T: Sequence[Tensor], part: Rows) -> Tensor:
        return (self.model(rows_T[0], part.step) - 1.0).square().sum()


def batch_of(step: int, rank: int, world_size: int) -> Rows:
    """Rank 1 holds nothing in the first step."""
    ids = torch.arange((step + rank) % 3, NUM_ROWS, 2 + rank)
    is_empty = rank == 1 and step == 0
    return Rows(
        step=step,
        row_ids=(ids[:0] if is_empty else ids,),
        num_targets=0 if is_empty else len(ids),
        global_targets=NUM_ROWS * world_size,
    )


def train_model(
    rank: int, world_size: int, init_method: str, kind: str, schedules: tuple[str, ...]
) -> dict[str, Any]:
    """Losses, table and dense state by schedule, or what it says; rates change in every step."""
    found: dict[str, Any] = {}
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        for name in schedules:
            engine = Engine(
                ZooWorkload(kind),
                [TableConfig(name="item", num_rows=NUM_ROWS, width=WIDTH)],
                lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
                EngineOptions(schedule=name, chunk_bytes=64, timeout_s=30),
            )
            losses = []
            try:
                given = [batch_of(step, rank, world_size) for step in range(NUM_STEPS)]
                for result in engine.run(given):
                    losses.append(float(result.local_loss_sum))
                    for bucket in engine.dense.buckets:
                        bucket.optimizer.param_groups[0]["lr"] = 1e-3 * (2 + len(losses))
                state = {k: v.clone().numpy() for k, v in engine.dense.state().items()}
                found[name] = (losses, engine.tables[0].weight_MD.numpy(), state)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
            engine.close()
            model = engine.workload.model
            names = ("_forward_pre_hooks", "_forward_hooks")
            left = sum(len(getattr(module, n)) for module in model.modules() for n in names)
            assert left == (1 if kind == "WeightNormed" else 0)  # its own
    return found
