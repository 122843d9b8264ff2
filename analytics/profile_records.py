"""A profile as the records that the warehouse keeps of it.

Before: profile.py.   After: the flow's journal, analytics/warehouse.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analytics.schema import (
    FactBatchProfile,
    FactLengthBin,
    FactMemoryForecast,
    FactProfile,
    FactProfileAdvice,
    FactStragglerForecast,
)

if TYPE_CHECKING:  # profile.py offers these as its own
    from analytics.profile import Profile


def profile_records(profile: Profile, *, pipeline_id: str, dataset_id: str) -> list[Any]:
    """Every record of a profile: its scalars, bins, batches, forecasts, memory and advice."""
    names = {"pipeline_id": pipeline_id, "dataset_id": dataset_id}
    return [
        _scalars(profile, names),
        *_length_bins(profile, names),
        *_batches(profile, names),
        *forecast_records(profile, **names),
        *_memory(profile, names),
        *_advice(profile, names),
    ]


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


def _scalars(profile: Profile, names: dict[str, str]) -> FactProfile:
    lengths, memory = profile.lengths or {}, profile.memory
    quantiles, tail = lengths.get("quantiles") or {}, lengths.get("tail") or {}
    gaps = profile.gaps or {}
    gap_quantiles = gaps.get("quantiles_s") or {}
    heads = profile.popularity["head_event_shares"]
    return FactProfile(
        **names,
        min_group_users=profile.min_group_users,
        num_users=profile.dataset["num_users"],
        mean_length=lengths.get("mean"),
        length_p25=quantiles.get("0.25"),
        length_p50=quantiles.get("0.5"),
        length_p75=quantiles.get("0.75"),
        length_p90=quantiles.get("0.9"),
        length_p99=quantiles.get("0.99"),
        longest_length_rounded=lengths.get("longest_rounded_up"),
        tail_index=tail.get("index"),
        tail_index_error=tail.get("error"),
        num_tail_users=tail["num_users"] if tail.get("index") is not None else None,
        num_longest_users=lengths.get("num_longest"),
        longest_event_share=lengths.get("longest_event_share"),
        longest_pair_share=lengths.get("longest_pair_share"),
        padded_to_longest_share=lengths.get("padded_to_longest_share"),
        zipf_exponent=profile.popularity["zipf_exponent"],
        top_1_percent_event_share=heads["0.01"],
        top_10_percent_event_share=heads["0.1"],
        once_item_share=profile.popularity["once_item_share"],
        tied_share=profile.dataset["tied_share"],
        zero_gap_share=gaps.get("zero_gap_share"),
        gap_p10_s=gap_quantiles.get("0.1"),
        gap_p50_s=gap_quantiles.get("0.5"),
        gap_p90_s=gap_quantiles.get("0.9"),
        gap_p99_s=gap_quantiles.get("0.99"),
        model_name=memory["model"]["name"],
        row_bytes=memory["row_bytes"],
        table_bytes=memory["table_bytes"],
        event_bytes=memory["event_bytes"],
        longest_activation_bytes=memory["longest_activation_bytes"],
    )


def _length_bins(profile: Profile, names: dict[str, str]) -> list[FactLengthBin]:
    histogram = [] if profile.lengths is None else profile.lengths["histogram"]
    return [
        FactLengthBin(
            **names,
            from_length=entry["from"],
            to_length=entry["to"],
            num_users=entry["num_users"],
            num_events=entry["num_events"],
        )
        for entry in histogram
    ]


def _batches(profile: Profile, names: dict[str, str]) -> list[FactBatchProfile]:
    return [
        FactBatchProfile(
            **names,
            batch_sequences=entry["batch_sequences"],
            num_negatives=entry["num_negatives"],
            num_batches=entry["num_batches"],
            collision_share=entry["share"],
            history_collision_share=entry["history_share"],
            mean_ids=entry["mean_ids"],
            mean_rows=entry["mean_rows"],
            deduplication_factor=entry["deduplication_factor"],
            padding_share=entry["padding_share"],
        )
        for entry in profile.batches
    ]


def _memory(profile: Profile, names: dict[str, str]) -> list[FactMemoryForecast]:
    return [
        FactMemoryForecast(
            **names,
            num_ranks=entry["num_ranks"],
            sequences_per_rank=entry["sequences_per_rank"],
            placement=entry["placement"],
            table_bytes=entry["table_bytes"],
            fullest_rank_events=entry["fullest_rank_events"],
            fullest_rank_bytes=entry["fullest_rank_bytes"],
        )
        for entry in profile.memory["by_ranks"]
    ]


def _advice(profile: Profile, names: dict[str, str]) -> list[FactProfileAdvice]:
    return [
        FactProfileAdvice(
            **names,
            kind=entry["kind"],
            is_needed=entry["is_needed"],
            recommendation=entry["recommendation"],
            number=entry["number"],
            unit=entry["unit"],
            measure=entry["measure"],
            before_share=entry["before_share"],
            after_share=entry["after_share"],
            effect_share=entry["effect_share"],
            given_up_share=entry["given_up_share"],
            num_ranks=entry["num_ranks"],
            sequences_per_rank=entry["sequences_per_rank"],
        )
        for entry in profile.advice
    ]
