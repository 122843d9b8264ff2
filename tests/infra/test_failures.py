"""Of several failed ranks the first one is the cause; a survivor's error only follows from it."""

import json
import os
from pathlib import Path

from infra.launchers.failures import first_failure


def note_end(prefix: Path, rank: int, *, code: int, at_s: float, stopped: bool = False) -> None:
    noted = {"pid": 100 + rank, "exit_code": code, "stopped": stopped}
    path = Path(f"{prefix}{rank}.exit.json")
    path.write_text(json.dumps({**noted, "ended_unix_ns": int(at_s * 1e9)}), encoding="utf-8")


def note_error(prefix: Path, rank: int, message: str, *, at_s: float) -> None:
    path = Path(f"{prefix}{rank}.error.json")
    path.write_text(json.dumps({"message": {"message": message}}), encoding="utf-8")
    os.utime(path, (at_s, at_s))


def test_a_rank_that_died_just_before_a_survivors_error_is_first(tmp_path):
    prefix = tmp_path / "m-rank-"
    note_error(prefix, 0, "RuntimeError: connection closed by peer", at_s=1000.02)
    note_end(prefix, 0, code=1, at_s=1000.9)
    note_end(prefix, 1, code=-9, at_s=1000.05)  # its supervisor woke up late
    first = first_failure(prefix, 2)
    assert first is not None
    assert (first.rank, first.exit_code, first.pid) == (1, -9, 101)


def test_an_exception_counts_from_when_it_was_recorded_not_from_the_slow_end(tmp_path):
    prefix = tmp_path / "m-rank-"
    note_error(prefix, 0, "RuntimeError: connection closed by peer", at_s=1001.0)
    note_end(prefix, 0, code=1, at_s=1001.2)
    note_error(prefix, 1, "ValueError: the cause", at_s=1000.0)
    note_end(prefix, 1, code=1, at_s=1002.0)
    first = first_failure(prefix, 2)
    assert first is not None
    assert (first.rank, first.error) == (1, "ValueError: the cause")


def test_a_rank_that_was_told_to_stop_is_never_the_cause(tmp_path):
    prefix = tmp_path / "m-rank-"
    note_end(prefix, 0, code=-15, at_s=999.0, stopped=True)
    note_end(prefix, 1, code=7, at_s=1000.0)
    first = first_failure(prefix, 2)
    assert first is not None
    assert first.rank == 1


def test_a_rank_that_vanished_with_its_supervisor_is_the_cause(tmp_path):
    prefix = tmp_path / "m-rank-"
    note_end(prefix, 0, code=1, at_s=1000.0)
    first = first_failure(prefix, 2)
    assert first is not None
    assert (first.rank, first.pid) == (1, None)


def test_without_any_rank_there_is_no_first_failure(tmp_path):
    assert first_failure(tmp_path / "m-rank-", 2) is None


def test_ranks_killed_with_torchrun_are_not_the_cause(tmp_path):
    prefix = tmp_path / "m-rank-"
    note_end(prefix, 1, code=-9, at_s=1000.0)  # rank 0's supervisor did not live to note its end
    assert first_failure(prefix, 2, torchrun_was_killed=True) is None
    note_end(prefix, 0, code=3, at_s=999.0)
    first = first_failure(prefix, 2, torchrun_was_killed=True)
    assert first is not None
    assert (first.rank, first.exit_code) == (0, 3)
