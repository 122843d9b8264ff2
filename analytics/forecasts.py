"""Forecasts for every number of ranks and batch size, and the same batches for who asks more.

A forecast draws its batches by seed and ranks; drawn_lengths draws the very same ones, so that an
advice speaks of the batches whose shares stand in the table above it.

Before: training/planning/forecast.py.   After: profile.py, memory.py, advice.py.
Price: some seconds for the usual table; the balanced placements deal out sequence by sequence.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from training.planning.balance import load_of_ranks, straggler_share
from training.planning.cost import CostModel
from training.planning.forecast import FORECAST_PLACEMENTS, forecast_stragglers
from training.planning.longest_first import lpt_free
from training.planning.lookahead import look_ahead
from training.planning.windows import training_windows

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SEQUENCES_PER_RANK = (8, 32, 128)
MOST_SEQUENCES = 65_536  # of a global batch, in the table; the size that was asked for always is


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Which global batches a forecast speaks of."""

    num_ranks: int
    sequences_per_rank: int
    num_batches: int
    seed: int


def forecast_table(
    length_U: Ints,
    cost: CostModel,
    *,
    ranks: tuple[int, ...],
    sequences_per_rank: int,
    sizes: tuple[int, ...] = SEQUENCES_PER_RANK,
    seed: int,
) -> list[dict[str, Any]]:
    """The forecasts as plain values, for every number of ranks, batch size and placement.

    length_U: events per user that are trained on, shape (num_users,). sizes: further mean numbers
    of sequences per rank beside sequences_per_rank, left out where a global batch would be large.
    """
    return [
        dataclasses.asdict(forecast)
        for num_ranks in sorted(set(ranks))
        for size in sorted({sequences_per_rank, *sizes})
        if size == sequences_per_rank or num_ranks * size <= MOST_SEQUENCES
        for forecast in forecast_stragglers(
            length_U,
            cost,
            num_ranks=num_ranks,
            sequences_per_rank=size,
            seed=seed,
            placements=FORECAST_PLACEMENTS,
        )
    ]


def setting_of(
    forecasts: list[dict[str, Any]], *, num_ranks: int, sequences_per_rank: int, seed: int
) -> Setting:
    """The setting of the forecasts for a number of ranks and sequences; they are in the table."""
    num_batches = next(
        entry["num_batches"]
        for entry in forecasts
        if (entry["num_ranks"], entry["sequences_per_rank"]) == (num_ranks, sequences_per_rank)
    )
    return Setting(
        num_ranks=num_ranks,
        sequences_per_rank=sequences_per_rank,
        num_batches=num_batches,
        seed=seed,
    )


def drawn_lengths(length_U: Ints, setting: Setting) -> list[Ints]:
    """The lengths of the global batches that the forecast of this setting draws."""
    batch = setting.num_ranks * setting.sequences_per_rank
    replace = len(length_U) < batch
    rng = np.random.default_rng([setting.seed, setting.num_ranks])  # as forecast.py does
    return [rng.choice(length_U, size=batch, replace=replace) for _ in range(setting.num_batches)]


def lookahead_share(costs: list[Floats], setting: Setting, *, window: int) -> float:
    """Straggler share balanced by cost, the batches dealt anew over windows of so many.

    costs: of each drawn batch the cost of its sequences [s].
    """
    rng = np.random.default_rng([setting.seed, setting.num_ranks, window])
    together_M = np.concatenate(costs)
    ends = np.cumsum([len(cost_B) for cost_B in costs])[:-1]
    dealt = look_ahead(
        np.split(np.arange(len(together_M)), ends),
        together_M,
        num_ranks=setting.num_ranks,
        window=window,
        rng=rng,
    )
    loads = []
    for batch in dealt:
        cost_B = together_M[batch]
        rank_B = lpt_free(cost_B, setting.num_ranks, rng)
        loads.append(load_of_ranks(cost_B, rank_B, setting.num_ranks))
    lost = straggler_share(loads)
    assert lost is not None  # a setting has two ranks or more
    return lost


def cut_lengths(length_U: Ints, cost: CostModel, setting: Setting) -> tuple[Ints, int]:
    """Lengths of the training windows when giants are cut, and how many users were cut."""
    windows = training_windows(
        length_U,
        cost,
        num_ranks=setting.num_ranks,
        batch_sequences=setting.num_ranks * setting.sequences_per_rank,
    )
    return windows.lengths, len(np.unique(windows.sequence[len(length_U) :]))
