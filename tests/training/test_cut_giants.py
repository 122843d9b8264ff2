"""Cut giants in training: each target once, context without a loss, every arm the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics.errors import PlanError
from analytics.journal import read_journal
from analytics.schema import FactStep
from analytics.store import open_store
from tests.training.rank_programs import COST, make_job, make_store, train
from training.config import BALANCED, BASELINE, ArmConfig, TrainJob
from training.feed import BatchBuilder
from training.planning.plan import ArmPlan, Plan, read_plan
from training.planning.windows import whole_sequences

AHEAD_ON_RANDOM = ArmConfig(name="ahead", placement="random_equal", schedule="prioritised")
ARMS = (BASELINE, BALANCED)
# two giants among 40 short histories: 60 and 50 events are more than a rank's share of a batch
LENGTHS = [6, 60, *([5, 7, 9, 8] * 10), 50]
CUT: dict[str, Any] = {"split_giants": True, "lookahead_batches": 3}


def cut_job(
    tmp_path: Path, arms: tuple[ArmConfig, ...], *, num_ranks: int = 4, **more: Any
) -> tuple[TrainJob, Plan]:
    store = make_store(tmp_path / "store", LENGTHS, 600)
    job = make_job(tmp_path, store, arms, num_ranks=num_ranks, train=CUT, **more)
    plan = read_plan(Path(job.plan_dir))
    assert plan.windows.is_cut
    return job, plan


def losses(job: TrainJob, arm: str) -> list[tuple[float, int]]:
    """(global loss, number of targets) of each step."""
    total: dict[int, list[float]] = {}
    for record in read_journal(job.journal_dir, FactStep).records:
        if record.run_id == f"p-{arm}":
            entry = total.setdefault(record.step, [0.0, 0.0])
            entry[0] += record.loss_sum
            entry[1] += record.num_targets
    return [(loss / count, int(count)) for _, (loss, count) in sorted(total.items())]


def test_an_epoch_of_batches_trains_every_target_once(tmp_path: Path) -> None:
    job, plan = cut_job(tmp_path, ARMS)
    store = open_store(Path(job.store_dir))
    builder = BatchBuilder(store, job.config, plan.windows)
    expected = Counter(
        int(i) for user in range(len(LENGTHS)) for i in store.training_items(user)[1:]
    )
    for arm in plan.arms.values():
        trained: Counter[int] = Counter()
        for step in range(plan.num_steps):
            shares = [builder.build(step=step, epoch=0, arm=arm, rank=rank) for rank in range(4)]
            for share in shares:
                rows = share.row_ids_U[share.batch.targets_N]
                trained.update(rows.tolist())
                assert len(rows) == share.num_targets
                assert share.global_targets == sum(other.num_targets for other in shares)
        assert trained == expected


def test_a_later_window_is_its_own_events_after_its_context(tmp_path: Path) -> None:
    job, plan = cut_job(tmp_path, (BASELINE,), dropout=0.2)
    store = open_store(Path(job.store_dir))
    builder = BatchBuilder(store, job.config, plan.windows)
    arm, windows = plan.arms["baseline"], plan.windows
    window = len(windows) - 1  # the last part of the last user
    items = store.training_items(len(LENGTHS) - 1)
    begin, end, first = (int(c[window]) for c in (windows.begin, windows.end, windows.first_target))
    assert 0 < begin < first < end == len(items)
    for step in range(plan.num_steps):
        for rank in range(4):
            mine = arm.of_rank(step, rank).tolist()
            if window not in mine:
                continue
            built = builder.build(step=step, epoch=0, arm=arm, rank=rank)
            batch, at = built.batch, mine.index(window)
            assert batch.num_targets is not None and batch.keep_SND is not None
            assert batch.begins is not None and batch.begins[at] == begin
            assert (batch.lengths[at], batch.num_targets[at]) == (end - 1 - begin, end - first)
            assert batch.keep_SND.shape[1] == sum(batch.lengths) == len(batch.inputs_N)
            inputs = built.row_ids_U[batch.inputs_N].split(list(batch.lengths))[at]
            targets = built.row_ids_U[batch.targets_N].split(list(batch.num_targets))[at]
            assert inputs.tolist() == items[begin : end - 1].tolist()
            assert targets.tolist() == items[first:end].tolist()
            return
    pytest.fail("the last window is in no step")


def test_uncut_windows_are_drawn_for_as_if_nothing_were_cut(tmp_path: Path) -> None:
    job, plan = cut_job(tmp_path, (BASELINE,), dropout=0.2)
    store = open_store(Path(job.store_dir))
    whole = whole_sequences(store.training_lengths())
    short = ArmPlan(
        sequences=np.arange(2, 42),
        offsets=np.array([[0, 40]]),
        predicted_straggler_share=None,
        bound_straggler_share=None,
    )
    cut, uncut = (
        BatchBuilder(store, job.config, windows).build(step=0, epoch=3, arm=short, rank=0)
        for windows in (plan.windows, whole)
    )
    assert (
        cut.batch.num_targets is cut.batch.begins is None
    )  # the code that runs is that of uncut batches
    assert cut.row_ids_U.tolist() == uncut.row_ids_U.tolist()
    assert cut.batch.negatives_BK.tolist() == uncut.batch.negatives_BK.tolist()
    assert cut.batch.keep_SND is not None and uncut.batch.keep_SND is not None
    assert bool((cut.batch.keep_SND == uncut.batch.keep_SND).all())


def test_schedules_and_placements_agree_on_cut_giants(tmp_path: Path, on_ranks: Any) -> None:
    arms = (BASELINE, AHEAD_ON_RANDOM, BALANCED)
    job, plan = cut_job(tmp_path, arms, num_ranks=2, num_epochs=2, dropout=0.2)
    states = on_ranks(train, 2, job)
    found = {arm.name: losses(job, arm.name) for arm in arms}
    assert len(found["baseline"]) == plan.num_steps >= 12
    assert found["baseline"] == found["ahead"]  # to the bit
    for state in states:
        for part in ("weight", "accumulator"):
            np.testing.assert_array_equal(state["baseline"][part], state["ahead"][part])
    balanced = np.array(found["balanced"])
    np.testing.assert_allclose(balanced[:, 0], np.array(found["baseline"])[:, 0], rtol=0, atol=1e-5)
    # every epoch trains every target once
    assert balanced[:, 1].sum() == 2 * sum(n - 3 for n in LENGTHS)


def test_records_count_windows_and_their_cost(tmp_path: Path, on_ranks: Any) -> None:
    job, plan = cut_job(tmp_path, (BALANCED,), num_ranks=2)
    on_ranks(train, 2, job)
    records = read_journal(job.journal_dir, FactStep).records
    assert sum(r.num_sequences for r in records) == len(plan.windows)
    assert sum(r.num_tokens for r in records) == plan.windows.lengths.sum()
    cost = COST.sequence_cost_s(plan.windows.lengths).sum()
    assert sum(r.predicted_cost_s for r in records) == pytest.approx(cost)


def test_windows_of_another_store_are_refused(tmp_path: Path) -> None:
    job, plan = cut_job(tmp_path, (BASELINE,))
    other = open_store(make_store(tmp_path / "other", LENGTHS[:-1], 600))
    with pytest.raises(PlanError, match=r"deals 43 sequences .* store has 42 .*delete its folder"):
        BatchBuilder(other, job.config, plan.windows)
    longer = whole_sequences(open_store(Path(job.store_dir)).training_lengths() + 1)
    with pytest.raises(PlanError, match="another store or max_length"):
        BatchBuilder(open_store(Path(job.store_dir)), job.config, longer)
