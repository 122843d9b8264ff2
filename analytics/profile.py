"""What a set of sequences will cost on many ranks, before any is paid for.

Length and popularity skew of the data, collisions of consecutive batches, and the predicted
straggler share per number of ranks with and without balancing, priced. The assumptions are part of
the profile and are printed beside the numbers.

Before: a sequence store, a cost model, a price.   After: the receipt, `seqscale profile`.
Price: seconds; needs neither torch nor a GPU.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from analytics.errors import ConfigError
from analytics.profile_report import profile_markdown
from analytics.schema import DimPrice, FactStragglerForecast, to_mapping
from analytics.skew import (
    collision_profile,
    item_counts,
    length_profile,
    popularity_profile,
)
from analytics.store import NUM_HELD_OUT, SequenceStore
from training.planning.cost import CostModel
from training.planning.forecast import FORECAST_RANKS, forecast_stragglers

__all__ = ["Profile", "forecast_records", "profile_markdown", "profile_store"]

_DEVICE_HOURS = 1000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Everything `seqscale profile` says; plain values only, so it travels as JSON."""

    dataset: dict[str, Any]  # name, id, users, items, events, dropped rows
    lengths: dict[str, Any]  # skew.length_profile of training histories
    popularity: dict[str, Any]  # skew.popularity_profile
    collisions: dict[str, Any]  # skew.collision_profile
    forecasts: list[dict[str, Any]]  # StragglerForecast with its price, by ranks and placement
    cost: dict[str, Any]  # CostModel
    price: dict[str, Any]  # DimPrice
    assumptions: list[str]


def profile_store(
    store: SequenceStore,
    cost: CostModel,
    *,
    price: DimPrice,
    sequences_per_rank: int,
    global_batch_sequences: int,
    ranks: tuple[int, ...] = FORECAST_RANKS,
    seed: int,
    num_negatives: int,
) -> Profile:
    """Profile a store for training under a cost model at a price.

    sequences_per_rank: mean sequences of one rank in one step, for the forecasts.
    global_batch_sequences: sequences of one step over all ranks, for the collisions.
    Raises ConfigError for fewer than two ranks or less than one sequence.
    """
    if any(count < 2 for count in ranks):
        raise ConfigError(
            f"ranks are {list(ranks)}; one rank never waits for another, so a forecast needs at "
            "least 2. Raise --gpus."
        )
    if sequences_per_rank < 1 or global_batch_sequences < 1 or num_negatives < 0:
        raise ConfigError(
            f"sequences per rank ({sequences_per_rank}) and per global batch "
            f"({global_batch_sequences}) must be at least 1, negatives ({num_negatives}) at least "
            "0. Change the one that is too small."
        )
    training_length_U = store.training_lengths()
    forecasts = [
        _priced(dataclasses.asdict(forecast), price)
        for num_ranks in sorted(set(ranks))
        for forecast in forecast_stragglers(
            training_length_U,
            cost,
            num_ranks=num_ranks,
            sequences_per_rank=sequences_per_rank,
            seed=seed,
        )
    ]
    return Profile(
        dataset=_dataset(store),
        lengths=length_profile(training_length_U),
        popularity=popularity_profile(item_counts(store)),
        collisions=collision_profile(
            store, batch_sequences=global_batch_sequences, num_negatives=num_negatives, seed=seed
        ),
        forecasts=forecasts,
        cost=dataclasses.asdict(cost),
        price=dict(to_mapping(price)),
        assumptions=_assumptions(cost, price, forecasts, sequences_per_rank, seed),
    )


def forecast_records(
    profile: Profile, *, pipeline_id: str, dataset_id: str
) -> list[FactStragglerForecast]:
    """The forecasts as the warehouse keeps them."""
    return [
        FactStragglerForecast(
            pipeline_id=pipeline_id,
            dataset_id=dataset_id,
            num_ranks=entry["num_ranks"],
            sequences_per_rank=entry["sequences_per_rank"],
            placement=entry["placement"],
            straggler_share=entry["straggler_share"],
            bound_share=entry["bound_share"],
            straggler_cost_per_1000_device_hours=entry["straggler_cost_per_1000_device_hours"],
            currency=profile.price["currency"],
            instance_type=profile.price["instance_type"],
        )
        for entry in profile.forecasts
    ]


def _priced(forecast: dict[str, Any], price: DimPrice) -> dict[str, Any]:
    """A forecast with what the lost share costs: per 1,000 device-hours, and per hour of all."""
    wasted = forecast["straggler_share"] * price.device_hour_cost
    return forecast | {
        "straggler_cost_per_1000_device_hours": wasted * _DEVICE_HOURS,
        "straggler_cost_per_hour": wasted * forecast["num_ranks"],
    }


def _dataset(store: SequenceStore) -> dict[str, Any]:
    header = store.header
    return {
        "name": header.dataset_name,
        "dataset_id": header.dataset_id,
        "num_users": header.num_users,
        "num_items": header.num_items,
        "num_events": header.num_events,
        "num_rows_read": header.num_rows_read,
        "dropped_rows": dict(header.dropped_rows),
        "tied_share": header.tied_share,
        "terms": header.terms,
    }


def _assumptions(
    cost: CostModel,
    price: DimPrice,
    forecasts: list[dict[str, Any]],
    sequences_per_rank: int,
    seed: int,
) -> list[str]:
    lines = [
        f"Cost of a sequence of L events: {cost.c0_s:.3g} s + {cost.a_s:.3g} s x L + "
        f"{cost.b_s:.3g} s x L^2. Source: {cost.source}.",
        f"Lengths are training histories, the last {NUM_HELD_OUT} events of each held out.",
        f"{sequences_per_rank} sequences per rank and step on average; "
        f"{forecasts[0]['num_batches']} global batches drawn with seed {seed}.",
        "Straggler share: rank time lost to waiting for the slowest rank, 1 - sum of mean loads / "
        "sum of largest loads; communication and input are not in it.",
        "Bound: the least that any placement of whole sequences reaches on the same batches.",
        f"Price: {price.device_hour_cost:.4g} {price.currency} per device-hour of "
        f"{price.instance_type} ({price.device_name or 'no accelerator'}, {price.region}, "
        f"{price.price_date}); {price.source}.",
        "Money: share lost x price; nothing is said of what else could be saved.",
    ]
    if cost.residual_share:
        lines[0] += f" The fit is off by {cost.residual_share:.1%} on average."
    drawn_again = [str(f["num_ranks"]) for f in forecasts if f["with_replacement"]]
    if drawn_again:
        counts = ", ".join(dict.fromkeys(drawn_again))
        lines.append(
            f"On {counts} ranks a global batch is larger than the data: sequences are drawn with "
            "replacement, as if there were more users like these."
        )
    return lines
