"""The records of a profile: what a data set looks like and what it would cost on many ranks.

Nothing here tells of fewer users than a minimum group (analytics/group_size.py): where a value
would, it is NULL, moved inwards, merged or rounded up to a power of two, as its doc says.
Standard library only.
"""

from __future__ import annotations

from analytics.records import column, table


@table(
    "fact_profile", key=("pipeline_id", "dataset_id"), grain="one data set profiled by a pipeline"
)
class FactProfile:
    """How uneven a set of sequences is, one line a profile."""

    pipeline_id: str = column("The pipeline that made the profile")
    dataset_id: str = column("The prepared set")
    min_group_users: int = column("Users that must stand behind a published value", lower=1)
    num_users: int = column("Users with a training history", lower=0)
    mean_length: float | None = column(
        "Mean training history; NULL for fewer users than the minimum group", unit="events", lower=0
    )
    length_p25: float | None = column("Lower quartile of lengths", unit="events", lower=0)
    length_p50: float | None = column("Median length", unit="events", lower=0)
    length_p75: float | None = column("Upper quartile of lengths", unit="events", lower=0)
    length_p90: float | None = column("Length that 10 % of users reach", unit="events", lower=0)
    length_p99: float | None = column(
        "Length that 1 % of users, at least the minimum group, reach", unit="events", lower=0
    )
    longest_length_rounded: int | None = column(
        "Longest training history, rounded up to a power of two", unit="events", lower=1
    )
    tail_index: float | None = column(
        "Hill's tail index of lengths; NULL where it cannot be defended", lower=0
    )
    tail_index_error: float | None = column("Standard error of tail_index", lower=0)
    num_tail_users: int | None = column("Longest histories tail_index is over", lower=1)
    num_longest_users: int | None = column(
        "Longest 1 % of users, at least the minimum group", lower=1
    )
    longest_event_share: float | None = column(
        "Share of training events of num_longest_users", lower=0, upper=1
    )
    longest_pair_share: float | None = column(
        "Their share of event pairs, which attention works on", lower=0, upper=1
    )
    padded_to_longest_share: float | None = column(
        "Share of padding if every history were padded to longest_length_rounded", lower=0, upper=1
    )
    zipf_exponent: float = column("Zipf exponent of item popularity", lower=0)
    top_1_percent_event_share: float = column(
        "Share of events on the most popular 1 % of items", lower=0, upper=1
    )
    top_10_percent_event_share: float = column(
        "Share of events on the most popular 10 % of items", lower=0, upper=1
    )
    once_item_share: float = column("Share of items with one event", lower=0, upper=1)
    tied_share: float = column(
        "Share of events whose user has another at that time", lower=0, upper=1
    )
    zero_gap_share: float | None = column(
        "Share of gaps between a user's consecutive events that are 0; NULL without times",
        lower=0,
        upper=1,
    )
    gap_p10_s: float | None = column("Gap that 10 % of gaps do not exceed", unit="s", lower=0)
    gap_p50_s: float | None = column("Median gap", unit="s", lower=0)
    gap_p90_s: float | None = column("Gap that 10 % of gaps reach", unit="s", lower=0)
    gap_p99_s: float | None = column("Gap that 1 % of gaps reach", unit="s", lower=0)
    model_name: str = column("Model whose memory is told")
    row_bytes: int = column("Item row and its optimiser state", unit="bytes", lower=0)
    table_bytes: int = column("Item table and optimiser state, all ranks", unit="bytes", lower=0)
    event_bytes: int = column("Activations kept for one event", unit="bytes", lower=0)
    longest_activation_bytes: int = column(
        "Activations of the longest history, rounded up to a power of two of events",
        unit="bytes",
        lower=0,
    )


@table(
    "fact_length_bin",
    key=("pipeline_id", "dataset_id", "from_length"),
    grain="one bin of the histogram of training lengths",
)
class FactLengthBin:
    """Users by length of training history; bins with fewer users than the minimum are merged."""

    pipeline_id: str = column("The pipeline that made the profile")
    dataset_id: str = column("The prepared set")
    from_length: int = column("Shortest length of the bin", unit="events", lower=0)
    to_length: int = column("First length beyond the bin", unit="events", lower=1)
    num_users: int = column("Users in the bin", lower=1)
    num_events: int = column("Their training events", lower=0)


