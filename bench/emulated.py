"""A model whose compute is sleep, so that any number of ranks computes at once on two cores.

Each layer is a small linear one that sleeps in its forward pass, in the backward pass of its
activations and in that of its weights, as long as it is told. The engine runs it as it runs any
model: same tables, same exchange, same schedules, real gradients. Which rows a batch reads is drawn
so that a given share of them collides with the batch before.

Shape letters: U distinct rows, D width, S sequences.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NUM_SEQUENCES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatedLoad:
    """What a step of one rank computes and reads."""

    forward_s: float = 0.04
    activations_s: float = 0.04  # of the backward pass, down to the rows
    weights_s: float = 0.04  # of the backward pass
    num_layers: int = 8  # of width x width parameters each
    width: int = 64
    num_rows: int = 100_000
    rows_per_rank: int = 1280  # distinct rows that a rank reads in a step; a multiple of 64
    collision_share: float = 0.3  # of a batch's distinct rows, over all ranks
    # the three times of every step and rank multiplied by this, shape (steps, ranks); None: 1
    scale_SR: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatedBatch:
    """One rank's rows of a step."""

    step: int
    row_ids: tuple[Tensor, ...]
    num_targets: int
    global_targets: int
    scale: float


class _Pause(torch.autograd.Function):
    """Hands a tensor on and sleeps, on the way there or on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there_s: float, back_s: float) -> Tensor:
        ctx.back_s = back_s
        if there_s:
            time.sleep(there_s)  # this is the emulated compute
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        if ctx.back_s:
            time.sleep(ctx.back_s)  # this is the emulated compute
        return gradient, None, None


class PausedLinear(nn.Linear):
    """A linear layer that takes as long as it is told."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.times_s = (0.0, 0.0, 0.0)  # forward, activations, weights

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear, with its pauses."""
        there_s, activations_s, weights_s = self.times_s
        x = _Pause.apply(x, there_s, activations_s)
        weight = _Pause.apply(self.weight, 0.0, weights_s)
        return nn.functional.linear(x, weight, self.bias)


class EmulatedModel(nn.Module):
    """Layers one after another over the means of groups of rows."""

    def __init__(self, load: EmulatedLoad) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PausedLinear(load.width) for _ in range(load.num_layers))

    def forward(self, x_SD: Tensor) -> Tensor:
        """One vector a sequence; shape (S, D)."""
        for layer in self.layers:
            x_SD = torch.tanh(layer(x_SD))
        return x_SD


class EmulatedWorkload:
    """The model as the engine sees it."""

    def __init__(self, load: EmulatedLoad, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self._load = load
        self.model = EmulatedModel(load)

    def parts(self, batch: EmulatedBatch, num_parts: int) -> list[EmulatedBatch]:
        """The batch as a whole."""
        assert num_parts == 1, "one micro-batch is emulated"
        return [batch]

    def loss_sum(self, rows_T: Sequence[Tensor], part: EmulatedBatch) -> Tensor:
        """Sum of squares of what comes out; as long as the load says."""
        load = self._load
        each = part.scale / load.num_layers
        for layer in self.model.layers:
            layer.times_s = (
                load.forward_s * each,
                load.activations_s * each,
                load.weights_s * each,
            )
        (rows_UD,) = rows_T
        return self.model(rows_UD.view(NUM_SEQUENCES, -1, load.width).mean(1)).square().sum()


def batches(
    load: EmulatedLoad, *, rank: int, world_size: int, num_steps: int, seed: int = 1
) -> Iterator[EmulatedBatch]:
    """This rank's batches; all ranks draw the same sets and take their parts of them.

    A batch has world_size x rows_per_rank distinct rows; of these collision_share are rows of the
    batch before, the others are not.
    """
    rng = np.random.default_rng([seed, world_size])
    wanted = world_size * load.rows_per_rank
    num_colliding = round(load.collision_share * wanted)
    before = np.zeros(0, dtype=np.int64)
    for step in range(num_steps):
        kept = rng.choice(before, num_colliding, replace=False) if step else before
        others = np.setdiff1d(np.arange(load.num_rows), before, assume_unique=True)
        fresh = rng.choice(others, wanted - len(kept), replace=False)
        rows = rng.permutation(np.concatenate([kept, fresh]))
        mine = np.sort(rows[rank * load.rows_per_rank : (rank + 1) * load.rows_per_rank])
        scale = 1.0 if load.scale_SR is None else float(load.scale_SR[step, rank])
        yield EmulatedBatch(
            step=step,
            row_ids=(torch.from_numpy(mine),),
            num_targets=NUM_SEQUENCES,
            global_targets=NUM_SEQUENCES * world_size,
            scale=scale,
        )
        before = rows
