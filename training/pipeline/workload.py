"""What a model and its batches must offer so that the engine can train them.

The engine knows no layer: it hands rows to a model and takes their gradients back.
training/sequences.py is the workload of the product's own model; another model brings its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class Batch(Protocol):
    """One rank's share of a global batch; may hold nothing."""

    @property
    def row_ids(self) -> Sequence[Tensor]:
        """Distinct ids of each table, each of shape (U,)."""
        ...

    @property
    def num_targets(self) -> int:
        """Targets on this rank."""
        ...

    @property
    def global_targets(self) -> int:
        """Targets over all ranks: what every gradient is divided by."""
        ...


class Workload(Protocol):
    """A model as the engine sees it."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters every rank holds as a whole."""
        ...

    def parts(self, batch: Any, num_parts: int) -> Sequence[Any]:
        """The batch cut into at most `num_parts` micro-batches, none of them empty."""
        ...

    def loss_sum(self, rows_T: Sequence[Tensor], part: Any) -> Tensor:
        """Sum of the losses of a part's targets; rows_T: the batch's rows of each table, (U, D)."""
        ...
