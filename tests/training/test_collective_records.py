"""What a step's waits tell one by one is what the step tells of them all."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analytics.journal import JournalWriter, read_journal
from analytics.schema import FactCollective, FactStep
from tests.training import comm_programs as programs
from tests.training.rank_programs import make_job, make_store, train
from training.block_records import BlockRecords
from training.comm.clocks import SHARED, LastArrivals, alone
from training.config import ArmConfig
from training.job_records import JobSpans
from training.loop_records import RecordedStep
from training.recorder import Wait, Window
from training.step_parts import wait_parts

OnRanks = Callable[..., list[Any]]
NS = 1e-9


def paper_window() -> Window:
    """100 ns: rows 10-40, a copy in them 12-16, and dense 50-60 whose thread came at 55."""
    return Window(
        begin_ns=0,
        started_unix_ns=1_000,
        end_ns=100,
        work_ns=60,
        waits=[
            Wait(begin_ns=10, end_ns=40, arrival_ns=8, kind="rows"),
            Wait(begin_ns=50, end_ns=60, arrival_ns=55, kind="dense", label="b"),
        ],
        background=[(16, 40)],
        copies=[(12, 16)],
    )


@contextlib.contextmanager
def blocks_in(folder: Path) -> Iterator[BlockRecords]:
    ids = {"pipeline_id": "p", "attempt": 1, "rank": 3}
    with JournalWriter(folder, "paper") as journal:
        yield BlockRecords(journal, JobSpans(journal, **ids), record_collectives=True, **ids)


def told_of(*steps: int) -> dict[str, Any]:
    told = [{**vars(RecordedStep(step=step)), "was_skipped": None} for step in steps]
    return {name: [of_step[name] for of_step in told] for name in told[0]}


def written(
    folder: Path, window: Window, lasts: LastArrivals | None
) -> tuple[FactStep, list[FactCollective]]:
    """What a block of this window alone leaves in the journal."""
    with blocks_in(folder) as blocks:
        begin_cpu_ns = time.thread_time_ns()
        blocks.write("r", 2, [window], told_of(7), lasts, mark_ns=0.0, begin_cpu_ns=begin_cpu_ns)
    (step,) = read_journal(folder, FactStep).records
    return step, read_journal(folder, FactCollective).records


def test_each_wait_is_split_and_the_parts_are_its_length() -> None:
    # sorted: dense, then rows. Dense: the last comes at 58, so 3 of 10 were waiting for it.
    # Rows: the last at 14, so 10-14 was waiting (of the copy too), 14-16 copied, 24 on the wire.
    dense, rows = wait_parts(paper_window(), [58, 14])
    assert (dense.straggler_ns, dense.wire_ns, dense.copied_ns) == (3, 7, 0)
    assert (rows.straggler_ns, rows.wire_ns, rows.copied_ns) == (4, 24, 2)
    assert (dense.exposed_ns, rows.exposed_ns) == (10, 28)


def test_a_collective_tells_who_came_when_on_the_clock_of_its_rank(tmp_path: Path) -> None:
    lasts = LastArrivals(arrival_ns=[[58, 14]], rank=[[2, 0]], clock=SHARED)
    step, (dense, rows) = written(tmp_path, paper_window(), lasts)
    assert (step.run_id, step.attempt, step.rank, step.block, step.step) == ("r", 1, 3, 2, 7)
    assert step.started_unix_ns == 1_000
    assert step.busy_s == pytest.approx(60 * NS)
    assert step.straggler_wait_s == pytest.approx(7 * NS)
    assert (dense.collective, dense.kind, dense.label) == (0, "dense", "b")
    assert (rows.collective, rows.kind, rows.label) == (1, "rows", "")
    assert (rows.run_id, rows.pipeline_id, rows.attempt) == ("r", "p", 1)
    assert (rows.rank, rows.step) == (3, 7)
    assert (rows.arrived_unix_ns, rows.began_unix_ns) == (1_008, 1_010)
    assert (rows.last_arrived_unix_ns, rows.last_rank) == (1_014, 0)
    assert rows.duration_s == pytest.approx(30 * NS)
    assert rows.sent_bytes is None


def test_without_all_arrivals_the_split_is_unknown_and_the_exposed_time_is_not(
    tmp_path: Path,
) -> None:
    step, found_waits = written(tmp_path, paper_window(), None)
    assert (step.straggler_wait_s, step.exposed_comm_s) == (None, None)
    assert len(found_waits) == 2
    for found in found_waits:
        assert (found.straggler_wait_s, found.wire_s) == (None, None)
        assert (found.last_arrived_unix_ns, found.last_rank) == (None, None)
        assert found.exposed_s is not None and found.exposed_s > 0


def test_what_recording_takes_is_told_by_the_steps(tmp_path: Path) -> None:
    # two windows of 7 marks of 1,000 ns each; the block began 4 ms of CPU time ago: 2 ms a step
    windows = [paper_window(), paper_window()]
    for window in windows:
        window.num_marks = 7
    with blocks_in(tmp_path) as blocks:
        began_ns = time.thread_time_ns()
        ago_ns = began_ns - 4_000_000
        blocks.write("r", 0, windows, told_of(0, 1), None, mark_ns=1_000, begin_cpu_ns=ago_ns)
        first_ns = time.thread_time_ns() - began_ns
        windows = [paper_window()]
        began_ns = time.thread_time_ns()
        blocks.write("r", 1, windows, told_of(2), None, mark_ns=0, begin_cpu_ns=began_ns)
        second_ns = time.thread_time_ns() - began_ns
    steps = read_journal(tmp_path, FactStep).records
    assert [step.recorder_cpu_s for step in steps] == [7e-6, 7e-6, 0]
    told_s = [step.recorder_cpu_s + step.recording_block_cpu_s for step in steps]
    assert told_s[0] == told_s[1]
    assert told_s[0] > 2 * 1e-3 + 7e-6
    # all is told once, but for the lines of the last block
    told_ns = sum(told_s) * 1e9
    marks_ns = 2 * 7 * 1_000
    assert 4e6 + marks_ns + first_ns < told_ns < 4e6 + marks_ns + first_ns + second_ns


def test_one_rank_alone_is_the_last_and_waits_for_nobody() -> None:
    found = alone([[5, 9], []])
    assert (found.arrival_ns, found.rank) == ([[5, 9], []], [[0, 0], []])


def test_of_ranks_that_come_together_the_lowest_is_named(on_ranks: OnRanks) -> None:
    # arrivals of ranks 0, 1, 2 at three waits: 1 and 2 together; 2; all together
    arrivals = [[[10, 7, 5]], [[20, 8, 5]], [[20, 9, 5]]]
    for arrival_ns, rank in on_ranks(programs.arrive, 3, arrivals):
        assert arrival_ns == [[20, 9, 5]]
        assert rank == [[1, 2, 0]]


@pytest.mark.parametrize("schedule", ["synchronous", "split"])
def test_the_waits_of_a_real_run_sum_to_their_steps(
    tmp_path: Path, on_ranks: OnRanks, schedule: str
) -> None:
    store = make_store(tmp_path / "store", [5, 6, 7, 30, 9, 12, 11, 8, 6, 14, 22, 5], 50)
    arm = ArmConfig(name="only", placement="lpt_free", schedule=schedule)
    job = make_job(tmp_path, store, (arm,), num_ranks=2, batch=4)
    on_ranks(train, 2, job)
    steps = read_journal(job.journal_dir, FactStep).records
    waits: defaultdict[tuple[int, int], list[FactCollective]] = defaultdict(list)
    for found in read_journal(job.journal_dir, FactCollective).records:
        waits[found.rank, found.step].append(found)
    assert len(steps) == 6
    for step in steps:
        mine = waits[step.rank, step.step]
        slack = NS * (len(mine) + 1)
        for total, one in (
            (step.straggler_wait_s, "straggler_wait_s"),
            (step.exposed_comm_s, "wire_s"),
            (step.exposed_comm_total_s, "exposed_s"),
        ):
            assert sum(getattr(wait, one) for wait in mine) == pytest.approx(total, abs=slack)
        others = waits[1 - step.rank, step.step]
        assert [w.last_rank for w in mine] == [w.last_rank for w in others]
        assert [(w.kind, w.label) for w in mine] == [(w.kind, w.label) for w in others]
        # whoever came last waited for nobody
        assert all(w.straggler_wait_s == 0 for w in mine if w.last_rank == step.rank)
        assert step.model_flops > 0


def test_a_run_that_is_asked_not_to_records_no_waits(tmp_path: Path, on_ranks: OnRanks) -> None:
    store = make_store(tmp_path / "store", [5, 6, 7, 9], 50)
    arm = ArmConfig(name="only", placement="random_equal", schedule="synchronous")
    job = make_job(tmp_path, store, (arm,), num_ranks=1, train={"record_collectives": False})
    on_ranks(train, 1, job)
    assert read_journal(job.journal_dir, FactStep).records != []
    assert read_journal(job.journal_dir, FactCollective).records == []