@table(
    "fact_batch_profile",
    key=("pipeline_id", "dataset_id", "batch_sequences"),
    grain="one size of a batch",
)
class FactBatchProfile:
    """What consecutive batches of one size share, and what padding them would waste."""

    pipeline_id: str = column("The pipeline that made the profile")
    dataset_id: str = column("The prepared set")
    batch_sequences: int = column("Sequences in the batch", lower=1)
    num_negatives: int = column("Items drawn beside each sequence", lower=0)
    num_batches: int = column("Consecutive batches the shares are over", lower=1)
    collision_share: float | None = column(
        "Share of a batch's distinct rows that the batch before touches too", lower=0, upper=1
    )
    history_collision_share: float | None = column(
        "The same without drawn negatives", lower=0, upper=1
    )
    mean_ids: float = column("Ids of a batch, repeats counted", lower=0)
    mean_rows: float = column("Distinct rows of a batch", lower=0)
    deduplication_factor: float = column("mean_ids / mean_rows", lower=1)
    padding_share: float | None = column(
        "Share of padding if each batch were padded to its longest; NULL where a batch would hold "
        "more than half of the users",
        lower=0,
        upper=1,
    )


@table(
    "fact_memory_forecast",
    key=("pipeline_id", "dataset_id", "num_ranks", "sequences_per_rank", "placement"),
    grain="one number of ranks and placement",
)
class FactMemoryForecast:
    """What a rank would hold, by stated formulas."""

    pipeline_id: str = column("The pipeline that made the forecast")
    dataset_id: str = column("The prepared set")
    num_ranks: int = column("Ranks the forecast is for", lower=1)
    sequences_per_rank: int = column("Mean sequences per rank and global batch", lower=1)
    placement: str = column("How sequences are placed: random_equal or lpt_free")
    table_bytes: int = column("A rank's part of the item table", unit="bytes", lower=0)
    fullest_rank_events: int = column(
        "Events of the fullest rank, rounded up to a power of two", unit="events", lower=1
    )
    fullest_rank_bytes: int = column("Activations of these events", unit="bytes", lower=0)


@table(
    "fact_straggler_forecast",
    key=("pipeline_id", "num_ranks", "sequences_per_rank", "placement"),
    grain="one number of ranks, batch size and placement",
)
class FactStragglerForecast:
    """Share of rank time that would be lost to waiting for the slowest rank, by cost model."""

    pipeline_id: str = column("The pipeline that made the forecast")
    dataset_id: str = column("The prepared set")
    num_ranks: int = column("Ranks the forecast is for", lower=1)
    sequences_per_rank: int = column("Mean sequences per rank and global batch", lower=1)
    placement: str = column(
        "How sequences are placed: random_equal, lpt_equal, lpt_free or lookahead"
    )
    straggler_share: float = column("1 - sum of mean cost / sum of largest cost", lower=0, upper=1)
    bound_share: float = column(
        "The least any whole-sequence placement can reach", lower=0, upper=1
    )
    straggler_cost_per_1000_device_hours: float = column(
        "straggler_share x price of 1,000 device-hours", lower=0
    )
    currency: str = column("ISO 4217 code of straggler_cost_per_1000_device_hours")
    instance_type: str = column("Instance whose price was taken")


@table(
    "fact_profile_advice",
    key=("pipeline_id", "dataset_id", "kind"),
    grain="one kind of advice",
)
class FactProfileAdvice:
    """What follows from a profile, with its number and the effect to expect."""

    pipeline_id: str = column("The pipeline that made the profile")
    dataset_id: str = column("The prepared set")
    kind: str = column("history_cap, lookahead_window, cut_giants or hot_rows")
    is_needed: bool = column("Whether there is something to do that helps")
    recommendation: str = column("The advice in words")
    number: float | None = column("What to set; NULL where there is nothing to do")
    unit: str = column("Unit of number: events, batches or rows")
    measure: str = column("Share it is to lower: bound_share, straggler_share or collision_share")
    before_share: float = column("That share as it is", lower=0, upper=1)
    after_share: float = column("That share after it", lower=0, upper=1)
    effect_share: float = column("before_share - after_share", lower=0, upper=1)
    given_up_share: float | None = column(
        "Share of training events that a cap loses or that cuts read twice",
        lower=0,
        upper=1,
    )
    num_ranks: int = column("Ranks the advice is for", lower=2)
    sequences_per_rank: int = column("Mean sequences per rank the advice is for", lower=1)
