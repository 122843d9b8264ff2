"""What balance would be worth on more ranks than there are, before any is paid for.

Global batches are drawn from the data's own lengths, with replacement when the batch of that many
ranks is larger than the data: "as if there were more users like these".
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from training.planning.cost import CostModel
from training.planning.placement import (
    PLACEMENT_FUNCTIONS,
    bound_load,
    load_of_ranks,
    straggler_share,
)

Ints = npt.NDArray[np.int64]
FORECAST_RANKS = (2, 8, 64, 256)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StragglerForecast:
    """Predicted straggler share of one number of ranks and one placement, by cost model."""

    num_ranks: int
    sequences_per_rank: int
    placement: str
    straggler_share: float  # 1 - sum of mean load / sum of largest load
    bound_share: float  # the least that any whole-sequence placement reaches on the same batches
    num_batches: int  # global batches the shares are over
    with_replacement: bool  # the data has fewer users than one global batch


def forecast_stragglers(
    training_length_N: Ints,
    cost: CostModel,
    *,
    num_ranks: int,
    sequences_per_rank: int,
    seed: int,
    num_batches: int = 20,
) -> list[StragglerForecast]:
    """The share lost on `num_ranks` >= 2 ranks under every placement, over the same batches.

    training_length_N: events of each sequence, shape (N,), N >= 1.
    Raises ValueError for fewer than two ranks or no sequence.
    """
    if num_ranks < 2:
        raise ValueError("one rank never waits for another; forecast for two or more")
    if len(training_length_N) == 0:
        raise ValueError("there is no sequence to forecast from")
    cost_N = cost.sequence_cost_s(training_length_N)
    batch = num_ranks * sequences_per_rank
    replace = len(cost_N) < batch
    rng = np.random.default_rng([seed, num_ranks])
    drawn = [rng.choice(cost_N, size=batch, replace=replace) for _ in range(num_batches)]
    mean = sum(float(c.sum()) / num_ranks for c in drawn)
    bound = max(0.0, 1.0 - mean / max(sum(bound_load(c, num_ranks) for c in drawn), 1e-300))
    forecasts = []
    for name, place in PLACEMENT_FUNCTIONS.items():
        loads = [load_of_ranks(c, place(c, num_ranks, rng), num_ranks) for c in drawn]
        share = straggler_share(loads)
        assert share is not None  # two ranks or more
        forecasts.append(
            StragglerForecast(
                num_ranks=num_ranks,
                sequences_per_rank=sequences_per_rank,
                placement=name,
                straggler_share=share,
                bound_share=bound,
                num_batches=num_batches,
                with_replacement=replace,
            )
        )
    return forecasts
