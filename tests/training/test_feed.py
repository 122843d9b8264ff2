"""The feed: order and content, and plans replaced while it runs."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics.errors import PlanError
from analytics.store import open_store
from tests.training.rank_programs import COST, make_store
from training.config import BALANCED, ModelConfig, RunConfig, TrainConfig
from training.feed import ArmPlans, BatchBuilder, Order, feed, first_safe_step
from training.planning.cost import CostModel
from training.planning.plan import Plan, make_run_plan
from training.planning.replan import replan

NEW = CostModel(t_step_s=0.0, c0_s=1.0, a_s=0.0, b_s=0.0, source="each the same")
LENGTHS = [4 + (7 * n) % 40 for n in range(48)]


@pytest.fixture
def made(tmp_path: Path) -> tuple[BatchBuilder, Plan]:
    config = RunConfig(
        recipe="test",
        model=ModelConfig(embedding_dim=16, num_blocks=1, ffn_dim=16, max_length=64, dropout=0.0),
        train=TrainConfig(num_epochs=2, global_batch_sequences=8, split_giants=False),
        num_ranks=2,
    )
    store = open_store(make_store(tmp_path / "store", LENGTHS, 30))
    plan = make_run_plan(store.training_lengths(), COST, config)
    return BatchBuilder(store, config, plan.windows), plan


def orders_of(arm: str, num_steps: int) -> list[Order]:
    return [Order(arm=arm, step=step) for step in range(num_steps)]


def lengths_at(plan: Plan, arm: Any, step: int, rank: int) -> list[int]:
    """Input events of each window of a rank."""
    return [int(n) - 1 for n in plan.windows.lengths[arm.of_rank(step, rank)]]


def test_a_plain_mapping_is_fed_in_order(made: tuple[BatchBuilder, Plan]) -> None:
    builder, plan = made
    orders = [Order(arm=a, step=s) for s in range(3) for a in ("baseline", "balanced")]
    batches = list(feed(builder, dict(plan.arms), plan.epochs, orders, rank=1))
    for order, batch in zip(orders, batches, strict=True):
        assert batch.step == order.step
        arm = plan.arms[order.arm]
        assert list(batch.batch.lengths) == lengths_at(plan, arm, order.step, 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_plan_replaced_on_the_way_holds_from_its_step_on(
    made: tuple[BatchBuilder, Plan], rank: int
) -> None:
    builder, plan = made
    arms, orders = ArmPlans(plan.arms), orders_of("balanced", plan.num_steps)
    batches = feed(builder, arms, plan.epochs, orders, rank=rank)
    seen = [next(batches), next(batches)]
    # two taken, three ready, one in hands: step 6 is the first that cannot be built
    first = first_safe_step(orders, "balanced", 2)
    assert first == 6
    new = replan(plan, BALANCED, NEW, first_step=first)
    assert any(
        lengths_at(plan, new, s, rank) != lengths_at(plan, plan.arms["balanced"], s, rank)
        for s in range(first, plan.num_steps)
    )
    arms.replace("balanced", new, first)
    seen += list(batches)
    for batch in seen:
        arm = new if batch.step >= first else plan.arms["balanced"]
        assert list(batch.batch.lengths) == lengths_at(plan, arm, batch.step, rank)


def test_the_first_safe_step_depends_on_the_place_in_the_orders_alone() -> None:
    # a0 b0 a1 b1 a2 b2 a3 b3; one taken with depth 2: four may be built, so a2 and b2 are safe
    orders = [Order(arm=a, step=s) for s in range(4) for a in "ab"]
    assert first_safe_step(orders, "a", 1, depth=2) == 2
    assert first_safe_step(orders, "b", 1, depth=2) == 2
    assert first_safe_step(orders, "a", 2, depth=2) == 3
    assert first_safe_step(orders, "a", 4, depth=2) is None
    assert first_safe_step(orders, "b", 4, depth=2) == 3


def test_a_step_that_is_built_cannot_be_replaced(made: tuple[BatchBuilder, Plan]) -> None:
    _, plan = made
    arms = ArmPlans(plan.arms)
    arms.take("balanced", 4)
    with pytest.raises(PlanError, match=r"step 4 is built already.*from step 4 on.*first_safe"):
        arms.replace("balanced", plan.arms["balanced"], 4)
    arms.replace("balanced", plan.arms["balanced"], 5)


def test_a_plan_of_other_batches_is_refused(made: tuple[BatchBuilder, Plan]) -> None:
    _, plan = made
    arm = plan.arms["balanced"]
    other = dataclasses.replace(arm, offsets=np.concatenate([arm.offsets[:-1], arm.offsets[:1]]))
    with pytest.raises(PlanError, match="other global batches from step 3"):
        ArmPlans(plan.arms).replace("balanced", other, 3)


def test_a_second_replacement_keeps_what_the_first_gave_before_it(
    made: tuple[BatchBuilder, Plan],
) -> None:
    _, plan = made
    first, second = (replan(plan, BALANCED, NEW, first_step=s) for s in (2, 5))
    arms = ArmPlans(plan.arms)
    arms.replace("balanced", first, 2)
    arms.replace("balanced", second, 5)
    held = [arms.at("balanced", step) for step in (1, 2, 4, 5, 9)]
    wanted = [plan.arms["balanced"], first, first, second, second]
    assert [id(plan) for plan in held] == [id(plan) for plan in wanted]
    arms.replace("balanced", first, 4)  # an earlier one takes over from there
    assert arms.at("balanced", 9) is first
    assert arms.at("baseline", 9) is plan.arms["baseline"]


def test_a_feed_that_is_left_early_ends_its_thread(made: tuple[BatchBuilder, Plan]) -> None:
    builder, plan = made
    batches = feed(builder, plan.arms, plan.epochs, orders_of("baseline", 9), rank=0)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "feed"]
