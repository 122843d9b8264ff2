"""Plans: every sequence once an epoch, the same batches for both arms, kept whole on disk."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.errors import PlanError
from training.config import BALANCED, BASELINE, ModelConfig, RunConfig, TrainConfig
from training.planning.collisions import collision_share
from training.planning.cost import CostModel
from training.planning.forecast import FORECAST_PLACEMENTS, forecast_stragglers
from training.planning.plan import (
    Plan,
    global_batches,
    make_plan,
    make_run_plan,
    read_plan,
    write_plan,
)

COST = CostModel(t_step_s=1.0, c0_s=0.1, a_s=1.0, b_s=0.01, source="test")
LENGTHS = np.random.default_rng(0).integers(2, 200, size=53).astype(np.int64)


def planned(
    length_N: np.ndarray = LENGTHS,
    *,
    num_ranks: int = 3,
    batch: int = 8,
    epochs: int = 2,
    seed: int = 7,
) -> Plan:
    return make_plan(
        length_N, COST, (BASELINE, BALANCED), num_ranks=num_ranks, batch_sequences=batch,
        num_epochs=epochs, seed=seed,
    )  # fmt: skip


@settings(deadline=None)  # a busy machine is no fault of the code
@given(
    num_sequences=st.integers(3, 60),
    batch=st.integers(3, 20),
    num_ranks=st.integers(1, 3),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_every_sequence_is_in_every_epoch_once_and_in_the_same_step_for_both_arms(
    num_sequences: int, batch: int, num_ranks: int, epochs: int, seed: int
) -> None:
    plan = planned(
        np.arange(num_sequences), num_ranks=num_ranks, batch=batch, epochs=epochs, seed=seed
    )
    assert plan.num_steps == epochs * -(-num_sequences // batch)
    for arm in plan.arms.values():
        for epoch in range(epochs):
            steps = np.flatnonzero(plan.epochs == epoch)
            seen = np.concatenate([arm.of_step(int(step)) for step in steps])
            assert sorted(seen.tolist()) == list(range(num_sequences))
    for step in range(plan.num_steps):
        baseline, balanced = (plan.arms[name].of_step(step) for name in ("baseline", "balanced"))
        assert set(baseline.tolist()) == set(balanced.tolist())
        for arm in plan.arms.values():
            ranks = [arm.of_rank(step, rank) for rank in range(num_ranks)]
            assert np.concatenate(ranks).tolist() == arm.of_step(step).tolist()


def test_the_baseline_holds_equal_counts_within_one() -> None:
    arm = planned().arms["baseline"]
    counts = np.diff(arm.offsets, axis=1)
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()


def test_the_last_batch_of_an_epoch_may_be_short() -> None:
    # 53 = 6 x 8 + 5
    sizes = [len(batch) for _, batch in global_batches(53, 8, 2, seed=1)]
    assert sizes == [8, 8, 8, 8, 8, 8, 5] * 2


def test_epochs_are_shuffled_differently_and_a_seed_repeats_them() -> None:
    first = [batch.tolist() for _, batch in global_batches(20, 20, 2, seed=1)]
    assert first[0] != first[1]
    assert first == [batch.tolist() for _, batch in global_batches(20, 20, 2, seed=1)]
    assert first != [batch.tolist() for _, batch in global_batches(20, 20, 2, seed=2)]


def test_balancing_reaches_the_bound_and_random_does_not() -> None:
    plan = planned(np.random.default_rng(1).integers(2, 700, 640), num_ranks=2, batch=32)
    baseline, balanced = plan.arms["baseline"], plan.arms["balanced"]
    assert balanced.predicted_straggler_share is not None
    assert baseline.predicted_straggler_share is not None
    assert balanced.bound_straggler_share is not None
    assert balanced.predicted_straggler_share - balanced.bound_straggler_share < 0.01
    assert baseline.predicted_straggler_share > 0.05


def test_shares_of_a_plan_on_paper() -> None:
    # one batch, cost = length: 6, 3, 3 on two ranks; balanced 6 | 3 + 3 loses nothing;
    # with 9, 3 the bound itself is 1 - 6/9
    cost = CostModel(t_step_s=5.0, c0_s=0.0, a_s=1.0, b_s=0.0, source="paper")
    even = make_plan(np.array([6, 3, 3]), cost, (BALANCED,), num_ranks=2, batch_sequences=3,
                     num_epochs=1, seed=0).arms["balanced"]  # fmt: skip
    assert (even.predicted_straggler_share, even.bound_straggler_share) == (0.0, 0.0)
    odd = make_plan(np.array([9, 3]), cost, (BALANCED,), num_ranks=2, batch_sequences=2,
                    num_epochs=1, seed=0).arms["balanced"]  # fmt: skip
    assert odd.predicted_straggler_share == pytest.approx(1 / 3)
    assert odd.bound_straggler_share == pytest.approx(1 / 3)


def test_one_rank_has_no_straggler_share() -> None:
    arm = planned(num_ranks=1).arms["baseline"]
    assert arm.predicted_straggler_share is None
    assert arm.bound_straggler_share is None


def test_fewer_users_than_ranks_is_refused() -> None:
    with pytest.raises(PlanError, match=r"There are 2 users for 3 ranks.*Lower --ranks to 2"):
        planned(np.array([5, 5]), num_ranks=3)


def test_a_plan_survives_the_disk(tmp_path: Path) -> None:
    plan = planned()
    write_plan(plan, tmp_path)
    read = read_plan(tmp_path)
    assert (read.seed, read.num_ranks, read.cost) == (plan.seed, plan.num_ranks, plan.cost)
    np.testing.assert_array_equal(read.epochs, plan.epochs)
    for name, arm in plan.arms.items():
        np.testing.assert_array_equal(read.arms[name].sequences, arm.sequences)
        np.testing.assert_array_equal(read.arms[name].offsets, arm.offsets)
        assert read.arms[name].predicted_straggler_share == arm.predicted_straggler_share


@pytest.mark.parametrize("name", ["plan.json", "epochs.npy", "windows.npy", "balanced.offsets.npy"])
def test_a_plan_that_lacks_a_part_is_refused(tmp_path: Path, name: str) -> None:
    write_plan(planned(), tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(PlanError, match=r"no readable plan is here.*seqscale run"):
        read_plan(tmp_path)


def test_collision_share_on_paper() -> None:
    # {1,2,3} then {2,3,4,5}: 2 of 4; then {5,5,6}: 1 of 2 distinct; 3 of 6 together
    assert collision_share([[1, 2, 3], [2, 3, 4, 5], [5, 5, 6]]) == pytest.approx(3 / 6)


def test_collision_share_at_its_ends() -> None:
    assert collision_share([[1, 2], [2, 1, 1]]) == 1.0
    assert collision_share([[1, 2], [3]]) == 0.0
    assert collision_share([[1, 2]]) is None
    assert collision_share([]) is None


def test_equal_lengths_lose_nothing_on_any_number_of_ranks() -> None:
    for forecast in forecast_stragglers(
        np.full(1000, 50), COST, num_ranks=8, sequences_per_rank=4, seed=1
    ):
        assert forecast.straggler_share == pytest.approx(0.0, abs=1e-12)
        assert forecast.bound_share == pytest.approx(0.0, abs=1e-12)
        assert not forecast.with_replacement


def test_a_forecast_is_repeatable_and_ordered() -> None:
    first, again = (
        forecast_stragglers(LENGTHS, COST, num_ranks=64, sequences_per_rank=4, seed=3)
        for _ in range(2)
    )
    assert first == again
    shares = {f.placement: f.straggler_share for f in first}
    assert first[0].bound_share <= shares["lpt_free"] + 1e-12
    assert shares["lpt_free"] <= shares["random_equal"]
    assert first[0].with_replacement  # 256 of 53


def test_all_placements_and_look_ahead_can_be_forecast() -> None:
    lengths = np.random.default_rng(1).zipf(1.5, 4000).clip(max=900).astype(np.int64)
    made = forecast_stragglers(
        lengths, COST, num_ranks=8, sequences_per_rank=16, seed=3, placements=FORECAST_PLACEMENTS
    )
    assert [entry.placement for entry in made] == list(FORECAST_PLACEMENTS)
    share = {entry.placement: entry.straggler_share for entry in made}
    bound = made[0].bound_share
    assert share["random_equal"] > share["lpt_equal"] >= share["lpt_free"] >= bound - 1e-12
    assert share["lookahead"] < bound  # other batches, so below the bound of these
    assert all(entry.num_batches == 20 for entry in made)
    # the two that a profile shows are the same without the others
    default = forecast_stragglers(lengths, COST, num_ranks=8, sequences_per_rank=16, seed=3)
    assert {e.placement: e.straggler_share for e in default} == {
        name: share[name] for name in ("random_equal", "lpt_free")
    }


def test_large_forecasts_are_of_fewer_batches() -> None:
    lengths = np.arange(2, 40)
    for per_rank, num_batches in ((128, 8), (4096, 4)):  # 262,144 / 32,768; at least four
        made = forecast_stragglers(
            lengths, COST, num_ranks=256, sequences_per_rank=per_rank, seed=1,
            placements=("random_equal",),
        )  # fmt: skip
        assert made[0].num_batches == num_batches


def test_an_unknown_placement_is_not_forecast() -> None:
    with pytest.raises(ValueError, match="'best' cannot be forecast"):
        forecast_stragglers(
            LENGTHS, COST, num_ranks=2, sequences_per_rank=1, seed=0, placements=("best",)
        )


def test_a_plan_of_a_run_takes_every_setting_from_its_configuration() -> None:
    lengths = np.append(LENGTHS, [5000])
    config = RunConfig(
        recipe="test",
        model=ModelConfig(max_length=999),
        train=TrainConfig(
            num_epochs=2, global_batch_sequences=12, seed=4, lookahead_batches=3,
            split_giants=True, max_tokens_per_rank=1500,
        ),
        num_ranks=3,
    )  # fmt: skip
    found = make_run_plan(lengths, COST, config)
    wanted = make_plan(
        lengths.clip(max=1000), COST, config.arms, num_ranks=3, batch_sequences=12, num_epochs=2,
        seed=4, lookahead_batches=3, split_giants=True, max_tokens_per_rank=1500,
    )  # fmt: skip
    assert found.windows.is_cut
    assert found.windows.end.max() == 1000
    for name in ("baseline", "balanced"):
        np.testing.assert_array_equal(found.arms[name].sequences, wanted.arms[name].sequences)
        tokens = [
            found.windows.lengths[found.arms[name].of_rank(step, rank)].sum()
            for step in range(found.num_steps)
            for rank in range(3)
        ]
        assert max(tokens) <= 1500


def test_a_plan_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(PlanError, match=r"A sequence has 199 events, more than the 150"):
        make_plan(
            np.array([199, 5, 5]), COST, (BASELINE,), num_ranks=2, batch_sequences=3,
            num_epochs=1, seed=0, max_tokens_per_rank=150,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "num_ranks", "message"),
    [([5], 1, "one rank never waits"), ([], 2, "no sequence to forecast from")],
)
def test_a_forecast_of_nothing_is_refused(lengths: list[int], num_ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forecast_stragglers(
            np.array(lengths, dtype=np.int64),
            COST,
            num_ranks=num_ranks,
            sequences_per_rank=1,
            seed=0,
        )
