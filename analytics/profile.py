"""What a set of sequences will cost on many ranks, before any is paid for, and what to do about it.

Lengths, popularity, collisions, gaps; the predicted straggler share per number of ranks, batch size
and placement, priced; memory of a rank; advice. The assumptions are part of the profile and are
printed beside the numbers.

Before: a sequence store, a cost model, a price.   After: the receipt, `seqscale profile`.
Price: seconds; 100 million events take under a minute. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from analytics.advice import advise
from analytics.batches import (
    BATCH_SEQUENCES,
    TrainedEvents,
    batch_table,
    hot_rows,
    trained_events,
)
from analytics.errors import ConfigError
from analytics.forecasts import SEQUENCES_PER_RANK, Setting, forecast_table, setting_of
from analytics.gaps import gap_profile
from analytics.group_size import MIN_GROUP_USERS, check_group_users
from analytics.lengths import length_profile
from analytics.memory import HSTU_8X1024, ModelShape, memory_profile
from analytics.popularity import item_counts, popularity_profile
from analytics.prepared import published_rows
from analytics.profile_assumptions import assumptions
from analytics.profile_records import forecast_records, profile_records
from analytics.profile_report import profile_markdown
from analytics.schema import DimPrice, to_mapping
from analytics.store import SequenceStore
from training.planning.cost import CostModel
from training.planning.forecast import FORECAST_RANKS

__all__ = [
    "PROFILE_VERSION",
    "Profile",
    "forecast_records",
    "profile_markdown",
    "profile_records",
    "profile_store",
]

PROFILE_VERSION = 2  # 1 had neither version, advice, memory, gaps nor a minimum group
_DEVICE_HOURS = 1000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Everything `seqscale profile` says; plain values only, so it travels as JSON."""

    profile_version: int
    min_group_users: int  # nothing about users is told that fewer stand behind
    dataset: dict[str, Any]  # name, id, users, items, events, dropped rows
    lengths: dict[str, Any] | None  # lengths.length_profile of training histories
    popularity: dict[str, Any]  # popularity.popularity_profile
    batches: list[dict[str, Any]]  # batches.batch_table, by size of the global batch
    hot_rows: list[dict[str, Any]]  # batches.hot_rows
    gaps: dict[str, Any] | None  # gaps.gap_profile; None without times
    forecasts: list[dict[str, Any]]  # StragglerForecast with its price
    memory: dict[str, Any]  # memory.memory_profile
    advice: list[dict[str, Any]]  # advice.Advice
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
    shape: ModelShape = HSTU_8X1024,
    max_trained_events: int | None = None,
    min_group_users: int = MIN_GROUP_USERS,
    sizes_per_rank: tuple[int, ...] = SEQUENCES_PER_RANK,
    batch_sizes: tuple[int, ...] = BATCH_SEQUENCES,
) -> Profile:
    """Profile a store for training a model of a shape under a cost model at a price.

    sequences_per_rank: mean sequences of one rank in one step; the forecasts are for this and for
    sizes_per_rank. global_batch_sequences: sequences of one step over all ranks; collisions are
    told of this and of batch_sizes, advice is given for it. max_trained_events: of longer training
    histories the newest events are trained on; None: all.
    Raises ConfigError for fewer than two ranks or less than one sequence.
    """
    _check(ranks, sequences_per_rank, global_batch_sequences, num_negatives, min_group_users)
    trained = trained_events(store, max_events=max_trained_events)
    advised_ranks = max(2, global_batch_sequences // sequences_per_rank)
    forecasts = forecast_table(
        trained.length_U,
        cost,
        ranks=(*ranks, advised_ranks),
        sequences_per_rank=sequences_per_rank,
        sizes=sizes_per_rank,
        seed=seed,
    )
    settings = _settings(forecasts, sequences_per_rank, seed)
    memory = memory_profile(
        trained.length_U,
        cost,
        shape,
        num_items=store.header.num_items,
        settings=list(settings.values()),
    )
    rows = _rows(
        store,
        trained,
        sizes=batch_sizes,
        asked=global_batch_sequences,
        num_negatives=num_negatives,
        seed=seed,
        min_group_users=min_group_users,
    )
    advice = advise(
        trained.length_U,
        cost,
        settings[advised_ranks],
        rows["hot_rows"],
        row_bytes=memory["row_bytes"],
        min_group_users=min_group_users,
    )
    return Profile(
        profile_version=PROFILE_VERSION,
        min_group_users=min_group_users,
        dataset=_dataset(store, min_group_users),
        lengths=length_profile(trained.length_U, min_group_users=min_group_users),
        gaps=gap_profile(store, seed=seed, min_group_users=min_group_users),
        forecasts=[_priced(entry, price) for entry in forecasts],
        memory=memory,
        advice=[entry.plain() for entry in advice],
        cost=dataclasses.asdict(cost),
        price=dict(to_mapping(price)),
        assumptions=assumptions(
            store,
            cost,
            price,
            forecasts,
            seed=seed,
            num_negatives=num_negatives,
            max_trained_events=max_trained_events,
            min_group_users=min_group_users,
        ),
        **rows,
    )


def _settings(
    forecasts: list[dict[str, Any]], sequences_per_rank: int, seed: int
) -> dict[int, Setting]:
    """The setting of every number of ranks, for the number of sequences that was asked for."""
    return {
        entry["num_ranks"]: setting_of(
            forecasts,
            num_ranks=entry["num_ranks"],
            sequences_per_rank=sequences_per_rank,
            seed=seed,
        )
        for entry in forecasts
    }


def _rows(
    store: SequenceStore,
    trained: TrainedEvents,
    *,
    sizes: tuple[int, ...],
    asked: int,
    num_negatives: int,
    seed: int,
    min_group_users: int,
) -> dict[str, Any]:
    """What is said of item rows: popularity, batches by size, hot rows of the size asked for."""
    count_I = item_counts(store)
    within = [size for size in sizes if size <= store.header.num_users]
    return {
        "popularity": popularity_profile(count_I),
        "batches": batch_table(
            trained,
            sizes=(*within, asked),
            num_negatives=num_negatives,
            seed=seed,
            min_group_users=min_group_users,
        ),
        "hot_rows": hot_rows(
            trained, count_I, batch_sequences=asked, num_negatives=num_negatives, seed=seed
        ),
    }


def _check(
    ranks: tuple[int, ...],
    sequences_per_rank: int,
    global_batch_sequences: int,
    num_negatives: int,
    min_group_users: int,
) -> None:
    check_group_users(min_group_users)
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


def _priced(forecast: dict[str, Any], price: DimPrice) -> dict[str, Any]:
    """A forecast with what the lost share costs: per 1,000 device-hours, and per hour of all."""
    wasted = forecast["straggler_share"] * price.device_hour_cost
    return forecast | {
        "straggler_cost_per_1000_device_hours": wasted * _DEVICE_HOURS,
        "straggler_cost_per_hour": wasted * forecast["num_ranks"],
    }


def _dataset(store: SequenceStore, min_group_users: int) -> dict[str, Any]:
    header = store.header
    num_rows_read, dropped = published_rows(header, min_group_users)
    return {
        "name": header.dataset_name,
        "dataset_id": header.dataset_id,
        "num_users": header.num_users,
        "num_items": header.num_items,
        "num_events": header.num_events,
        "num_in_split": dict(header.num_in_split),
        "num_rows_read": num_rows_read,
        "dropped_rows": dropped,
        "tied_share": header.tied_share,
        "has_times": header.has_times,
        "is_pseudonymised": header.pseudonyms is not None,
        "terms": header.terms,
    }
