"""Which devices a run had and what its time went to, as the flow's own journal tells it."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from analytics import warehouse
from analytics.errors import LaunchError
from analytics.hosts import host_name
from analytics.journal import JournalWriter, read_journal
from analytics.pipeline_loading import read_pipeline
from analytics.schema import DimPool, FactPoolEvent, FactSpan
from flows import allocation, request, steps, training_steps
from flows.allocation import allocated, devices_of
from flows.spans import reporting_span, reporting_times, spanned, write_span
from training.config import RunConfig
from training.planning.cost import NAMED_COSTS

Request = Callable[..., request.RunRequest]
COST = NAMED_COSTS["hstu-8x1024@h100"]


def events(made: request.RunRequest) -> list[FactPoolEvent]:
    return read_journal(made.journal_dir, FactPoolEvent).records


def spans(made: request.RunRequest) -> list[FactSpan]:
    return read_journal(made.journal_dir, FactSpan).records


def test_a_device_is_the_run_s_from_the_start_of_a_block_to_its_end(request_for: Request) -> None:
    made = request_for()
    before = time.time_ns()
    with allocated(made, "training, attempt 0"):
        assert [e.event for e in events(made)] == ["allocated"]  # told before, not after
    first, last = events(made)
    assert (first.event, last.event) == ("allocated", "released")
    assert before <= first.event_unix_ns < last.event_unix_ns <= time.time_ns()
    for event in (first, last):
        assert (event.pool_id, event.host, event.device_id) == ("local", host_name(), "cpu")
        assert (event.pipeline_id, event.reason) == (made.pipeline_id, "training, attempt 0")
        assert event.device_hour_cost == made.price.device_hour_cost * made.config.num_ranks
        assert (event.currency, event.purchase) == ("USD", "on_demand")
    (pool,) = read_journal(made.journal_dir, DimPool).records
    assert (pool.pool_id, pool.cloud, pool.num_devices) == ("local", "aws", 1)
    assert allocation.last_end_unix_ns(made) == last.event_unix_ns


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_no_step_costs_more_than_the_devices_that_were_held_for_it(
    request_for: Request, num_ranks: int
) -> None:
    made = request_for()
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, num_ranks=num_ranks))
    with allocated(made, "training"):
        pass
    told = events(made)[0]
    # a step of all ranks costs ranks x window x price; the allocation that holds it no less
    assert told.device_hour_cost == made.price.device_hour_cost * num_ranks
    assert [e.device_id for e in events(made) if e.event == "allocated"] == ["cpu"]


def test_a_rank_that_dies_ends_the_allocation_as_failed_and_says_why(request_for: Request) -> None:
    made = request_for()
    with pytest.raises(LaunchError), allocated(made, "training"):
        raise LaunchError("training: rank 1 of 2 (pid 7) failed first.\nLog: x\n  | a line")
    last = events(made)[-1]
    assert (last.event, last.reason) == ("failed", "training: rank 1 of 2 (pid 7) failed first.")


def test_an_attempt_that_fails_gives_all_its_devices_back_at_once(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = request_for()
    monkeypatch.setattr(allocation, "devices_of", lambda _: ["GPU-a", "GPU-b"])
    with pytest.raises(LaunchError), allocated(made, "training"):
        raise LaunchError("training: rank 1 of 2 (pid 7) failed first.")
    ends = [e for e in events(made) if e.event != "allocated"]
    assert [(e.device_id, e.event) for e in ends] == [("GPU-a", "failed"), ("GPU-b", "failed")]
    assert len({e.event_unix_ns for e in ends}) == 1
    assert {e.reason for e in ends} == {"training: rank 1 of 2 (pid 7) failed first."}


def test_what_breaks_off_a_training_is_no_failure_of_a_device(request_for: Request) -> None:
    made = request_for()
    with pytest.raises(KeyboardInterrupt), allocated(made, "training"):
        raise KeyboardInterrupt
    last = events(made)[-1]
    assert (last.event, last.reason) == ("released", "training, broken off by KeyboardInterrupt")


def test_a_disk_that_fills_up_hides_no_failure(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = request_for()
    with pytest.raises(LaunchError, match="the first"), allocated(made, "training"):
        shutil.rmtree(made.journal_dir)
        made.journal_dir.write_text("no folder any more")
        raise LaunchError("the first")


def test_a_machine_of_one_s_own_is_not_rented(request_for: Request) -> None:
    made = request_for()
    own = dataclasses.replace(made, price=dataclasses.replace(made.price, cloud="own"))
    with allocated(own, "training"):
        pass
    assert {event.purchase for event in events(own)} == {"own"}


def test_ranks_take_as_many_gpus_as_there_are_ranks(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: RunConfig = request_for().config
    assert devices_of(config) == ["cpu"]
    train = dataclasses.replace(config.train, device="cuda", transport="auto")
    config = dataclasses.replace(config, train=train, num_ranks=2)
    given = ["GPU-a", "GPU-b", "GPU-c"]
    monkeypatch.setattr("analytics.telemetry.devices.given_device_ids", lambda: given)
    assert devices_of(config) == ["GPU-a", "GPU-b"]
    monkeypatch.setattr("analytics.telemetry.devices.given_device_ids", list)
    assert devices_of(config) == ["gpu-0", "gpu-1"]


def test_a_span_is_told_also_when_its_block_fails(request_for: Request) -> None:
    made = request_for()
    with spanned(made, "evaluation", "ranking", attempt=2):
        pass
    with pytest.raises(LaunchError), spanned(made, "registration", "into MLflow"):
        raise LaunchError("MLflow is gone")
    told = [(s.span_kind, s.label, s.attempt, s.rank, s.run_id) for s in spans(made)]
    assert told == [
        ("evaluation", "ranking", 2, 0, None),
        ("registration", "into MLflow", 0, 0, None),
    ]
    write_span(made, "other", "a clock that was set back", time.time_ns() + 10**12)
    assert len(spans(made)) == 2


def test_reporting_is_told_in_order_and_belongs_to_no_attempt_s_time(request_for: Request) -> None:
    made = request_for()
    with spanned(made, "evaluation", "ranking"):
        pass
    with JournalWriter(made.pipeline_dir / "attempt-0" / "journal", "rank-00000") as journal:
        journal.write(dataclasses.replace(spans(made)[0], rank=1))
    for label in ("load", "publish"):
        with reporting_span(made, label, attempt=0):
            pass
    times = reporting_times(made)
    assert [label for label, _ in times] == ["load", "publish"]
    assert all(length_s > 0 for _, length_s in times)
    read = read_pipeline(made.pipeline_dir)
    (attempt,) = read.records["dim_attempt"].values()
    (evaluation,) = [s for s in spans(made) if s.span_kind == "evaluation"]
    ended_ns = evaluation.began_unix_ns + round(evaluation.duration_s * 1e9)
    assert attempt.ended_unix_ns == ended_ns
    assert len(read.records["fact_span"]) == 4  # a load that comes later has them all


def test_the_time_between_two_attempts_is_disruption(request_for: Request) -> None:
    made = request_for()
    prepared = steps.prepare_step(made)
    plan_dir = steps.plan_step(made, prepared, COST)
    request.claim(made)
    jobs = []
    for number in range(2):
        jobs.append(training_steps.new_job(made, prepared, plan_dir))
        training_steps._tell_disruption(made, jobs[-1])
        if number == 0:
            assert spans(made) == []
            with pytest.raises(LaunchError), allocated(made, "training"):
                raise LaunchError("a rank was killed")
    (span,) = spans(made)
    failed = events(made)[-1].event_unix_ns
    assert (span.span_kind, span.attempt, span.began_unix_ns) == ("disruption", 1, failed)
    assert jobs[1].launched_unix_ns == pytest.approx(failed + span.duration_s * 1e9, abs=1000)


def test_events_and_spans_load(request_for: Request) -> None:
    made = request_for()
    with spanned(made, "data", "reading"), allocated(made, "training"):
        pass
    report = warehouse.load(Path(made.runs_dir))
    assert (report.rows["fact_pool_event"], report.rows["dim_pool"]) == (2, 1)
    assert report.rows["fact_span"] == 1
