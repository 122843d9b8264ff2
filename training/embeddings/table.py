"""One rank's share of an item table, and the one optimiser step a row gets per batch.

Rows lie round-robin: id i belongs to rank i mod R, at place i // R. Lookup and apply know nothing
of ranks; training/embeddings/exchange.py carries rows and gradients between them.

Shape letters: M rows of this share, D width, Q requested rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.randomness import first_weights


class ShardedTable:
    """Item rows with row-wise Adagrad.

    Row-wise Adagrad: one accumulator a row, the running sum of the mean squared gradient; step
    w -= rate * g / (sqrt(accumulator) + eps). A row without a gradient does not change, which is
    what lets it be fetched early.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        width: int,
        rank: int,
        world_size: int,
        learning_rate: float,
        seed: int,
        eps: float = 1e-8,
    ) -> None:
        self.num_rows = num_rows
        self.width = width
        self._learning_rate = learning_rate
        self._eps = eps
        self.weight_MD = torch.from_numpy(
            first_weights(
                seed=seed,
                num_rows=num_rows,
                width=width,
                first=rank,
                stride=world_size,
                scale=width**-0.5,
            )
        )
        self.accumulator_M = torch.zeros(len(self.weight_MD))

    def lookup(self, places_Q: Tensor) -> Tensor:
        """A copy of the rows at these places; shape (Q, D)."""
        return self.weight_MD.index_select(0, places_Q)

    def apply(self, places_Q: Tensor, gradient_QD: Tensor) -> None:
        """One optimiser step; a place may appear several times, its gradients are summed first.

        The sum runs in the order of Q, so the same requests give the same bits.
        """
        if len(places_Q) == 0:
            return
        rows_P, inverse_Q = torch.unique(places_Q, return_inverse=True)
        summed_PD = torch.zeros(len(rows_P), self.width).index_add_(0, inverse_Q, gradient_QD)
        accumulator_P = self.accumulator_M[rows_P] + summed_PD.square().mean(1)
        step_PD = summed_PD / (accumulator_P.sqrt() + self._eps)[:, None]
        self.accumulator_M[rows_P] = accumulator_P
        self.weight_MD[rows_P] -= self._learning_rate * step_PD
