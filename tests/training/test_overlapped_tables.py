"""Sharded tables in somebody else's loop: the order of traffic changes no bit, nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics.journal import read_journal
from analytics.schema import FactStep
from tests.training.tables_programs import (
    ROWS,
    STEPS,
    bad_id,
    both_orders,
    first_rows,
    left_early,
    misused,
    one_leaves,
    recorded,
    with_torch,
)
from training.config import TABLE_OPTIMIZERS

OnRanks = Callable[..., list[Any]]


def assert_same(plain: dict[str, Any], overlapped: dict[str, Any]) -> None:
    assert set(plain) == set(overlapped)
    for key, value in plain.items():
        np.testing.assert_array_equal(value, overlapped[key], err_msg=key)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
def test_overlap_changes_no_bit(on_ranks: OnRanks, world_size: int, optimizer: str) -> None:
    for plain, overlapped in on_ranks(both_orders, world_size, optimizer, [STEPS] * world_size):
        shapes = overlapped.pop("shapes")
        assert plain.pop("shapes") == shapes
        assert_same(plain, overlapped)
        # (B, L, D), (B, D), and shops that a batch leaves out
        assert [(4, 6, 8), (4, 4), (0, 3)] in shapes
        assert [(4, 6, 8), (4, 4), (8, 3)] in shapes
        assert [(0, 6, 8), (0, 4), (0, 3)] in shapes


@pytest.mark.parametrize("counts", [[9, 6], [0, 5], [4, 7, 1, 7]])
def test_ranks_with_fewer_batches_go_along_with_none(on_ranks: OnRanks, counts: list[int]) -> None:
    results = on_ranks(both_orders, len(counts), "rowwise_adagrad", counts)
    for (plain, overlapped), count in zip(results, counts, strict=True):
        shapes = overlapped.pop("shapes")
        assert plain.pop("shapes") == shapes
        assert [shape != [] for shape in shapes] == [at < count for at in range(max(counts))]
        assert_same(plain, overlapped)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_tables_train_as_torchs_embedding_does(on_ranks: OnRanks, world_size: int) -> None:
    for ours, whole in on_ranks(with_torch, world_size, 0.5):
        for name in ROWS:
            np.testing.assert_allclose(ours[name], whole[name][ours[f"{name} ids"]], atol=1e-6)


def test_tables_of_one_shape_start_differently(on_ranks: OnRanks) -> None:
    for left, right in on_ranks(first_rows, 2):
        assert np.abs(left - right).min(axis=1).max() > 0.01


@pytest.mark.parametrize("at", [0, 1, 2, 7])
def test_an_id_out_of_range_is_named_and_ends_all_ranks(on_ranks: OnRanks, at: int) -> None:
    results = on_ranks(bad_id, 4, at)
    for rank, (kind, message, done, seconds) in enumerate(results):
        assert done == max(at - 1, 0)  # the batch before it is still held back by one
        assert seconds < 10
        if rank == 1:
            assert kind == "IdError"
            assert f"batch of step {at}, column 'user', table 'user': id 9 at place 1" in message
        else:
            assert kind == "InputError"
            assert message.startswith("Rank 1 could not read its next batch")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("forgotten", "Call step() after every batch, also when it has no loss."),
        ("forgotten at the end", "Call step() after every batch, also after the last one."),
        ("twice", "step() was called twice for one batch, or before the first one."),
        ("before the first", "step() was called twice for one batch, or before the first one."),
    ],
)
def test_a_loop_that_forgets_a_step_is_told_so(on_ranks: OnRanks, how: str, message: str) -> None:
    assert on_ranks(misused, 2, how) == [message] * 2


@pytest.mark.parametrize("after_step", [True, False])
def test_a_loop_may_be_left_early_and_begun_anew(on_ranks: OnRanks, after_step: bool) -> None:
    for close_s, (plain, overlapped) in on_ranks(left_early, 2, after_step):
        assert close_s < 3
        assert_same(plain, overlapped)


def test_when_one_rank_leaves_alone_nobody_hangs(on_ranks: OnRanks) -> None:
    (_, _, close_0), (problem, loop_1, close_1) = on_ranks(one_leaves, 2)
    assert problem
    assert loop_1 < 30
    assert max(close_0, close_1) < 6


def test_a_recorded_loop_has_the_tables_waits(on_ranks: OnRanks, tmp_path: Path) -> None:
    on_ranks(recorded, 2, tmp_path)
    steps = read_journal(tmp_path / "mine" / "attempt-0" / "journal", FactStep).records
    assert sorted((s.rank, s.step) for s in steps) == [(r, s) for r in (0, 1) for s in range(10)]
    for step in steps:
        assert step.straggler_wait_s is not None and step.exposed_comm_s is not None
        parts = (
            step.busy_s, step.straggler_wait_s, step.exposed_comm_s, step.exposed_copy_s,
            step.data_wait_s, step.unattributed_s,
        )  # fmt: skip
        assert sum(parts) == pytest.approx(step.window_s, abs=1e-6)
        assert min(parts) >= 0
        kinds = step.exposed_gradients_s + step.exposed_rows_s + step.exposed_ids_s
        assert kinds == pytest.approx(step.exposed_comm_total_s, abs=1e-6)
    busy = [s.busy_s for s in steps if s.rank == 1]
    assert min(busy) >= 0.02
    # rank 0 waits for rank 1 in every step; rank 1 waits for nobody
    waited = {r: np.median([s.straggler_wait_s or 0 for s in steps if s.rank == r]) for r in (0, 1)}
    assert waited[0] > 0.004
    assert waited[0] > 2 * waited[1]
    assert sum(s.num_rows_ahead for s in steps) > 0
    assert all(s.num_rows > 0 or (s.step + s.rank) % 5 == 4 for s in steps)
    assert sum(s.sent_bytes for s in steps) > 0
