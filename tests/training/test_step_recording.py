"""The recorder in somebody else's loop: parts that sum, waits that tell who was late, a load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics import warehouse
from analytics.errors import ConfigError
from analytics.journal import read_journal
from analytics.schema import DimRun, FactCollective, FactStep
from tests.training.recording_programs import ddp_loop, failing_loop, uneven_waits
from training.step_recording import StepRecording

OnRanks = Callable[..., list[Any]]
LATE_S = 0.05


def steps_of(runs: Path, attempt: int = 0) -> list[FactStep]:
    return read_journal(runs / "mine" / f"attempt-{attempt}" / "journal", FactStep).records


def parts_sum(step: FactStep) -> float:
    parts = (
        step.busy_s, step.straggler_wait_s or 0.0, step.exposed_comm_s or 0.0,
        step.exposed_copy_s, step.data_wait_s, step.unattributed_s,
    )  # fmt: skip
    return sum(parts)


def test_a_late_rank_is_what_the_other_waits_for(on_ranks: OnRanks, tmp_path: Path) -> None:
    results = on_ranks(ddp_loop, 2, tmp_path, LATE_S, True)
    steps = steps_of(tmp_path)
    assert sorted((s.rank, s.step) for s in steps) == [(r, s) for r in (0, 1) for s in range(5)]
    for step in steps:
        assert parts_sum(step) == pytest.approx(step.window_s, abs=1e-6)
        assert step.unattributed_s >= 0
        assert step.straggler_wait_s is not None
        assert (step.num_sequences, step.num_tokens) == (4 + step.rank, 40)
        assert step.loss_sum > 0
        assert step.block == step.step // 2
        # gradients of 4 x (64 x 64 + 64) floats, half of which a ring of two sends twice
        assert step.sent_bytes == pytest.approx(4 * (64 * 64 + 64) * 4, abs=8)
    waited = {rank: [s.straggler_wait_s for s in steps if s.rank == rank] for rank in (0, 1)}
    assert np.median(waited[0]) > 0.8 * LATE_S  # type: ignore[arg-type]
    assert np.median(waited[1]) < 0.2 * LATE_S  # type: ignore[arg-type]
    busy = [s.busy_s for s in steps if s.rank == 1]
    assert min(busy) >= LATE_S  # what is not marked as wait is the rank's own
    # between steps: 10 ms, but for the very last, which ends the recording
    data = {s.step: s.data_wait_s for s in steps if s.rank == 0}
    assert all(data[step] >= 0.01 for step in range(4))
    assert data[4] == 0.0
    assert set(results[0]["waited"]) == {"gradients", "loss"}
    collectives = read_journal(tmp_path / "mine" / "attempt-0" / "journal", FactCollective).records
    assert {(c.label, c.rank) for c in collectives} == {
        (label, rank) for label in ("gradients", "loss") for rank in (0, 1)
    }
    late = [c.last_rank for c in collectives if c.label == "gradients"]
    assert sorted(late)[len(late) // 2] == 1  # who was late is named
    of_steps, of_waits = (sum(r.straggler_wait_s for r in rows) for rows in (steps, collectives))
    assert of_waits == pytest.approx(of_steps, abs=1e-6)


def test_the_hook_gives_the_gradients_that_ddp_gives(on_ranks: OnRanks, tmp_path: Path) -> None:
    ours = on_ranks(ddp_loop, 2, tmp_path / "a", 0.0, True)
    plain = on_ranks(ddp_loop, 2, tmp_path / "b", 0.0, False)
    for mine, theirs in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine["gradient"], theirs["gradient"], rtol=1e-6, atol=1e-9)


def test_the_journal_loads_and_a_second_start_is_a_second_attempt(
    on_ranks: OnRanks, tmp_path: Path
) -> None:
    for _ in range(2):
        on_ranks(ddp_loop, 2, tmp_path, 0.0, True)
    report = warehouse.load(tmp_path)
    assert report.pipelines == {"mine": 1}
    assert (report.rows["fact_step"], report.rows["dim_run"]) == (10, 1)
    warehouse.publish(tmp_path)
    with warehouse.open_published(tmp_path) as con:
        query = "SELECT placement, num_steps, world_size FROM dim_run"
        assert con.execute(query).fetchall() == [("lpt_free", 5, 2)]
        share = con.execute("SELECT bubble_share, straggler_share FROM run_efficiency").fetchall()
        assert all(0 <= value <= 1 for value in share[0])


def test_waits_that_do_not_match_leave_the_split_unknown(on_ranks: OnRanks, tmp_path: Path) -> None:
    on_ranks(uneven_waits, 2, tmp_path)
    for step in steps_of(tmp_path):
        assert (step.straggler_wait_s, step.exposed_comm_s) == (None, None)
        assert step.exposed_comm_total_s >= 0.001 * (1 + step.rank)


def test_an_error_in_the_loop_ends_without_waiting_and_keeps_what_was_recorded(
    on_ranks: OnRanks, tmp_path: Path
) -> None:
    assert on_ranks(failing_loop, 2, tmp_path) == ["the disk is full"] * 2
    assert sorted((s.rank, s.step) for s in steps_of(tmp_path)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_one_process_alone_waits_for_nobody(tmp_path: Path) -> None:
    with StepRecording(tmp_path, run_id="mine", block_steps=3) as recording:
        for epoch in range(4):
            with recording.step(epoch=epoch), recording.data_wait():
                sum(range(1000))
    steps = steps_of(tmp_path)
    assert [(s.step, s.epoch, s.block) for s in steps] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 2, 0),
        (3, 3, 1),
    ]
    assert all(s.straggler_wait_s == 0.0 and s.data_wait_s > 0 for s in steps)
    runs = read_journal(tmp_path / "mine" / "attempt-0" / "journal", DimRun).records
    assert [run.num_steps for run in runs] == [0, 4]


def test_a_column_that_a_run_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dim_run has no column 'placment'"):
        StepRecording(tmp_path, run_id="mine", described={"placment": "lpt_free"})
    with pytest.raises(ConfigError, match="block_steps is 0"):
        StepRecording(tmp_path, run_id="mine", block_steps=0)
