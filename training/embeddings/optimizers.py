"""What one optimiser step does to a row: row-wise Adagrad, Adagrad, lazy Adam and SGD.

Before: gradient_sum.py gives one summed gradient per row.   After: table.py writes the rows back.

Every rule reads and writes the state of the rows it is given and nothing else: no counter of the
table, no decay of rows without a gradient. So a batch's rows may be stepped in any number of
disjoint parts, by different threads, one batch early or late, and the bits are the same. Only
single multiplications, additions, divisions and roots are used, each of which is rounded once:
fused forms (addcmul, lerp, add with alpha) round otherwise at the end of a vector than within it,
so that a row's bits would depend on its place in the part. torch's sum over
a row would do so too on a GPU, where the shape of its tree depends on how many rows there are.

Adagrad, row-wise Adagrad and SGD are FBGEMM's (exact_adagrad, exact_rowwise_adagrad, exact_sgd):
eps beside the root, not under it; row-wise Adagrad adds the mean of the squares over the width.

Lazy Adam corrects its averages by the row's own steps, not by the batches so far: a row met first
in batch 1,000 would, corrected by 1,000, take a first step of (1 - beta1) / sqrt(1 - beta2) = 3.2
learning rates instead of one. (torch.optim.SparseAdam corrects by the batches.) What is kept is not
the count but the weight w that each average has been given so far, w = beta w + (1 - beta), which
is 1 - beta^n after n steps: exact in float32 where 1 - beta^n cancels.

Shape letters: M rows of a table's share, P rows of one part (distinct), D width.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from training.config import TableConfig

_SPLIT_WIDTH = 32768  # from here on torch splits a single row's sum among a CPU's threads


class RowRule(Protocol):
    """An optimiser whose state is one entry, or one row, per row of the table."""

    @property
    def state_width(self) -> dict[str, int | None]:
        """Entries per row of each state, by name; None: one number, without a dimension."""
        ...

    def step(self, weight_PD: Tensor, gradient_PD: Tensor, state: dict[str, Tensor]) -> None:
        """Change these rows' weights and states in place by one step.

        state: the rows' own entries, first dimension P.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd:
    """w -= lr g."""

    learning_rate: float
    state_width: dict[str, int | None]

    def step(self, weight_PD: Tensor, gradient_PD: Tensor, state: dict[str, Tensor]) -> None:
        """Change these rows' weights in place by one step; there is no state."""
        weight_PD -= gradient_PD * self.learning_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad:
    """a += g^2 for every entry; w -= lr g / (sqrt(a) + eps)."""

    learning_rate: float
    eps: float
    state_width: dict[str, int | None]

    def step(self, weight_PD: Tensor, gradient_PD: Tensor, state: dict[str, Tensor]) -> None:
        """Change these rows' weights and sums of squares in place by one step."""
        accumulator_PD = state["accumulator"]
        accumulator_PD += gradient_PD * gradient_PD
        weight_PD -= _divided(gradient_PD, accumulator_PD.sqrt(), self.eps) * self.learning_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad:
    """a += mean of g^2 over the row; w -= lr g / (sqrt(a) + eps)."""

    learning_rate: float
    eps: float
    state_width: dict[str, int | None]

    def step(self, weight_PD: Tensor, gradient_PD: Tensor, state: dict[str, Tensor]) -> None:
        """Change these rows' weights and sums of mean squares in place by one step."""
        accumulator_P = state["accumulator"]
        accumulator_P += _sum_of_row(gradient_PD * gradient_PD) / gradient_PD.shape[1]
        root_P1 = accumulator_P.sqrt()[:, None]
        weight_PD -= _divided(gradient_PD, root_P1, self.eps) * self.learning_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyAdam:
    """Adam with averages and corrections of the row's own steps; no other row decays."""

    learning_rate: float
    eps: float
    beta1: float
    beta2: float
    state_width: dict[str, int | None]

    def step(self, weight_PD: Tensor, gradient_PD: Tensor, state: dict[str, Tensor]) -> None:
        """Change these rows' weights, averages and the averages' weights in place by one step."""
        squared_PD = gradient_PD * gradient_PD
        for name, given_PD, beta in (
            ("mean", gradient_PD, self.beta1),
            ("square", squared_PD, self.beta2),
        ):
            state[name] *= beta
            state[name] += given_PD * (1.0 - beta)
            state[f"{name}_weight"] *= beta
            state[f"{name}_weight"] += 1.0 - beta
        mean_PD = state["mean"] / state["mean_weight"][:, None]
        square_PD = state["square"] / state["square_weight"][:, None]
        weight_PD -= _divided(mean_PD, square_PD.sqrt(), self.eps) * self.learning_rate


def row_rule(config: TableConfig) -> RowRule:
    """The rule that a table's configuration names."""
    lr, eps, width = config.learning_rate, config.eps, config.width
    if config.optimizer == "sgd":
        return Sgd(learning_rate=lr, state_width={})
    if config.optimizer == "adagrad":
        return Adagrad(learning_rate=lr, eps=eps, state_width={"accumulator": width})
    if config.optimizer == "rowwise_adagrad":
        return RowwiseAdagrad(learning_rate=lr, eps=eps, state_width={"accumulator": None})
    assert config.optimizer == "lazy_adam"  # TableConfig knows no other
    return LazyAdam(
        learning_rate=lr,
        eps=eps,
        beta1=config.beta1,
        beta2=config.beta2,
        state_width={"mean": width, "square": width, "mean_weight": None, "square_weight": None},
    )


def first_state(rule: RowRule, num_rows: int, device: torch.device | None) -> dict[str, Tensor]:
    """The state of rows that have had no step: zeros, first dimension num_rows."""
    return {
        name: torch.zeros((num_rows,) if width is None else (num_rows, width), device=device)
        for name, width in rule.state_width.items()
    }


def state_entries_per_row(config: TableConfig) -> int:
    """Numbers that the optimiser keeps beside each row, of 4 bytes each."""
    return sum(width or 1 for width in row_rule(config).state_width.values())


def _sum_of_row(entries_PD: Tensor) -> Tensor:
    """Sum over the width, shape (P,); a row's bits do not depend on P."""
    if entries_PD.device.type == "cpu" and entries_PD.shape[1] < _SPLIT_WIDTH:
        return entries_PD.sum(1)  # row by row, in a fifth of the time of the halves
    return _sum_of_halves(entries_PD)


def _sum_of_halves(entries_PD: Tensor) -> Tensor:
    """Sum over the width, shape (P,), by adding its second half to its first, and so on."""
    while (width := entries_PD.shape[1]) > 1:
        half = (width + 1) // 2
        added_PD = entries_PD[:, : width - half] + entries_PD[:, half:]
        middle_PD = entries_PD[:, width - half : half]  # an odd width leaves one over
        entries_PD = torch.cat([added_PD, middle_PD], dim=1) if width % 2 else added_PD
    return entries_PD[:, 0]


def _divided(numerator: Tensor, root: Tensor, eps: float) -> Tensor:
    """numerator / (root + eps); 0 where that is 0 / 0, which eps = 0 and no gradient can bring."""
    if eps > 0:
        return numerator / (root + eps)
    return (numerator / root).masked_fill_(root == 0, 0.0)
