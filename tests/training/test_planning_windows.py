"""Training windows: a giant is cut so that no target is trained twice or lost, no part too dear."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.config import BALANCED, BASELINE
from training.planning.cost import CostModel
from training.planning.plan import make_plan, read_plan, write_plan
from training.planning.windows import (
    WINDOWS_NAME,
    Windows,
    read_windows,
    training_windows,
    whole_sequences,
    write_windows,
)

LENGTH_COST = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1.0, b_s=0.0, source="length")
COSTS = st.tuples(st.floats(0, 50), st.floats(0.01, 2), st.floats(0, 0.1)).map(
    lambda c: CostModel(t_step_s=1.0, c0_s=c[0], a_s=c[1], b_s=c[2], source="drawn")
)


def rows(windows: Windows) -> list[tuple[int, int, int, int]]:
    columns = (windows.sequence, windows.begin, windows.end, windows.first_target)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(deadline=None, max_examples=300)  # a busy machine is no fault of the code
@given(
    lengths=st.lists(st.integers(0, 30) | st.integers(0, 900), min_size=1, max_size=20),
    cost=COSTS,
    num_ranks=st.integers(1, 8),
    per_rank=st.integers(1, 4),
    context_share=st.floats(0, 0.9),
    max_events=st.none() | st.integers(2, 100),
)
def test_every_target_is_trained_exactly_once_and_no_window_is_too_dear(
    lengths: list[int],
    cost: CostModel,
    num_ranks: int,
    per_rank: int,
    context_share: float,
    max_events: int | None,
) -> None:
    windows = training_windows(
        lengths, cost, num_ranks=num_ranks, batch_sequences=num_ranks * per_rank,
        context_share=context_share, max_events=max_events,
    )  # fmt: skip
    trained: list[list[int]] = [[] for _ in lengths]
    for sequence, begin, end, first_target in rows(windows):
        trained[sequence] += range(first_target, end)
        assert 0 <= begin < max(first_target, 1) <= max(end, 1)  # a target has an event before it
    # the first event of a history is no target, with or without a cut
    assert [sorted(targets) for targets in trained] == [list(range(1, n)) for n in lengths]
    assert windows.num_targets.sum() == sum(max(n - 1, 0) for n in lengths)
    num_batches = -(-len(lengths) // (num_ranks * per_rank))
    share = cost.sequence_cost_s(lengths).sum() / num_batches / num_ranks * (1 + 1e-6)
    longest = max_events or 10**9
    for sequence, _, end, _ in rows(windows)[: len(lengths)]:
        if cost.sequence_cost_s(lengths[sequence]) <= share and lengths[sequence] <= longest:
            assert end == lengths[sequence]  # no giant: unchanged
    allowed = (cost.sequence_cost_s(windows.lengths) <= share) & (windows.lengths <= longest)
    assert (allowed | (windows.lengths <= 2)).all()
    assert windows.num_sequences == len(lengths)


def test_a_giant_is_cut_evenly_on_paper() -> None:
    # cost = length, two ranks, batches of two: a rank's share is one mean sequence of 40 / 4 = 10.
    # 25 events in windows of at most 10 that overlap by 5: 10 + 5 k >= 25, so four; even:
    # (25 + 3 x 5) / 4 = 10.
    windows = training_windows([25, 5, 5, 5], LENGTH_COST, num_ranks=2, batch_sequences=2)
    assert rows(windows) == [
        (0, 0, 10, 1),
        (1, 0, 5, 1),
        (2, 0, 5, 1),
        (3, 0, 5, 1),
        (0, 5, 15, 10),
        (0, 10, 20, 15),
        (0, 15, 25, 20),
    ]
    assert windows.is_cut
    # a little above the share: two windows of nearly half
    slightly = training_windows([12, 8, 10, 10], LENGTH_COST, num_ranks=2, batch_sequences=2)
    assert rows(slightly)[0] == (0, 0, 9, 1)  # (12 + 5) / 2 = 8.5
    assert rows(slightly)[-1] == (0, 4, 12, 9)


def test_nothing_is_cut_where_no_sequence_is_above_a_ranks_share() -> None:
    lengths = [3, 0, 9, 1, 12]
    for windows in (
        training_windows(lengths, LENGTH_COST, num_ranks=2, batch_sequences=8),
        training_windows([7] * 5, LENGTH_COST, num_ranks=5, batch_sequences=5),  # all at the share
    ):
        assert not windows.is_cut
        assert windows.sequence.tolist() == [0, 1, 2, 3, 4]
    plans = [
        make_plan(lengths, LENGTH_COST, (BASELINE, BALANCED), num_ranks=2, batch_sequences=8,
                  num_epochs=2, seed=1, split_giants=split)
        for split in (False, True)
    ]  # fmt: skip
    for name in ("baseline", "balanced"):
        np.testing.assert_array_equal(plans[0].arms[name].sequences, plans[1].arms[name].sequences)


def test_context_and_least_length_are_bounded() -> None:
    with pytest.raises(ValueError, match=r"context_share is 1\.0"):
        training_windows([9], LENGTH_COST, num_ranks=1, batch_sequences=1, context_share=1.0)
    with pytest.raises(ValueError, match="max_events is 1"):
        training_windows([9], LENGTH_COST, num_ranks=1, batch_sequences=1, max_events=1)
    assert len(training_windows([], LENGTH_COST, num_ranks=1, batch_sequences=1)) == 0


def test_a_plan_deals_every_window_once_an_epoch_and_keeps_them_on_disk(tmp_path: Path) -> None:
    lengths = np.append(np.random.default_rng(0).integers(2, 40, 50), [900, 700])
    plan = make_plan(
        lengths, LENGTH_COST, (BASELINE, BALANCED), num_ranks=4, batch_sequences=8, num_epochs=2,
        seed=5, split_giants=True, lookahead_batches=2,
    )  # fmt: skip
    assert plan.windows.is_cut
    for arm in plan.arms.values():
        for epoch in range(2):
            steps = np.flatnonzero(plan.epochs == epoch)
            seen = np.concatenate([arm.of_step(int(step)) for step in steps])
            assert sorted(seen.tolist()) == list(range(len(plan.windows)))
    write_plan(plan, tmp_path)
    read = read_plan(tmp_path)
    assert rows(read.windows) == rows(plan.windows)
    np.testing.assert_array_equal(read.arms["balanced"].sequences, plan.arms["balanced"].sequences)


def test_a_table_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_windows(whole_sequences([3, 4]), tmp_path)
    assert rows(read_windows(tmp_path)) == [(0, 0, 3, 1), (1, 0, 4, 1)]
    np.save(tmp_path / WINDOWS_NAME, np.zeros((3, 5), dtype=np.int32))
    with pytest.raises(ValueError, match=r"shape \(3, 5\), expected"):
        read_windows(tmp_path)


def test_a_limit_of_events_cuts_what_no_rank_could_hold() -> None:
    plan = make_plan(
        [30, 6, 6, 6], LENGTH_COST, (BALANCED,), num_ranks=1, batch_sequences=4, num_epochs=1,
        seed=0, split_giants=True, max_tokens_per_rank=48,
    )  # fmt: skip
    assert not plan.windows.is_cut
    cut = training_windows(
        [30, 6, 6, 6], LENGTH_COST, num_ranks=1, batch_sequences=4, max_events=20
    )
    assert cut.lengths.tolist() == [20, 6, 6, 6, 20]
