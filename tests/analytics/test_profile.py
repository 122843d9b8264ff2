"""The profile as a whole: its numbers belong together, and nothing in it tells of one person."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from analytics.errors import ConfigError
from analytics.forecasts import Setting
from analytics.interactions import dataset_records, prepare
from analytics.memory import HSTU_8X1024, memory_profile, shape_of
from analytics.preparation import Preparation
from analytics.prepared import prepared_of
from analytics.profile import (
    PROFILE_VERSION,
    Profile,
    forecast_records,
    profile_markdown,
    profile_records,
    profile_store,
)
from analytics.profile_report import PLACEMENT_WORDS, placement_words
from analytics.rules import HistoryRules
from analytics.schema import (
    DimPrice,
    FactBatchProfile,
    FactLengthBin,
    FactMemoryForecast,
    FactProfile,
    FactProfileAdvice,
    FactStragglerForecast,
    from_mapping,
    to_mapping,
)
from analytics.store import SequenceStore, open_store
from analytics.store_making import PreparedData
from tests.analytics.stores import made_store
from training.config import ModelConfig
from training.planning.cost import CostModel

COST = CostModel(t_step_s=0.5, c0_s=0.0, a_s=1.0, b_s=0.0, source="one second an event")
PRICE = DimPrice(
    pipeline_id="", instance_type="p5.48xlarge", cloud="aws", region="us-east-1",
    device_name="H100", num_devices=8, device_hour_cost=5.0, currency="USD",
    list_device_hour_cost=5.0, list_currency="USD", price_date="2026-11-01", source="a price list",
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """40 users with 4 to 43 events over 60 items, drawn with a seed."""
    folder = tmp_path_factory.mktemp("profile")
    rng = np.random.default_rng(3)
    lines = ["user,item,time"]
    for user in range(40):
        for at in range(4 + user):
            lines.append(f"u{user},i{min(int(rng.pareto(0.8)), 59)},{at}")
    path = folder / "events.csv"
    path.write_text("\n".join(lines))
    return prepare(
        path, folder / "stores", preparation=Preparation(history=HistoryRules(min_history=4))
    )


@pytest.fixture(scope="module")
def store(prepared: PreparedData) -> SequenceStore:
    return open_store(Path(prepared.store_dir))


def profiled(store: SequenceStore, **changes: object) -> Profile:
    options: dict[str, object] = {
        "price": PRICE, "sequences_per_rank": 4, "global_batch_sequences": 8,
        "ranks": (2, 64), "seed": 1, "num_negatives": 2,
        "sizes_per_rank": (2,), "batch_sizes": (4, 16, 64),
    }  # fmt: skip
    return profile_store(store, COST, **(options | changes))  # type: ignore[arg-type]


def test_money_is_the_lost_share_times_the_price(store: SequenceStore) -> None:
    for entry in profiled(store).forecasts:
        share = entry["straggler_share"]
        # 1,000 device-hours at 5 USD cost 5,000 USD
        assert entry["straggler_cost_per_1000_device_hours"] == pytest.approx(share * 5000)
        assert entry["straggler_cost_per_hour"] == pytest.approx(share * 5 * entry["num_ranks"])


def test_balancing_is_never_below_the_bound_nor_above_random(store: SequenceStore) -> None:
    found = {
        (e["num_ranks"], e["placement"]): e
        for e in profiled(store).forecasts
        if e["sequences_per_rank"] == 4
    }
    for num_ranks in (2, 64):
        balanced, random = found[num_ranks, "lpt_free"], found[num_ranks, "random_equal"]
        assert balanced["bound_share"] - 1e-12 <= balanced["straggler_share"]
        assert balanced["straggler_share"] < random["straggler_share"]
    # 64 ranks x 4 sequences are more than 40 users
    assert found[64, "lpt_free"]["with_replacement"]
    assert not found[2, "lpt_free"]["with_replacement"]


def test_a_profile_is_repeatable_and_survives_json(store: SequenceStore) -> None:
    profile = profiled(store)
    assert profile == profiled(store)
    assert (
        Profile(**json.loads(json.dumps(dataclasses.asdict(profile), allow_nan=False))) == profile
    )


def test_records_carry_the_same_numbers(store: SequenceStore) -> None:
    profile = profiled(store)
    records = forecast_records(profile, pipeline_id="p", dataset_id=store.header.dataset_id)
    assert [r.straggler_share for r in records] == [e["straggler_share"] for e in profile.forecasts]
    assert {(r.currency, r.instance_type, r.pipeline_id) for r in records} == {
        ("USD", "p5.48xlarge", "p")
    }


def test_the_report_puts_the_assumptions_beside_the_numbers(store: SequenceStore) -> None:
    profile = profiled(store)
    text = profile_markdown(profile)
    balanced = next(e for e in profile.forecasts if e["placement"] == "lpt_free")
    assert f"| 2 | 2 | balanced by cost | {balanced['straggler_share']:.1%} |" in text
    assert "USD per 1,000 device-hours" in text
    for line in profile.assumptions:
        assert line in text
    assert "with replacement" in text
    assert "one second an event" in text
    assert "2026-11-01" in text


def test_one_rank_has_no_forecast(store: SequenceStore) -> None:
    with pytest.raises(ConfigError, match="one rank never waits"):
        profiled(store, ranks=(1, 2))
    with pytest.raises(ConfigError, match="at least 1"):
        profiled(store, sequences_per_rank=0)
    with pytest.raises(ConfigError, match=r"minimum group is 0 users.*--min-group"):
        profiled(store, min_group_users=0)


def test_every_part_is_there_and_says_of_which_version(store: SequenceStore) -> None:
    profile = profiled(store)
    assert profile.profile_version == PROFILE_VERSION
    assert {(e["num_ranks"], e["sequences_per_rank"]) for e in profile.forecasts} == {
        (2, 2), (2, 4), (64, 2), (64, 4),
    }  # fmt: skip
    # sizes above the 40 users are left out, the one asked for is in
    assert [entry["batch_sequences"] for entry in profile.batches] == [4, 8, 16]
    assert {entry["kind"] for entry in profile.advice} == {
        "history_cap", "lookahead_window", "cut_giants", "hot_rows",
    }  # fmt: skip
    assert {(e["num_ranks"], e["sequences_per_rank"]) for e in profile.advice} == {(2, 4)}
    assert profile.dataset["num_in_split"]["test"] == 40


def test_what_is_trained_on_is_profiled(store: SequenceStore) -> None:
    # training lengths are 2..41; of these the newest five events at most
    profile = profiled(store, max_trained_events=5)
    assert profile.lengths is not None
    assert profile.lengths["mean"] == pytest.approx((2 + 3 + 4 + 5 * 37) / 40)
    assert profile.lengths["longest_rounded_up"] == 8
    assert "at most the newest 5 of their events" in profile_markdown(profile)


def test_no_single_users_length_is_told(store: SequenceStore) -> None:
    # training lengths are 2..41, one user each: with ten a group 11..32 may be told, and 64 for
    # the longest
    profile = profiled(store)
    assert profile.lengths is not None
    quantiles = profile.lengths["quantiles"]
    assert (quantiles["0"], quantiles["1"]) == (11, 32)
    assert all(entry["num_users"] >= 10 for entry in profile.lengths["histogram"])
    assert profile.lengths["num_longest"] == 10
    assert profile.memory["longest_events"] == 64
    alone = profiled(store, min_group_users=1)
    assert alone.lengths is not None
    assert (alone.lengths["quantiles"]["0"], alone.lengths["quantiles"]["1"]) == (2, 41)


def test_too_few_users_have_no_table_of_lengths_and_it_is_said(store: SequenceStore) -> None:
    profile = profiled(store, min_group_users=50)
    assert profile.lengths is None
    assert [entry["padding_share"] for entry in profile.batches] == [None, None, None]
    text = profile_markdown(profile)
    assert "Withheld: there are fewer than 50 users" in text
    assert "Quantiles are withheld" in text
    records = profile_records(profile, pipeline_id="p", dataset_id="d")
    assert not [record for record in records if isinstance(record, FactLengthBin)]
    scalars = next(record for record in records if isinstance(record, FactProfile))
    assert (scalars.mean_length, scalars.length_p50, scalars.gap_p50_s) == (None, None, None)


def test_between_one_and_two_groups_the_quantiles_are_withheld(store: SequenceStore) -> None:
    text = profile_markdown(profiled(store, min_group_users=30))
    assert "Quantiles are withheld: none has 30 users on either side" in text
    assert "are merged with a neighbour" in text


def test_every_record_of_a_profile_is_whole_and_named_once(store: SequenceStore) -> None:
    records = profile_records(profiled(store), pipeline_id="p", dataset_id="d")
    kinds = {
        FactProfile, FactLengthBin, FactBatchProfile, FactStragglerForecast, FactMemoryForecast,
        FactProfileAdvice,
    }  # fmt: skip
    assert {type(record) for record in records} == kinds
    keys = set()
    for record in records:
        values = to_mapping(record)
        assert from_mapping(type(record), values) == record  # types and bounds hold
        key = type(record).__table_key__
        keys.add((type(record).__name__, *(values[name] for name in key)))
    assert len(keys) == len(records)


def test_without_times_the_report_says_so(tmp_path: Path) -> None:
    histories = [[user % 5, (user + at) % 7, 1, 2, 3] for user in range(20) for at in range(2)]
    profile = profiled(made_store(tmp_path, histories))
    assert profile.gaps is None
    assert "The data has no times." in profile_markdown(profile)


def test_memory_is_the_stated_formula() -> None:
    # width 8, feed-forward 16, 2 blocks: 8 x 8 + 2 x 16 = 96 numbers an event and block; with
    # input and output 2 x 96 + 2 x 8 = 208 numbers of 4 bytes. Rows: 8 floats and one of state
    shape = shape_of(ModelConfig(embedding_dim=8, num_blocks=2, num_heads=2, ffn_dim=16))
    assert shape.event_bytes == 832
    # ten users of 3 events, 2 ranks x 2 sequences: 6 events a rank, told as 8
    at = Setting(num_ranks=2, sequences_per_rank=2, num_batches=2, seed=1)
    found = memory_profile(np.full(10, 3), COST, shape, num_items=101, settings=[at])
    assert found["row_bytes"] == 36
    assert found["table_bytes"] == 101 * 36
    assert (found["longest_events"], found["longest_activation_bytes"]) == (4, 4 * 832)
    for entry in found["by_ranks"]:
        assert entry["table_bytes"] == 51 * 36
        assert (entry["fullest_rank_events"], entry["fullest_rank_bytes"]) == (8, 8 * 832)
    assert "832 bytes" in " ".join(found["assumptions"])
    # HSTU, 8 layers x 1024 in two bytes: (8 x 13 + 2) x 1024 x 2
    assert HSTU_8X1024.event_bytes == 106 * 1024 * 2


def test_a_placement_nobody_has_put_in_words_keeps_its_name() -> None:
    assert placement_words("lookahead") == "balanced over a window of 4 batches"
    assert placement_words("by_hand") == "by_hand"
    assert {"random_equal", "lpt_equal", "lpt_free", "lookahead"} == set(PLACEMENT_WORDS)


def test_a_store_tells_what_its_preparation_said(
    prepared: PreparedData, store: SequenceStore
) -> None:
    told = dataclasses.asdict(prepared_of(store))
    said = dataclasses.asdict(prepared)
    assert {name for name in said if said[name] != told[name]} <= {"warnings", "store_dir"}


def test_the_record_of_a_data_set_tells_lengths_of_groups(prepared: PreparedData) -> None:
    # 4..43 events, one user each
    record = dataset_records(prepared)[0]
    assert (record.min_length, record.median_length, record.max_length) == (13, 23.5, 34)
    assert (record.num_training_events, record.num_test_events) == (prepared.num_rows_kept - 80, 40)
    assert (record.has_times, record.is_pseudonymised, record.min_group_users) == (True, False, 10)
    few = dataset_records(prepared, min_group_users=41)[0]
    assert (few.min_length, few.median_length, few.max_length) == (None, None, None)
