"""Laws of the schedules: they change when things travel, never a bit of what is trained."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.schedule_programs import (
    SCHEDULES,
    Case,
    SmallWorkload,
    announced_and_rows,
    batch_of,
    train_schedules,
    train_with_a_bad_id,
)
from training.config import TABLE_OPTIMIZERS

CONDITIONS = {
    "heavy collisions, empty ranks, a huge sequence": Case(),
    "few collisions": Case(num_items=3000),
    "jittered ranks": Case(num_steps=12, jitter_ms=4.0),
    "micro-batches": Case(micro_batches=3),
    "bf16": Case(precision="bf16"),
    "hashed rows, a replicated table": Case(placement="hash", user_placement="replicated"),
    "many pieces": Case(chunk_bytes=256, num_steps=10),
    "one piece": Case(chunk_bytes=1 << 20),
}
WHOLE = ("synchronous", "ids_ahead")
# On top of what every case has: heavy collisions, empty ranks, uneven counts, a huge sequence.
CROSSED = {
    "as it is": {},
    "jittered ranks": {"jitter_ms": 4.0},
    "micro-batches": {"micro_batches": 3},
    "jittered ranks, micro-batches, hashed rows": {
        "jitter_ms": 4.0,
        "micro_batches": 2,
        "placement": "hash",
        "user_placement": "replicated",
    },
    "bf16": {"precision": "bf16"},
    "bf16, jittered ranks, micro-batches, hashed rows": {
        "precision": "bf16",
        "jitter_ms": 4.0,
        "micro_batches": 2,
        "placement": "hash",
        "user_placement": "replicated",
    },
    "clipping": {"clip_norm": 0.05, "schedules": (*WHOLE, "auto")},
}


def assert_equal_to_synchronous(states: list[dict[str, dict[str, Any]]]) -> None:
    for of_rank in states:
        expected = of_rank["synchronous"]
        for name, found in of_rank.items():
            for key, value in expected.items():
                if key == "dense":
                    assert set(value) == set(found["dense"])
                    for parameter, tensor in value.items():
                        np.testing.assert_array_equal(
                            tensor, found["dense"][parameter], err_msg=f"{name} {parameter}"
                        )
                elif key not in ("ahead",):
                    np.testing.assert_array_equal(value, found[key], err_msg=f"{name} {key}")


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
def test_every_schedule_equals_synchronous_to_the_bit(
    on_ranks: Any, world_size: int, optimizer: str
) -> None:
    assert_equal_to_synchronous(on_ranks(train_schedules, world_size, Case(optimizer=optimizer)))


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("condition", list(CONDITIONS))
def test_every_schedule_equals_synchronous_whatever_befalls_the_ranks(
    on_ranks: Any, world_size: int, condition: str
) -> None:
    assert_equal_to_synchronous(on_ranks(train_schedules, world_size, CONDITIONS[condition]))


@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
def test_every_schedule_equals_synchronous_in_bf16(on_ranks: Any, optimizer: str) -> None:
    case = Case(optimizer=optimizer, precision="bf16", num_steps=10)
    states = on_ranks(train_schedules, 2, case)
    assert_equal_to_synchronous(states)
    only = dataclasses.replace(case, precision="fp32", schedules=("synchronous",))
    (plain, _) = on_ranks(train_schedules, 2, only)
    losses = [state["synchronous"]["losses"] for state in (states[0], plain)]
    assert (losses[0] != losses[1]).any()  # it did compute in bf16


@pytest.mark.full
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
@pytest.mark.parametrize("condition", list(CROSSED))
def test_every_schedule_equals_synchronous_for_every_optimizer_and_condition(
    on_ranks: Any, world_size: int, optimizer: str, condition: str
) -> None:
    case = Case(optimizer=optimizer, **CROSSED[condition])
    assert case.num_steps == 30
    assert_equal_to_synchronous(on_ranks(train_schedules, world_size, case))


@pytest.mark.parametrize("world_size", [1, 4])
def test_clipping_and_skipping_are_the_same_where_they_are_offered(
    on_ranks: Any, world_size: int
) -> None:
    case = Case(clip_norm=0.05, skip_non_finite=True, nan_at=5, schedules=(*WHOLE, "auto"))
    states = on_ranks(train_schedules, world_size, case)
    assert_equal_to_synchronous(states)
    assert all(state[name]["skipped"] == 1 for state in states for name in state)


def assert_near(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    """What ranks trained together is what one process trained, within 1e-5."""
    for key, value in alone.items():
        table = key.partition("/")[0]
        if table not in ("item", "user"):
            continue
        for of_rank in ranks:  # a table or a state of its optimiser, by row
            expected = value[of_rank[f"{table} ids"]] if np.ndim(value) else value
            np.testing.assert_allclose(of_rank[key], expected, rtol=0, atol=1e-5, err_msg=key)
    for name, value in alone["dense"].items():
        np.testing.assert_allclose(ranks[0]["dense"][name], value, rtol=0, atol=1e-5)
    losses = np.sum([of_rank["losses"] for of_rank in ranks], axis=0)
    np.testing.assert_allclose(losses, alone["losses"], rtol=1e-5)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
def test_ranks_train_what_one_process_trains(
    on_ranks: Any, optimizer: str, world_size: int
) -> None:
    case = Case(optimizer=optimizer, schedules=("synchronous",))
    ranks = [state["synchronous"] for state in on_ranks(train_schedules, world_size, case)]
    (alone,) = (state["synchronous"] for state in on_ranks(train_schedules, 1, case, world_size))
    states = {key for key in alone if "/" in key}
    assert states or optimizer == "sgd"
    assert_near(ranks, alone)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_micro_batches_train_what_whole_batches_train(on_ranks: Any, optimizer: str) -> None:
    whole = Case(optimizer=optimizer, schedules=("synchronous", "split"))
    parts = dataclasses.replace(whole, micro_batches=3)
    for found, expected in zip(
        on_ranks(train_schedules, 2, parts), on_ranks(train_schedules, 2, whole), strict=True
    ):
        for name in whole.schedules:
            for key in ("item", "user", "losses"):
                np.testing.assert_allclose(
                    found[name][key], expected[name][key], rtol=1e-5, atol=1e-5, err_msg=key
                )
            for parameter, value in expected[name]["dense"].items():
                np.testing.assert_allclose(
                    found[name]["dense"][parameter], value, rtol=0, atol=1e-5
                )


def whole_table(states: list[dict[str, Any]], name: str) -> np.ndarray:
    size = 1 + max(int(state[f"{name} ids"].max()) for state in states)
    table = np.zeros((size, states[0][name].shape[1]), np.float32)
    for state in states:
        table[state[f"{name} ids"]] = state[name]
    return table


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_gradient_is_clipped_by_torchs_norm_of_rows_and_dense_parameters(
    on_ranks: Any, world_size: int
) -> None:
    # the user table lies on every rank, and its gradient counts once
    case = Case(
        optimizer="sgd", num_steps=1, clip_norm=0.05, user_placement="replicated",
        schedules=("synchronous",),
    )  # fmt: skip
    begin, end = (
        [state["synchronous"] for state in on_ranks(train_schedules, world_size, each)]
        for each in (dataclasses.replace(case, num_steps=0), case)
    )
    batch = batch_of(case, 0, world_size, 0, all_in_one=True)
    rows = [
        torch.from_numpy(whole_table(begin, name)[ids.numpy()]).requires_grad_()
        for name, ids in zip(("item", "user"), batch.row_ids, strict=True)
    ]
    workload = SmallWorkload()
    (part,) = workload.parts(batch, 1)
    (workload.loss_sum(rows, part) / batch.global_targets).backward()
    parameters = [*rows, *workload.model.parameters()]
    norm = torch.nn.utils.clip_grad_norm_(parameters, case.clip_norm)
    assert norm > 2 * case.clip_norm  # it does clip
    for name, ids, row in zip(("item", "user"), batch.row_ids, rows, strict=True):
        expected = whole_table(begin, name)
        expected[ids.numpy()] -= 0.01 * row.grad.numpy()
        np.testing.assert_allclose(whole_table(end, name), expected, rtol=0, atol=1e-7)


def test_clipping_depends_on_the_global_gradient_not_on_the_ranks(on_ranks: Any) -> None:
    case = Case(clip_norm=0.05, optimizer="sgd", schedules=("synchronous",))
    free = dataclasses.replace(case, clip_norm=None)
    four = [state["synchronous"] for state in on_ranks(train_schedules, 4, case)]
    (alone,) = (state["synchronous"] for state in on_ranks(train_schedules, 1, case, 4))
    (unclipped,) = (state["synchronous"] for state in on_ranks(train_schedules, 1, free, 4))
    for of_rank in four:
        expected = alone["item"][of_rank["item ids"]]
        np.testing.assert_allclose(of_rank["item"], expected, rtol=0, atol=1e-5)
    assert np.abs(alone["item"] - unclipped["item"]).max() > 1e-3  # it did clip


def test_rows_do_travel_ahead(on_ranks: Any) -> None:
    # were nothing fetched early, the laws above would hold and say nothing
    states = on_ranks(train_schedules, 2, Case(num_items=3000, schedules=SCHEDULES[:4]))
    for state in states:
        assert state["synchronous"]["ahead"] == state["ids_ahead"]["ahead"] == 0
        assert state["prioritised"]["ahead"] == state["split"]["ahead"] > 0


def test_the_next_ids_do_not_share_the_link_with_the_rows_waited_for(on_ranks: Any) -> None:
    for steps in on_ranks(announced_and_rows, 2):
        assert len(steps) == 4
        assert all(announced_ns >= rows_ns for announced_ns, rows_ns in steps)


@pytest.mark.parametrize("placement", ["round_robin", "hash"])
@pytest.mark.parametrize("bad_id", [-1, 60])
def test_an_id_outside_its_table_names_itself_and_ends_every_rank(
    on_ranks: Any, placement: str, bad_id: int
) -> None:
    mine, others = on_ranks(train_with_a_bad_id, 2, placement, bad_id)
    assert mine.startswith("IdError: batch of step 2, column 'item', table 'item': id ")
    assert f"id {bad_id} " in mine
    assert others.startswith("InputError: Rank 0 could not read its next batch")
