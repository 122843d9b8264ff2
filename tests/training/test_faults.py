"""A rank that is gone ends the others with the reason; nothing hangs."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.fault_programs import TIMEOUT_S, failing_lane, train_with_a_death
from tests.training.schedule_programs import SCHEDULES
from training.config import TrainConfig
from training.engine import EngineOptions
from training.step_recording import StepRecording

LAW_S = 60  # a dead rank ends the others within it
TELLING_S = 5  # from the time-out's end to the reason in the loop, the steps before it included
CLOSING_S = 6


def run_with_a_death(
    rank_server: Any, folder: Path, schedule: str, how: str
) -> tuple[list[Any], float]:
    """What the ranks that live on say, and when the last of them has ended [s]."""
    from tests.training.conftest import _child

    running = []
    for rank in range(3):
        mine, theirs = rank_server.Pipe()
        given = (3, f"file://{folder}/rendezvous-{schedule}-{how}", schedule, how)
        process = rank_server.Process(target=_child, args=(train_with_a_death, theirs, rank, given))
        process.start()
        theirs.close()
        running.append((process, mine))
    begin, said = time.monotonic(), []
    try:
        for rank in (0, 2):
            process, mine = running[rank]
            assert mine.poll(60), f"rank {rank} said nothing for 60 s"
            succeeded, value = mine.recv()
            assert succeeded, value
            said.append(value)
            process.join(60)
            assert process.exitcode == 0
        return said, time.monotonic() - begin
    finally:
        for process, _ in running:
            process.kill()
            process.join()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_dead_rank_ends_the_others(rank_server: Any, tmp_path: Path, schedule: str) -> None:
    said, ended_s = run_with_a_death(rank_server, tmp_path, schedule, "dies")
    assert ended_s < LAW_S
    for problem, told_s, close_s in said:
        assert re.search(r"rank [02] lost rank [0-2] ", problem), problem
        assert told_s < TIMEOUT_S + TELLING_S
        assert close_s < CLOSING_S


@pytest.mark.parametrize("schedule", ["synchronous", "split"])
def test_a_rank_that_hangs_ends_the_others(rank_server: Any, tmp_path: Path, schedule: str) -> None:
    said, ended_s = run_with_a_death(rank_server, tmp_path, schedule, "sleeps")
    assert ended_s < LAW_S
    for problem, told_s, close_s in said:
        assert re.search(r"rank [02] lost rank [0-2] ", problem), problem
        assert told_s < TIMEOUT_S + TELLING_S
        assert close_s < CLOSING_S


def test_with_the_time_outs_given_by_default_the_others_end_within_a_minute() -> None:
    recording = inspect.signature(StepRecording.__init__).parameters["timeout_s"].default
    for timeout_s in (TrainConfig().collective_timeout_s, EngineOptions().timeout_s, recording):
        # the ranks above are told and closed within these margins beyond their own time-out
        assert 0 < timeout_s + TELLING_S + CLOSING_S <= LAW_S


def test_what_fails_in_a_lane_is_raised_in_the_loop_with_its_cause(on_ranks: Any) -> None:
    for told, cause, close_s in on_ranks(failing_lane, 1):
        assert told == ["the table is broken"] * 2  # and so is whatever is submitted later
        assert cause == "KeyError('a row')"
        assert close_s < 1
