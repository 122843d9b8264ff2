"""The profile's numbers against paper and against the data they are said of."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from analytics.errors import ConfigError
from analytics.interactions import InteractionColumns, prepare
from analytics.profile import Profile, forecast_records, profile_markdown, profile_store
from analytics.schema import DimPrice
from analytics.skew import collision_profile, length_profile, popularity_profile, zipf_exponent
from analytics.store import SequenceStore, open_store
from training.planning.cost import CostModel

COST = CostModel(t_step_s=0.5, c0_s=0.0, a_s=1.0, b_s=0.0, source="one second an event")
PRICE = DimPrice(
    pipeline_id="", instance_type="p5.48xlarge", cloud="aws", region="us-east-1",
    device_name="H100", num_devices=8, device_hour_cost=5.0, currency="USD",
    list_device_hour_cost=5.0, list_currency="USD", price_date="2026-11-01", source="a price list",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> SequenceStore:
    """40 users with 4 to 43 events over 60 items, drawn with a seed."""
    rng = np.random.default_rng(3)
    lines = ["user,item,time"]
    for user in range(40):
        for at in range(4 + user):
            lines.append(f"u{user},i{min(int(rng.pareto(0.8)), 59)},{at}")
    path = tmp_path / "events.csv"
    path.write_text("\n".join(lines))
    data = prepare(
        path, tmp_path / "stores", columns=InteractionColumns(), min_history=4, max_history=1000
    )
    return open_store(Path(data.store_dir))


def profiled(store: SequenceStore, **changes: object) -> Profile:
    options: dict[str, object] = {
        "price": PRICE, "sequences_per_rank": 4, "global_batch_sequences": 8,
        "ranks": (2, 64), "seed": 1, "num_negatives": 2,
    }  # fmt: skip
    return profile_store(store, COST, **(options | changes))  # type: ignore[arg-type]


def test_lengths_are_counted_as_on_paper() -> None:
    # 1, 2, 3 and 10 events: 16 in all; the longest 1 % is one user with 10 of 16 events and
    # 100 of 1 + 4 + 9 + 100 = 114 pairs
    found = length_profile(np.array([3, 1, 10, 2]))
    assert found["quantiles"]["0"] == 1
    assert found["quantiles"]["0.5"] == 2.5
    assert found["quantiles"]["1"] == 10
    assert found["longest_event_share"] == pytest.approx(10 / 16)
    assert found["longest_pair_share"] == pytest.approx(100 / 114)
    assert [(e["from"], e["to"], e["num_users"], e["num_events"]) for e in found["histogram"]] == [
        (1, 2, 1, 1),
        (2, 4, 2, 5),
        (8, 16, 1, 10),
    ]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_zipf_exponent_is_recovered_from_an_exact_law(exponent: float) -> None:
    counts = np.rint(1e9 * np.arange(1, 2001, dtype=np.float64) ** -exponent).astype(np.int64)
    assert zipf_exponent(counts) == pytest.approx(exponent, abs=1e-3)


def test_even_popularity_has_no_skew() -> None:
    found = popularity_profile(np.full(200, 7, dtype=np.int64))
    assert found["zipf_exponent"] == 0.0
    assert found["head_event_shares"] == {"0.01": pytest.approx(0.01), "0.1": pytest.approx(0.1)}
    assert found["once_item_share"] == 0.0


def test_head_share_is_a_ratio_of_counts() -> None:
    # 100 items: one with 101 events, 99 with one: 101 of 200 events lie on the top 1 %
    counts = np.ones(100, dtype=np.int64)
    counts[42] = 101
    found = popularity_profile(counts)
    assert found["head_event_shares"]["0.01"] == pytest.approx(101 / 200)
    assert found["most_popular_share"] == pytest.approx(101 / 200)
    assert found["once_item_share"] == pytest.approx(99 / 100)


def test_collisions_of_one_shared_item_are_as_on_paper(tmp_path: Path) -> None:
    # every user's three training events: the shared item twice and one of its own; batches of one
    # user hold 2 distinct rows, of which the batch before holds 1
    rows = [
        f"u{user},{item},{at}"
        for user in range(6)
        for at, item in enumerate(["all", "all", f"own{user}", "held", "out"])
    ]
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["user,item,time", *rows]))
    data = prepare(
        path, tmp_path / "stores", columns=InteractionColumns(), min_history=4, max_history=99
    )
    opened = open_store(Path(data.store_dir))
    found = collision_profile(opened, batch_sequences=1, num_negatives=0, seed=1)
    assert found["num_batches"] == 6
    assert found["history_share"] == found["share"] == pytest.approx(1 / 2)
    # one batch an epoch: the next epoch's batch holds the same rows
    whole = collision_profile(opened, batch_sequences=6, num_negatives=0, seed=1)
    assert whole["share"] == 1.0


def test_money_is_the_lost_share_times_the_price(store: SequenceStore) -> None:
    for entry in profiled(store).forecasts:
        share = entry["straggler_share"]
        # 1,000 device-hours at 5 USD cost 5,000 USD
        assert entry["straggler_cost_per_1000_device_hours"] == pytest.approx(share * 5000)
        assert entry["straggler_cost_per_hour"] == pytest.approx(share * 5 * entry["num_ranks"])


def test_balancing_is_never_below_the_bound_nor_above_random(store: SequenceStore) -> None:
    found = {(e["num_ranks"], e["placement"]): e for e in profiled(store).forecasts}
    assert len(found) == 4
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
    assert f"| 2 | balanced by cost | {balanced['straggler_share']:.1%} |" in text
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
