"""Advice has its number, its evidence and its effect; where nothing is to be done it says so."""

import numpy as np
import pytest

from analytics.advice import (
    AIM_SHARE,
    advise,
    cut_giants,
    history_cap,
    hot_rows_to_copy,
    lookahead_window,
)
from analytics.forecasts import (
    Setting,
    drawn_lengths,
    forecast_table,
    lookahead_share,
    setting_of,
)
from training.planning.balance import bound_share
from training.planning.cost import CostModel
from training.planning.forecast import forecast_stragglers

LINEAR = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1.0, b_s=0.0, source="one second an event")
SQUARE = CostModel(t_step_s=0.0, c0_s=0.0, a_s=0.0, b_s=1.0, source="one second a pair")
AT = Setting(num_ranks=4, sequences_per_rank=8, num_batches=20, seed=3)


def skewed(num_users: int = 400) -> np.ndarray:
    return (5 * np.random.default_rng(7).pareto(1.1, num_users) + 5).astype(np.int64)


def test_the_drawn_batches_are_those_of_the_forecast() -> None:
    lengths = skewed()
    row = forecast_stragglers(lengths, SQUARE, num_ranks=4, sequences_per_rank=8, seed=3)[0]
    costs = [SQUARE.sequence_cost_s(batch) for batch in drawn_lengths(lengths, AT)]
    assert bound_share(costs, 4) == pytest.approx(row.bound_share)
    balanced = lookahead_share(costs, AT, window=1)
    rows = forecast_stragglers(lengths, SQUARE, num_ranks=4, sequences_per_rank=8, seed=3)
    assert balanced == next(r.straggler_share for r in rows if r.placement == "lpt_free")


def test_the_table_has_every_rank_size_and_placement_once() -> None:
    table = forecast_table(
        skewed(), LINEAR, ranks=(8, 2, 2), sequences_per_rank=4, sizes=(2, 100_000), seed=1
    )
    keys = [(e["num_ranks"], e["sequences_per_rank"], e["placement"]) for e in table]
    assert len(set(keys)) == len(keys)
    # 100,000 sequences a rank were not asked for and are left out
    assert {key[:2] for key in keys} == {(2, 2), (2, 4), (8, 2), (8, 4)}
    assert {key[2] for key in keys} >= {"random_equal", "lpt_free"}
    found = setting_of(table, num_ranks=8, sequences_per_rank=4, seed=1)
    assert found == Setting(num_ranks=8, sequences_per_rank=4, num_batches=20, seed=1)


def test_the_cap_is_the_longest_that_brings_the_bound_below_the_aim() -> None:
    # 4 ranks x 2 sequences, always all eight users: seven of 7 events and one of 100, 149 in all.
    # Cap 16: the bound is max(16, 65/4) = 16.25, nothing lost; 24: 24 against 73/4 = 18.25. So 16,
    # which loses 84 of 149 events; without it 1 - 37.25/100 of the time is lost
    lengths = np.array([7] * 7 + [100])
    at = Setting(num_ranks=4, sequences_per_rank=2, num_batches=5, seed=1)
    found = history_cap(lengths, LINEAR, at)
    assert found.is_needed
    assert (found.number, found.unit, found.measure) == (16.0, "events", "bound_share")
    assert found.before_share == pytest.approx(1 - 37.25 / 100)
    assert found.after_share == 0.0
    assert found.given_up_share == pytest.approx(84 / 149)
    assert found.plain()["effect_share"] == pytest.approx(0.6275)
    assert "Cap histories at 16 events" in found.recommendation
    assert "56.4% of the training events are lost" in found.recommendation


def test_the_cap_keeps_what_it_promises_in_a_forecast() -> None:
    lengths = skewed()
    found = history_cap(lengths, SQUARE, AT)
    assert found.number is not None
    rows = forecast_stragglers(
        lengths.clip(max=int(found.number)), SQUARE, num_ranks=4, sequences_per_rank=8, seed=3
    )
    assert rows[0].bound_share == pytest.approx(found.after_share)
    assert found.after_share < AIM_SHARE <= found.before_share


def test_even_lengths_need_nothing() -> None:
    lengths = np.full(64, 9)
    for advice in (history_cap(lengths, LINEAR, AT), lookahead_window(lengths, LINEAR, AT)):
        assert advice is not None
        assert not advice.is_needed
        assert advice.number is None
        assert advice.recommendation.startswith("Nothing to do")
        assert advice.plain()["effect_share"] == 0


