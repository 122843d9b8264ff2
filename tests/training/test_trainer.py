from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from analytics.errors import ConfigError, StoreError
from analytics.journal import read_journal
from analytics.schema import DimRun, FactStep
from analytics.store import open_store
from tests.training.rank_programs import make_job, make_store, train
from training.arms import NORMS_EVERY
from training.calibrate import batches_to_time, calibrate
from training.config import BALANCED, BASELINE
from training.feed import BatchBuilder, Order, feed
from training.parameters import load_parameters
from training.planning.plan import read_plan
from training.trainer import Block, check_finite, orders_of, turns


def test_arms_take_turns_over_the_same_steps_and_swap_who_is_first() -> None:
    assert turns(["a", "b"], 5, 2) == [
        Block(number=0, arm="a", steps=range(2)),
        Block(number=0, arm="b", steps=range(2)),
        Block(number=1, arm="b", steps=range(2, 4)),
        Block(number=1, arm="a", steps=range(2, 4)),
        Block(number=2, arm="a", steps=range(4, 5)),
        Block(number=2, arm="b", steps=range(4, 5)),
    ]


def test_every_arm_is_fed_every_step_once_one_step_ahead() -> None:
    orders = orders_of(turns(["a", "b"], 5, 2), 5)
    for arm in ("a", "b"):
        assert [order.step for order in orders if order.arm == arm] == [0, 1, 2, 3, 4]
    # a's first block runs steps 0 and 1 and asks for 2 as well
    assert [(order.arm, order.step) for order in orders[:4]] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("b", 0),
    ]


def test_both_arms_hold_the_same_events_in_the_same_step(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [4, 5, 30, 12, 7, 9, 11, 8, 6], 50)
    job = make_job(tmp_path, store, (BASELINE, BALANCED), num_ranks=2, batch=4)
    plan = read_plan(Path(job.plan_dir))
    builder = BatchBuilder(open_store(store), job.config, plan.windows)
    for step in range(plan.num_steps):
        rows: dict[str, list[int]] = {}
        targets = {}
        for name, arm in plan.arms.items():
            shares = [builder.build(step=step, epoch=0, arm=arm, rank=rank) for rank in range(2)]
            rows[name] = sorted({int(row) for share in shares for row in share.row_ids_U})
            targets[name] = sum(share.num_targets for share in shares)
            assert all(share.global_targets == targets[name] for share in shares)
        assert rows["baseline"] == rows["balanced"]
        assert targets["baseline"] == targets["balanced"]


def test_an_error_in_the_feeding_thread_reaches_the_loop(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [5] * 8, 50)
    job = make_job(tmp_path, store, (BASELINE,), num_ranks=1)
    plan = read_plan(Path(job.plan_dir))
    builder = BatchBuilder(open_store(store), job.config, plan.windows)
    orders = [Order(arm="baseline", step=0), Order(arm="nobody", step=0)]
    batches = feed(builder, dict(plan.arms), plan.epochs, orders, rank=0)
    assert next(batches).step == 0
    with pytest.raises(KeyError, match="nobody"):
        next(batches)


def test_training_leaves_run_records_progress_and_parameters(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", [5, 6, 7, 30, 9, 12, 11, 8, 6], 50)
    job = make_job(tmp_path, store, (BASELINE, BALANCED), num_ranks=2)
    states = on_ranks(train, 2, job)
    runs = read_journal(job.journal_dir, DimRun).records
    assert [run.run_id for run in runs] == ["p-baseline", "p-balanced"]
    assert all(run.world_size == 2 and 0 < run.collision_share <= 1 for run in runs)
    steps = read_journal(job.journal_dir, FactStep).records
    for step in steps:  # ranks that are balanced by length would tell no noise
        is_measured = step.run_id == "p-baseline" and step.step % NORMS_EVERY == 0
        assert (step.gradient_norm_sq is not None) == is_measured
        assert (step.rank_gradient_norm_sq is not None) == (is_measured and step.num_targets > 0)
    progress = json.loads((Path(job.attempt_dir) / "progress.json").read_text())
    assert progress["done"] == progress["total"] == 2
    for arm in ("baseline", "balanced"):
        table, dense = load_parameters(job.parameters_path(arm))
        np.testing.assert_array_equal(table.numpy(), states[0][arm]["table"])
        assert set(dense) == {name for name in states[0][arm]["dense"] if "/" not in name}
        assert load_file(job.parameters_path(arm))["item_table"].shape == (50, 16)


def test_a_diverged_loss_names_arm_step_and_what_to_lower(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [5] * 4, 50)
    job = make_job(tmp_path, store, (BASELINE,), num_ranks=1)
    for loss in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"Arm balanced, step 3: .*table_learning_rate"):
            check_finite(job.config, "balanced", 3, loss)
    check_finite(job.config, "balanced", 3, 0.5)


def test_missing_parameters_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Train again"):
        load_parameters(tmp_path / "none.safetensors")


def test_calibration_tells_long_from_short(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [5] * 4, 50)
    config = make_job(tmp_path, store, (BASELINE,), num_ranks=1, max_length=600).config
    assert batches_to_time([10, 600, 1000]) == [(10,), (600,), (1000,), (10,) * 16, (600, 600)]
    cost = calibrate(config, [8, 32, 64, 128, 256, 600], num_items=50)
    short, long = cost.sequence_cost_s([8, 600])
    assert 0 < short < long
    assert min(cost.t_step_s, cost.c0_s, cost.a_s, cost.b_s) >= 0
