"""Laws of the engine: placement and schedule change when things happen, never what is computed."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics.journal import read_journal
from analytics.schema import FactStep
from tests.training.rank_programs import evaluate_job, make_job, make_store, train
from training.config import BALANCED, BASELINE, ArmConfig, TrainJob

AHEAD_ON_RANDOM = ArmConfig(name="ahead", placement="random_equal", schedule="prioritised")
# 61 users: a last batch of five; one history of 60 events among short ones; two of four events,
# which leave a single target
LENGTHS = [4, 4, 60, *([5, 7, 9, 12, 20] * 11), 6, 8, 30]


def losses(job: TrainJob) -> dict[str, list[float]]:
    """Global loss of each step, by arm."""
    total: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for record in read_journal(job.journal_dir, FactStep).records:
        entry = total[record.run_id, record.step]
        entry[0] += record.loss_sum
        entry[1] += record.num_targets
    by_arm: dict[str, list[float]] = defaultdict(list)
    for (run_id, _), (loss, count) in sorted(total.items()):
        by_arm[run_id.removeprefix("p-")].append(loss / count)
    return by_arm


def steps(job: TrainJob) -> list[FactStep]:
    return read_journal(job.journal_dir, FactStep).records


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("num_items", [40, 600])  # nearly every row collides; few rows collide
def test_fetching_ahead_equals_synchronous_to_the_bit(
    tmp_path: Path, on_ranks: Any, world_size: int, num_items: int
) -> None:
    store = make_store(tmp_path / "store", LENGTHS, num_items)
    arms = (BASELINE, AHEAD_ON_RANDOM)
    job = make_job(tmp_path, store, arms, num_ranks=world_size, num_epochs=4, dropout=0.2)
    states = on_ranks(train, world_size, job)
    assert len(losses(job)["ahead"]) == 32
    assert losses(job)["baseline"] == losses(job)["ahead"]
    for state in states:
        for part in ("weight", "accumulator"):
            np.testing.assert_array_equal(state["baseline"][part], state["ahead"][part])
        for name, value in state["baseline"]["dense"].items():
            np.testing.assert_array_equal(value, state["ahead"]["dense"][name])


def test_rows_do_travel_ahead(tmp_path: Path, on_ranks: Any) -> None:
    # were nothing fetched early, the law above would hold and say nothing
    store = make_store(tmp_path / "store", LENGTHS, 600)
    job = make_job(tmp_path, store, (AHEAD_ON_RANDOM,), num_ranks=2, num_epochs=4)
    on_ranks(train, 2, job)
    later = [record for record in steps(job) if record.step > 0]
    assert sum(r.num_rows_ahead for r in later) > 0.5 * sum(r.num_rows for r in later)
    assert all(record.num_rows_ahead == 0 for record in steps(job) if record.step == 0)


def test_both_arms_have_the_same_losses_over_thirty_steps(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    job = make_job(tmp_path, store, (BASELINE, BALANCED), num_ranks=2, num_epochs=4, dropout=0.2)
    on_ranks(train, 2, job)
    found = losses(job)
    assert len(found["baseline"]) >= 30
    assert found["baseline"][-1] < found["baseline"][0]  # it does learn
    np.testing.assert_allclose(found["balanced"], found["baseline"], rtol=0, atol=1e-5)


def test_two_and_four_ranks_train_what_one_trains(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    found = []
    for world_size in (1, 2, 4):
        job = make_job(
            tmp_path / str(world_size), store, (BALANCED,), num_ranks=world_size, num_epochs=4
        )
        on_ranks(train, world_size, job)
        found.append(losses(job)["balanced"])
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=0, atol=1e-5)


def test_ranks_without_a_sequence_are_legal(tmp_path: Path, on_ranks: Any) -> None:
    # 9 users in batches of 8: the last batch has one sequence for four ranks
    store = make_store(tmp_path / "store", [5] * 8 + [40], 50)
    arms = (BASELINE, BALANCED)
    job = make_job(tmp_path, store, arms, num_ranks=4, num_epochs=3)
    on_ranks(train, 4, job)
    assert any(record.num_sequences == 0 for record in steps(job))
    np.testing.assert_allclose(losses(job)["balanced"], losses(job)["baseline"], atol=1e-5)


def test_every_step_sums_to_its_window_and_counts_every_sequence(
    tmp_path: Path, on_ranks: Any
) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    job = make_job(tmp_path, store, (BASELINE, BALANCED), num_ranks=2, num_epochs=2)
    on_ranks(train, 2, job)
    records = steps(job)
    # 2 arms x 2 ranks x 2 epochs x ceil(61 / 8) = 8 batches
    assert len(records) == 64
    for record in records:
        parts = (
            record.busy_s
            + (record.straggler_wait_s or 0.0)
            + (record.exposed_comm_s or 0.0)
            + record.exposed_copy_s
            + record.data_wait_s
            + record.unattributed_s
        )
        assert parts == pytest.approx(record.window_s, abs=max(1e-6, 1e-3 * record.window_s))
        assert record.overlapped_comm_s <= record.comm_s
    for arm in ("baseline", "balanced"):
        of_arm = [r for r in records if r.run_id == f"p-{arm}"]
        assert sum(r.num_sequences for r in of_arm) == 2 * len(LENGTHS)


def test_quality_is_the_same_for_one_and_two_ranks(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    job = make_job(tmp_path, store, (BALANCED,), num_ranks=2)
    on_ranks(train, 2, job)
    alone = on_ranks(evaluate_job, 1, job)[0]
    shared = on_ranks(evaluate_job, 2, job)
    assert shared == [alone, alone]
    assert {(r["split"], r["ranker"]) for r in alone} == {
        (split, ranker) for split in ("validation", "test") for ranker in ("model", "popularity")
    }


def test_a_run_is_repeatable(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    found = []
    for name in ("first", "second"):
        job = make_job(tmp_path / name, store, (BALANCED,), num_ranks=2, num_epochs=2)
        on_ranks(train, 2, dataclasses.replace(job))
        found.append(losses(job)["balanced"])
    assert found[0] == found[1]