def test_where_no_cap_helps_it_is_said() -> None:
    # three sequences on two ranks: one rank always holds two, even of equal length; the bound by
    # cost alone is max(1, 1.5) of 1.5, so only a cost without length can hold it up: all ranks but
    # one are idle when one sequence is all there is to a batch
    flat = CostModel(t_step_s=0.0, c0_s=1.0, a_s=0.0, b_s=0.0, source="one second a sequence")
    lonely = Setting(num_ranks=4, sequences_per_rank=1, num_batches=3, seed=1)
    found = history_cap(np.array([5, 6, 7, 8]), flat, lonely)
    assert not found.is_needed  # four sequences, four ranks, equal cost: nothing to do
    zero = CostModel(t_step_s=0.0, c0_s=0.0, a_s=0.0, b_s=1.0, source="pairs")
    with_empty = history_cap(np.array([0, 0, 0, 8]), zero, lonely)
    assert with_empty.before_share == pytest.approx(0.75)
    assert not with_empty.is_needed
    assert "No cap" in with_empty.recommendation
    assert with_empty.given_up_share is None


HOT = [
    {"num_hot_rows": 1, "id_share": 0.1, "collision_share": 0.5, "collision_share_without": 0.49},
    {"num_hot_rows": 10, "id_share": 0.3, "collision_share": 0.5, "collision_share_without": 0.4},
    {"num_hot_rows": 99, "id_share": 0.6, "collision_share": 0.5, "collision_share_without": 0.1},
]


def test_the_fewest_hot_rows_that_are_worth_it_are_advised() -> None:
    found = hot_rows_to_copy(HOT, AT, row_bytes=2**20)
    assert found is not None and found.is_needed
    assert (found.number, found.unit) == (10.0, "rows")
    assert (found.before_share, found.after_share) == (0.5, 0.4)
    assert found.evidence == {"id_share": 0.3, "num_bytes": 10 * 2**20}
    assert "10.0 MiB a rank" in found.recommendation


def test_rows_that_are_not_hot_are_left_alone() -> None:
    found = hot_rows_to_copy(HOT[:1], AT, row_bytes=4)
    assert found is not None
    assert not found.is_needed and found.number is None
    assert found.recommendation.startswith("Nothing to do")
    assert hot_rows_to_copy([], AT, row_bytes=4) is None


def test_every_advice_is_of_its_own_kind_and_its_shares_lie_in_bounds() -> None:
    found = advise(skewed(), SQUARE, AT, HOT, row_bytes=4, min_group_users=10)
    kinds = [advice.kind for advice in found]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {"history_cap", "lookahead_window", "cut_giants", "hot_rows"}
    for advice in found:
        plain = advice.plain()
        for name in ("before_share", "after_share", "effect_share"):
            assert 0 <= plain[name] <= 1
        assert plain["after_share"] <= plain["before_share"]
        assert advice.is_needed == (advice.number is not None)


def test_the_advised_window_is_the_shortest_that_is_enough_and_the_forecasts_own() -> None:
    lengths = (20 * np.random.default_rng(1).lognormal(0, 1, 3000)).astype(np.int64)
    at = Setting(num_ranks=16, sequences_per_rank=8, num_batches=20, seed=3)
    found = lookahead_window(lengths, SQUARE, at)
    assert found is not None
    table = forecast_table(lengths, SQUARE, ranks=(16,), sequences_per_rank=8, sizes=(), seed=3)
    rows = {entry["placement"]: entry["straggler_share"] for entry in table}
    shares = {
        int(name.split("_")[2]): share
        for name, share in found.evidence.items()
        if name.startswith("share_over_")
    }
    assert shares[1] == pytest.approx(rows["lpt_free"])
    if 4 in shares:
        assert shares[4] == pytest.approx(rows["lookahead"])
    if found.is_needed:
        assert shares[int(found.number or 0)] < AIM_SHARE
        assert all(s >= AIM_SHARE for w, s in shares.items() if w < int(found.number or 0))


def test_cutting_giants_loses_no_event_and_names_no_few() -> None:
    lengths = np.array([10] * 99 + [2000])
    found = cut_giants(lengths, LINEAR, AT, min_group_users=10)
    assert found is not None and found.is_needed
    assert "no event is lost" in found.recommendation
    assert "(fewer than 10)" in found.recommendation
    assert "num_cut_users" not in found.evidence
    assert found.after_share < found.before_share
    assert 0 < (found.given_up_share or 0) < 1
    even = cut_giants(np.full(50, 9), LINEAR, AT, min_group_users=10)
    assert even is not None and even.recommendation.startswith("Nothing to do")
