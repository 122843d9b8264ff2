"""What balance would be worth on more ranks than there are, before any is paid for.

Global batches are drawn from the data's own lengths, with replacement when the batch of that many
ranks is larger than the data: "as if there were more users like these".
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from training.planning.balance import Floats, bound_share, load_of_ranks, straggler_share
from training.planning.cost import CostModel
from training.planning.lookahead import look_ahead
from training.planning.placement import PLACEMENT_FUNCTIONS

Ints = npt.NDArray[np.int64]
FORECAST_RANKS = (2, 8, 64, 256)
# What can be forecast: placements, and look-ahead with free-count placement.
FORECAST_PLACEMENTS = ("random_equal", "lpt_equal", "lpt_free", "lookahead")
LOOKAHEAD_BATCHES = 4
_MOST_SEQUENCES = 262_144  # over all batches of a forecast: about a second for four placements


@dataclasses.dataclass(frozen=True, kw_only=True)
class StragglerForecast:
    """Predicted straggler share of one number of ranks and one placement, by cost model."""

    num_ranks: int
    sequences_per_rank: int
    placement: str  # one of FORECAST_PLACEMENTS
    straggler_share: float  # 1 - sum of mean load / sum of largest load
    # the least that any placement of whole sequences reaches on the batches as drawn; look-ahead
    # deals these anew and may lie below
    bound_share: float
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
    placements: tuple[str, ...] = ("random_equal", "lpt_free"),
) -> list[StragglerForecast]:
    """The share lost on `num_ranks` >= 2 ranks under each placement, over the same batches.

    training_length_N: events of each sequence, shape (N,), N >= 1. Large global batches are drawn
    fewer times than num_batches, so that together they have at most 262,144 sequences, but at
    least one window of look-ahead (4), or num_batches if that is less.
    placements: of FORECAST_PLACEMENTS, in the order in which they are wanted.
    Raises ValueError for fewer than two ranks, no sequence or an unknown placement.
    """
    unknown = sorted(set(placements) - set(FORECAST_PLACEMENTS))
    if unknown:
        raise ValueError(f"'{unknown[0]}' cannot be forecast; {FORECAST_PLACEMENTS} can")
    if num_ranks < 2:
        raise ValueError("one rank never waits for another; forecast for two or more")
    if len(training_length_N) == 0:
        raise ValueError("there is no sequence to forecast from")
    cost_N = cost.sequence_cost_s(training_length_N)
    batch = num_ranks * sequences_per_rank
    replace = len(cost_N) < batch
    num_batches = min(num_batches, max(LOOKAHEAD_BATCHES, _MOST_SEQUENCES // batch))
    rng = np.random.default_rng([seed, num_ranks])
    drawn = [rng.choice(cost_N, size=batch, replace=replace) for _ in range(num_batches)]
    bound = bound_share(drawn, num_ranks)
    forecasts = []
    for name in placements:
        share = _share(name, drawn, num_ranks, rng)
        assert share is not None and bound is not None  # two ranks or more
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


def _share(
    name: str, drawn: list[Floats], num_ranks: int, rng: np.random.Generator
) -> float | None:
    """Straggler share of one placement over the drawn batches."""
    costs = drawn
    if name == "lookahead":
        name = "lpt_free"
        together_M = np.concatenate(drawn)
        batches = np.split(np.arange(len(together_M)), np.cumsum([len(c) for c in drawn])[:-1])
        dealt = look_ahead(
            batches, together_M, num_ranks=num_ranks, window=LOOKAHEAD_BATCHES, rng=rng
        )
        costs = [together_M[batch] for batch in dealt]
    place = PLACEMENT_FUNCTIONS[name]
    return straggler_share(
        [load_of_ranks(cost_B, place(cost_B, num_ranks, rng), num_ranks) for cost_B in costs]
    )
