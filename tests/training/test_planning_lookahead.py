"""Look-ahead: which sequences share a step changes, nothing else does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.errors import ConfigError
from training.config import BALANCED, BASELINE, TrainConfig
from training.planning.balance import bound_share
from training.planning.cost import CostModel
from training.planning.lookahead import deal_evenly, look_ahead
from training.planning.plan import global_batches, make_plan

LENGTH_COST = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1.0, b_s=0.0, source="length")


def dealt(
    batches: list[np.ndarray], cost_N: np.ndarray, window: int, *, num_ranks: int = 2, seed: int = 0
) -> list[list[int]]:
    found = look_ahead(
        batches, cost_N, num_ranks=num_ranks, window=window, rng=np.random.default_rng(seed)
    )
    return [batch.tolist() for batch in found]


@settings(deadline=None)  # a busy machine is no fault of the code
@given(
    num_sequences=st.integers(1, 60),
    batch=st.integers(1, 20),
    window=st.integers(1, 5),
    num_ranks=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_a_window_keeps_its_sequences_and_every_step_its_size(
    num_sequences: int, batch: int, window: int, num_ranks: int, seed: int
) -> None:
    cost_N = np.random.default_rng(seed).lognormal(3, 1.5, num_sequences)
    plain = [batch for _, batch in global_batches(num_sequences, batch, 1, seed)]
    found = dealt(plain, cost_N, window, num_ranks=num_ranks, seed=seed)
    assert [len(b) for b in found] == [len(b) for b in plain]
    for start in range(0, len(plain), window):
        before = np.concatenate(plain[start : start + window])
        after = np.concatenate(found[start : start + window])
        assert sorted(before.tolist()) == sorted(after.astype(int).tolist())
    assert found == dealt(plain, cost_N, window, num_ranks=num_ranks, seed=seed)


@settings(deadline=None)  # a busy machine is no fault of the code
@given(num_sequences=st.integers(3, 60), batch=st.integers(3, 20), seed=st.integers(0, 99))
def test_a_window_of_one_is_no_look_ahead(num_sequences: int, batch: int, seed: int) -> None:
    plain = [batch for _, batch in global_batches(num_sequences, batch, 2, seed)]
    assert dealt(plain, np.arange(num_sequences) * 1.0, 1) == [b.tolist() for b in plain]
    lengths = np.arange(num_sequences) + 1
    one, default = (
        make_plan(lengths, LENGTH_COST, (BASELINE,), num_ranks=3, batch_sequences=batch,
                  num_epochs=2, seed=seed, **settings).arms["baseline"]
        for settings in ({"lookahead_batches": 1}, {})
    )  # fmt: skip
    np.testing.assert_array_equal(one.sequences, default.sequences)


def test_sequences_are_dealt_to_even_batches_on_paper() -> None:
    # 8 7 6 5 4 2, two batches of three, 16 each: 8 -> 0; 7 -> 1; 6 -> 1 (9 lack, of 0: 8);
    # 5 -> 0 (8 lack, of 1: 3); 4 -> 0, of which 3 lack as of 1: the first; 2 -> 1
    assert deal_evenly(np.array([8.0, 7, 6, 5, 4, 2]), [3, 3], 2).tolist() == [0, 1, 1, 0, 0, 1]


def test_giants_share_a_step_on_paper() -> None:
    # Costs 20 20 3 3 3 3 2 2, two batches of four on two ranks: 56, a rank's share is 14, so 20 is
    # a giant and the first batch is to have 40: both giants, and then the cheapest. 20 + 2 | 20 + 2
    # and 3 + 3 | 3 + 3 lose nothing, while one giant in each batch would lose 12 of 40.
    cost_N = np.array([3.0, 20, 2, 3, 20, 3, 2, 3])
    batch_N = deal_evenly(cost_N, [4, 4], 2)
    assert batch_N.tolist() == [1, 0, 0, 1, 0, 1, 0, 1]


def test_batches_of_other_sizes_get_their_part() -> None:
    # 12 sequences of cost 1 and one of 6 in batches of 10 and 3: 18 x 3 / 13 = 4.2, so the 6 is in
    # the large batch
    cost_N = np.append(np.ones(12), 6.0)
    batch_N = deal_evenly(cost_N, [3, 10], 1)
    assert np.bincount(batch_N).tolist() == [3, 10]
    assert batch_N[-1] == 1


def test_batches_cost_the_same_after_dealing() -> None:
    cost_N = np.random.default_rng(2).lognormal(3, 0.8, 8 * 64)  # none above a rank's share
    plain = [batch for _, batch in global_batches(len(cost_N), 64, 1, 1)]
    even = [cost_N[batch].sum() for batch in dealt(plain, cost_N, 4, num_ranks=4)]
    assert np.ptp(even[:4]) < 0.01 * even[0]
    assert np.ptp(even[4:]) < 0.01 * even[4]
    assert np.ptp([cost_N[batch].sum() for batch in plain]) > 0.2 * even[0]


def test_dealing_lowers_the_bound_itself() -> None:
    cost_N = np.random.default_rng(4).pareto(1.3, 40 * 64)
    plain = [batch for _, batch in global_batches(len(cost_N), 64, 1, 1)]
    before = bound_share([cost_N[batch] for batch in plain], 8)
    after = bound_share([cost_N[batch] for batch in dealt(plain, cost_N, 4, num_ranks=8)], 8)
    assert before is not None and after is not None
    assert after < 0.75 * before


def test_the_batch_of_the_giants_is_not_always_first() -> None:
    cost_N = np.where(np.arange(400) % 20 == 0, 500.0, 1.0)
    plain = [batch for _, batch in global_batches(400, 10, 1, 1)]
    found = dealt(plain, cost_N, 4, num_ranks=5)
    dearest = [
        int(np.argmax([cost_N[batch].sum() for batch in found[start : start + 4]]))
        for start in range(0, 40, 4)
    ]
    assert len(set(dearest)) > 1


def test_every_arm_has_the_same_batches() -> None:
    lengths = np.random.default_rng(0).integers(2, 300, 100)
    plan = make_plan(
        lengths, LENGTH_COST, (BASELINE, BALANCED), num_ranks=2, batch_sequences=8, num_epochs=2,
        seed=3, lookahead_batches=4,
    )  # fmt: skip
    plain = [batch for _, batch in global_batches(100, 8, 2, 3)]
    steps = [
        [sorted(arm.of_step(step).tolist()) for step in range(plan.num_steps)]
        for arm in plan.arms.values()
    ]
    assert steps[0] == steps[1]
    assert steps[0] != [sorted(batch.tolist()) for batch in plain]


def test_a_window_whose_even_batches_had_too_many_events_stays() -> None:
    # Costs 8 .. 1: 18 a batch, dealt 8 5 4 1 | 7 6 3 2. The first four have nine events each, so 36
    # of them would meet, while the plain batches have two of them each, 20 events.
    cost_N = np.array([8.0, 5, 7, 6, 4, 1, 3, 2])
    events = np.array([9, 9, 1, 1, 9, 9, 1, 1])
    plain = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7])]
    assert sorted(map(sorted, dealt(plain, cost_N, 2))) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    kept = look_ahead(
        plain, cost_N, num_ranks=2, window=2, rng=np.random.default_rng(0), token_N=events,
        max_tokens=20,
    )  # fmt: skip
    assert [batch.tolist() for batch in kept] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_window_is_bounded() -> None:
    assert TrainConfig().lookahead_batches == 1
    with pytest.raises(ConfigError, match=r"lookahead_batches is 0.*between 1 and 1000"):
        TrainConfig(lookahead_batches=0)
    with pytest.raises(ConfigError, match="max_tokens_per_rank is 1"):
        TrainConfig(max_tokens_per_rank=1)
