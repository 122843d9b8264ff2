"""Step times of the four schedules, worked out on paper."""

from __future__ import annotations

import dataclasses
import math

import pytest

from training.planning.overlap_forecast import (
    FORECAST_SCHEDULES,
    StepLoad,
    forecast,
    split_pays_until_ratio,
)

# 3 s of compute; at 10 bytes/s the rows take 1 s, the gradients 1 s, the dense sum 0.5 s, ids 0.2 s
LOAD = StepLoad(
    forward_s=1.0,
    activations_s=1.0,
    weights_s=1.0,
    row_bytes=10,
    gradient_bytes=10,
    dense_bytes=5,
    id_bytes=2,
    collision_share=0.5,
    payload_bytes_per_s=10,
)


def step_s(schedule: str, **changes: float) -> float:
    return forecast(schedule, dataclasses.replace(LOAD, **changes)).step_s


def test_each_schedule_exposes_its_own_bytes() -> None:
    assert LOAD.ratio == pytest.approx(0.9)  # 2.7 s over 3 s
    assert step_s("synchronous") == pytest.approx(5.7)  # 3 + 2.7
    assert step_s("ids_ahead") == pytest.approx(5.5)  # without the ids
    assert step_s("prioritised") == pytest.approx(4.5)  # half of rows and gradients, dense
    assert step_s("split") == pytest.approx(3.0)  # half of both, 1 s, fits under the weights


def test_exposed_is_what_is_no_compute() -> None:
    own = {"host_s": 0.3, "apply_s": 0.1}
    load = dataclasses.replace(LOAD, **own)
    exposed = [forecast(schedule, load).exposed_s for schedule in FORECAST_SCHEDULES]
    # split: 2 + 0.3 + 1 + 0.1 against 3.3, so its chain sticks out by 0.1
    assert exposed == pytest.approx([2.7, 2.5, 1.5, 0.1])


def test_split_is_bound_by_its_chain_when_more_collides() -> None:
    # all of rows and gradients: 2 + 2 s against 3 s of compute
    found = forecast("split", dataclasses.replace(LOAD, collision_share=1.0))
    assert (found.step_s, found.bound_by) == (pytest.approx(4.0), "exchange")


def test_a_slow_wire_carries_all_bytes_whatever_the_order() -> None:
    # 5 bytes/s: 27 bytes and 1 of marks are 5.6 s
    found = forecast("split", dataclasses.replace(LOAD, payload_bytes_per_s=5, mark_bytes=1))
    assert (found.step_s, found.bound_by) == (pytest.approx(5.6), "wire")
    # prioritised: 3 s of compute, then 15 of the bytes, 3 s
    assert step_s("prioritised", payload_bytes_per_s=5, mark_bytes=1) == pytest.approx(6.0)
    # 1 byte/s: before the colliding gradients go 5 + 2 + 1 bytes, then 15, together 23 s < 28 s
    assert step_s("prioritised", payload_bytes_per_s=1, mark_bytes=1) == pytest.approx(28.0)


def test_ids_that_do_not_fit_under_compute_are_exposed() -> None:
    assert step_s("ids_ahead", id_bytes=40) == pytest.approx(3 + 2.5 + 1)  # 4 s under 3 s


def test_latencies_count_once_a_collective_and_once_a_chunk() -> None:
    assert step_s("synchronous", latency_s=0.01) == pytest.approx(5.76)  # 2 of ids, 1, 1, 2
    assert step_s("ids_ahead", latency_s=0.01) == pytest.approx(5.54)
    assert step_s("prioritised", latency_s=0.01) == pytest.approx(4.54)
    # 1 byte/s, chunks of 2: 5 bytes of gradients 3, of rows 3, dense 2 x 2, ids and marks 3
    slow = {"payload_bytes_per_s": 1.0, "latency_s": 0.01, "chunk_bytes": 2.0}
    assert step_s("split", **slow) == pytest.approx(27.13)


def test_where_split_stops_hiding_everything() -> None:
    # 10 colliding bytes under 1 s of weights want 10 bytes/s; all 27 under 3 s want 9
    assert split_pays_until_ratio(LOAD) == pytest.approx(27 / 10 / 3)
    # nothing collides: all bytes under the compute
    assert split_pays_until_ratio(dataclasses.replace(LOAD, collision_share=0)) == pytest.approx(1)
    assert split_pays_until_ratio(dataclasses.replace(LOAD, apply_s=1.0)) == 0.0
    silent = dict.fromkeys(("row_bytes", "gradient_bytes", "dense_bytes", "id_bytes"), 0.0)
    assert split_pays_until_ratio(dataclasses.replace(LOAD, **silent)) == math.inf


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="collision_share is 2; it lies in 0"):
        dataclasses.replace(LOAD, collision_share=2)
    with pytest.raises(ValueError, match="weights_s is -1"):
        dataclasses.replace(LOAD, weights_s=-1)
    with pytest.raises(ValueError, match="must be above 0"):
        dataclasses.replace(LOAD, payload_bytes_per_s=0)
    with pytest.raises(ValueError, match="known are synchronous, ids_ahead"):
        forecast("stale", LOAD)
