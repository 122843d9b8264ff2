"""What a training step would hold in memory on each rank: item table, activations.

Stated formulas, not measurements: they say which of table, longest history and fullest rank
decides.

Before: a store's lengths and the shape of a model.   After: profile.py.
Price: one random and one balanced placement of twenty batches for each number of ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.forecasts import Setting, drawn_lengths
from analytics.group_size import rounded_up
from training.config import ModelConfig
from training.planning.balance import load_of_ranks
from training.planning.cost import CostModel
from training.planning.placement import PLACEMENT_FUNCTIONS

Ints = npt.NDArray[np.int64]

_FLOAT_BYTES = 4
MEMORY_PLACEMENTS = ("random_equal", "lpt_free")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What of a model decides its memory."""

    name: str
    embedding_dim: int  # width of an item row and of the hidden state
    num_blocks: int
    saved_per_event: int  # numbers kept for the backward pass, per event and block
    saved_words: str  # the same in words
    bytes_per_element: int  # of an activation

    @property
    def event_bytes(self) -> int:
        """Activations kept for the backward pass, per event: all blocks, the input, the output."""
        saved = self.num_blocks * self.saved_per_event + 2 * self.embedding_dim
        return saved * self.bytes_per_element


def shape_of(model: ModelConfig) -> ModelShape:
    """The shape of the trainer's own model: float32, attention without materialised scores."""
    return ModelShape(
        name=f"SASRec {model.num_blocks} blocks x {model.embedding_dim}",
        embedding_dim=model.embedding_dim,
        num_blocks=model.num_blocks,
        saved_per_event=8 * model.embedding_dim + 2 * model.ffn_dim,
        saved_words="8 x width (two residual inputs, two norms, query, key, value, attention) and "
        "2 x feed-forward width",
        bytes_per_element=_FLOAT_BYTES,
    )


HSTU_8X1024 = ModelShape(
    name="HSTU 8 layers x 1024",
    embedding_dim=1024,
    num_blocks=8,
    saved_per_event=13 * 1024,
    saved_words="13 x width (input, norm, four projections before and after SiLU, attention, its "
    "norm, the gated product)",
    bytes_per_element=2,
)


def memory_profile(
    length_U: Ints,
    cost: CostModel,
    shape: ModelShape,
    *,
    num_items: int,
    settings: list[Setting],
) -> dict[str, Any]:
    """Bytes of the item table and of activations, by number of ranks and placement.

    length_U: events per user that are trained on, shape (num_users,). The longest history and the
    fullest rank are told as the next power of two, so that they name nobody's length.
    """
    row_bytes = shape.embedding_dim * _FLOAT_BYTES + _FLOAT_BYTES
    longest = rounded_up(int(length_U.max(initial=0)))
    return {
        "model": dataclasses.asdict(shape),
        "row_bytes": row_bytes,
        "table_bytes": num_items * row_bytes,
        "event_bytes": shape.event_bytes,
        "longest_events": longest,
        "longest_activation_bytes": longest * shape.event_bytes,
        "by_ranks": [
            {
                "num_ranks": setting.num_ranks,
                "sequences_per_rank": setting.sequences_per_rank,
                "placement": placement,
                "table_bytes": -(-num_items // setting.num_ranks) * row_bytes,
                "fullest_rank_events": events,
                "fullest_rank_bytes": events * shape.event_bytes,
            }
            for setting in settings
            for placement, events in _fullest(length_U, cost, setting).items()
        ],
        "assumptions": assumptions(shape),
    }


def assumptions(shape: ModelShape) -> list[str]:
    """What the figures rest on, in words."""
    return [
        f"Item table: items x ({shape.embedding_dim} float32 and one float32 of row-wise Adagrad), "
        "rows dealt evenly to the ranks.",
        f"Activations of {shape.name}, for every event: {shape.num_blocks} blocks x "
        f"{shape.saved_per_event:,} numbers kept for the backward pass ({shape.saved_words}), and "
        f"2 x width, {shape.bytes_per_element} bytes each = {shape.event_bytes:,} bytes; attention "
        "without materialised scores, no recomputing. Dense parameters, their optimiser, negatives "
        "and the exchange are not in it.",
        "The longest history and the fullest rank are rounded up to the next power of two, so that "
        "they tell nobody's length.",
    ]


def _fullest(length_U: Ints, cost: CostModel, setting: Setting) -> dict[str, int]:
    """Events of the fullest rank over the drawn batches, rounded up, by placement."""
    most = dict.fromkeys(MEMORY_PLACEMENTS, 0.0)
    rng = np.random.default_rng([setting.seed, setting.num_ranks, 5])
    for length_B in drawn_lengths(length_U, setting):
        cost_B = cost.sequence_cost_s(length_B)
        for name in MEMORY_PLACEMENTS:
            rank_B = PLACEMENT_FUNCTIONS[name](cost_B, setting.num_ranks, rng)
            event_R = load_of_ranks(length_B.astype(np.float64), rank_B, setting.num_ranks)
            most[name] = max(most[name], float(event_R.max()))
    return {name: rounded_up(events) for name, events in most.items()}
