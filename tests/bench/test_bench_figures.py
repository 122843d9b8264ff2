"""What the benches compute of measured seconds, on paper."""

from __future__ import annotations

import pytest

from bench.arms_in_turn import Arm, Spec, reference_of, turns
from bench.bubble import imbalance, table, with_intervals
from bench.figures import (
    counted,
    interval_of_mean,
    interval_of_removed,
    over_blocks,
    removed_share,
)
from bench.overlap import chunk_bytes, with_link_costs, with_removed


def test_the_first_two_steps_and_the_last_are_not_counted() -> None:
    assert counted([9.0, 8.0, 1.0, 2.0, 7.0]) == [1.0, 2.0]
    with pytest.raises(AssertionError, match="more steps"):
        counted([1.0, 2.0, 3.0])


def test_a_figure_is_the_median_of_the_blocks_medians() -> None:
    blocks = [[0, 0, 1.0, 2.0, 30.0, 0], [0, 0, 4.0, 4.0, 4.0, 0], [0, 0, 3.0, 3.0, 9.0, 0]]
    spread = over_blocks(blocks)  # medians 2, 4, 3
    assert (spread.middle, spread.low, spread.high) == (3.0, 2.0, 4.0)


def test_removed_is_one_minus_ours_over_the_baseline() -> None:
    assert removed_share(1.0, 50.0) == pytest.approx(0.98)
    assert removed_share(60.0, 50.0) == pytest.approx(-0.2)  # a loss is told as one
    assert removed_share(1.0, 0.0) is None


def test_intervals_hold_blocks_together() -> None:
    # every block removes exactly nine tenths, however different the blocks are
    low, high = interval_of_removed([0.1, 1.0, 10.0], [1.0, 10.0, 100.0])
    assert low == pytest.approx(0.9) and high == pytest.approx(0.9)
    low, high = interval_of_mean([1.0, 2.0, 3.0])
    assert 1.0 <= low < 2.0 < high <= 3.0


def test_what_is_removed_against_both_baselines() -> None:
    rows = [
        {"arm": "torchrec", "over_floor_s": 0.100, "exposed_s": None},
        {"arm": "ids_ahead", "over_floor_s": 0.080, "exposed_s": 0.050},
        {"arm": "split", "over_floor_s": 0.002, "exposed_s": 0.001},
    ]
    theirs, _, ours = with_removed(rows)
    assert ours["removed_of_torchrec_over_floor_share"] == pytest.approx(0.98)
    assert ours["removed_of_ids_ahead_over_floor_share"] == pytest.approx(0.975)
    assert ours["removed_of_ids_ahead_exposed_share"] == pytest.approx(0.98)
    assert theirs["removed_of_ids_ahead_exposed_share"] is None  # its waits are not known


def test_what_a_link_costs_is_told_against_the_arms_own_free_step() -> None:
    def row(rate: str, arm: str, step_s: float) -> dict[str, object]:
        return {"model": "emulated", "rate": rate, "arm": arm, "step_s": step_s}

    rows = with_link_costs(
        [
            row("unlimited", "torchrec", 0.13),
            row("unlimited", "split", 0.12),
            row("30mbit", "torchrec", 0.33),
            row("30mbit", "split", 0.13),
        ]
    )
    assert [r["link_cost_s"] for r in rows] == [None, None, pytest.approx(0.2), pytest.approx(0.01)]
    assert rows[3]["removed_of_torchrec_link_cost_share"] == pytest.approx(0.95)


def test_a_piece_is_five_milliseconds_of_wire() -> None:
    # 100 mbit/s are 12.5 MB/s, of which 1 / 1.066 is payload
    assert chunk_bytes("100mbit") == int(0.005 * 12.5e6 / 1.066)


def test_stragglers_and_exchange_are_removed_apart() -> None:
    baseline = {
        "step_s": [0.2, 0.2],
        "straggler_wait_s": [0.04, 0.04],
        "exposed_comm_s": [0.1, 0.1],
    }
    baseline["imbalance_s"] = [0.04, 0.04]
    ours = {"step_s": [0.1, 0.1], "straggler_wait_s": [0.001, 0.003], "exposed_comm_s": [0.1, 0.1]}
    ours["imbalance_s"] = [0.0, 0.0]
    row = with_intervals(ours, baseline)
    assert row["removed_straggler_wait_share"] == pytest.approx(0.95)  # 0.002 of 0.04
    assert row["removed_exposed_comm_share"] == pytest.approx(0.0)
    assert row["removed_imbalance_share"] == pytest.approx(1.0)
    assert with_intervals({"step_s": [0.1]}, baseline)["removed_straggler_wait_share"] is None
    assert imbalance([1.0, 3.0]) == 1.0  # one of two ranks waits two


def test_the_bubble_table_tells_every_figure_with_its_interval() -> None:
    keys = ("step_s", "straggler_wait_s", "exposed_comm_s", "imbalance_s", "busy_s", "cpu_s")
    # two blocks alike, so that an interval is its figure: 1, 2, 3 ... ms, half of the baseline's
    ours = {key: [(place + 1) / 1e3] * 2 for place, key in enumerate(keys)}
    baseline = {key: [2 * value for value in values] for key, values in ours.items()}
    about = {"model": "real", "ranks": 2, "link": "l", "arm": "a", "work": "cpu_s"}
    about |= {f"difference_{kind}": 0.0 for kind in
              ("table", "table_state", "dense", "dense_state", "loss")}  # fmt: skip
    heads, rules, row = table([about | with_intervals(ours, baseline)])
    cells = dict(zip(*([c.strip() for c in line.split("|")[1:-1]] for line in (heads, row)),
                     strict=True))  # fmt: skip
    assert rules.count("|") == heads.count("|")
    assert cells["step [ms]"] == "1.0 (1.0..1.0)"
    assert cells["straggler wait [ms]"] == "2.0 (2.0..2.0)"
    assert cells["imbalance of own work [ms]"] == "4.0 (4.0..4.0) (CPU)"
    assert cells["own CPU time [ms]"] == "6.0 (6.0..6.0)"


def test_arms_take_turns_and_are_compared_with_what_they_must_equal() -> None:
    arms = tuple(
        Arm(name=name, schedule=schedule, placement=placement)
        for name, schedule, placement in (
            ("theirs", "torchrec", "random"),
            ("a", "ids_ahead", "random"),
            ("b", "ids_ahead", "balanced"),
            ("c", "split", "balanced"),
        )
    )
    assert [[arm.name for arm in turns(arms, block)] for block in (0, 1)] == [
        ["theirs", "a", "b", "c"],
        ["a", "b", "c", "theirs"],
    ]
    found = {}
    for model in ("emulated", "real"):
        spec = Spec(model=model, arms=arms, num_blocks=1, block_steps=4, chunk_bytes=1)
        found[model] = [reference_of(arm, spec).name for arm in arms]
    assert found == {"emulated": ["a", "a", "a", "a"], "real": ["a", "a", "b", "b"]}
