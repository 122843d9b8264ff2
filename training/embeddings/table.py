"""One rank's share of an embedding table, and the one optimiser step a row gets per batch.

Lookup and apply know nothing of other ranks: row_placement.py says which rows are here, exchange.py
carries rows and gradients between ranks. gradient_sum.py adds, optimizers.py steps.

Shape letters: M rows of this share, D width, Q requested rows, P distinct rows among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.config import TableConfig
from training.embeddings.gradient_sum import summed_by_row
from training.embeddings.memory import refuse_what_does_not_fit
from training.embeddings.optimizers import first_state, row_rule
from training.embeddings.row_placement import RowPlacement, row_placement
from training.randomness import first_weights


class ShardedTable:
    """Rows with an optimiser that leaves a row without a gradient unchanged.

    That a row without a gradient does not change is what lets it be fetched early. The first
    weights are normal with variance 1 / width and depend on the row id and the seed alone, so
    tables that are to start differently need different seeds.
    Raises ConfigError when this rank's share does not fit into the device's free memory.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        rank: int,
        world_size: int,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        refuse_what_does_not_fit([config], world_size=world_size, device=device)
        self.config = config
        self.placement: RowPlacement = row_placement(config, world_size)
        self._rule = row_rule(config)
        self.weight_MD = torch.from_numpy(
            first_weights(
                seed=seed,
                row_ids_M=self.placement.local_ids(rank),
                width=config.width,
                scale=config.width**-0.5,
            )
        ).to(device or torch.device("cpu"))
        self.state = first_state(self._rule, len(self.weight_MD), device)

    def lookup(self, places_Q: Tensor) -> Tensor:
        """A copy of the rows at these places; shape (Q, D)."""
        return self.weight_MD.index_select(0, places_Q)

    def summed(self, places_Q: Tensor, gradient_QD: Tensor) -> tuple[Tensor, Tensor]:
        """(distinct places, the sum of each one's gradients in the order of Q)."""
        return summed_by_row(places_Q, gradient_QD)

    def apply(self, places_Q: Tensor, gradient_QD: Tensor, step: int) -> None:
        """One optimiser step; a place may appear several times, its gradients are summed first.

        The sum runs in the order of Q, so the same requests give the same bits. A batch may come in
        several calls with disjoint places, also from several threads: the bits are those of one
        call. `step` counts the batches from 0 and is the same for every part of one batch; no rule
        here reads it, for all of them count by row (optimizers.py says why).
        """
        del step
        if len(places_Q) == 0:
            return
        places_P, gradient_PD = self.summed(places_Q, gradient_QD)
        weight_PD = self.weight_MD.index_select(0, places_P)
        state_P = {name: kept.index_select(0, places_P) for name, kept in self.state.items()}
        self._rule.step(weight_PD, gradient_PD, state_P)
        self.weight_MD.index_copy_(0, places_P, weight_PD)
        for name, stepped in state_P.items():
            self.state[name].index_copy_(0, places_P, stepped)
