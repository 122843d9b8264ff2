"""A job's wall time: steps that were kept and eight causes, which add up to the nanosecond."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import measures, run_facts, schema
from analytics.ddl import views
from analytics.errors import WarehouseError

PIPELINE = "20261130T140000Z-1a2b"
START = 1_796_047_200_000_000_000
S = 10**9


def span(kind, began_s, duration_s, rank=0, attempt=0):
    return schema.FactSpan(
        pipeline_id=PIPELINE, attempt=attempt, run_id=None, rank=rank, span_kind=kind, label=kind,
        began_unix_ns=START + round(began_s * S), duration_s=duration_s,
    )  # fmt: skip


def attempt(number, began_s, ended_s, *, is_kept, window_s=0.0):
    return schema.DimAttempt(
        pipeline_id=PIPELINE, attempt=number, began_unix_ns=START + round(began_s * S),
        ended_unix_ns=START + round(ended_s * S), is_kept=is_kept, num_ranks=2, num_rank_steps=2,
        window_s=window_s,
    )  # fmt: skip


def shares(filled):
    causes = {row["cause"]: row for row in measures.badput_causes(filled.con, PIPELINE)}
    return causes, measures.goodput(filled.con, PIPELINE)


def test_time_outside_of_steps_is_told_by_cause(paper, filled):
    # four steps of 4 s of rank 0 from 10 s on, of which 3 s are its own work and rank 1's 1 s
    steps = [
        paper.step("baseline", r, s, started_unix_ns=START + (10 + 4 * s) * S)
        for s in range(4)
        for r in range(2)
    ]
    spans = [span("start_up", 0, 8), span("data", 8, 2), span("evaluation", 26, 4),
             span("registration", 32, 8), span("start_up", 0, 30, rank=1)]  # fmt: skip
    filled.write([paper.run("baseline"), *steps, *spans])
    causes, job = shares(filled)
    # 40 s: 8 + 2 before, 16 of steps, 4 of evaluation, 2 that nothing tells of, 8 of registration
    assert job["wall_s"] == 40.0
    assert job["goodput_share"] == pytest.approx(0.4)
    assert {c: row["seconds"] for c, row in causes.items()} == {
        "productive": 16.0, "start_up": 8.0, "data": 2.0, "checkpoint": 0.0, "evaluation": 4.0,
        "registration": 8.0, "disruption": 0.0, "redone": 0.0, "unknown": 2.0,
    }  # fmt: skip
    # half of the rank time is bubble
    assert job["effective_share"] == pytest.approx(0.2)


def test_steps_of_an_attempt_that_was_not_kept_are_redone(paper, filled):
    # attempt 0 ran 0-10 s: 3 s start-up, 5 s of steps on each of two ranks; it was down for 4 s
    steps = [
        paper.step("baseline", r, s, attempt=1, started_unix_ns=START + (16 + 4 * s) * S)
        for s in range(2)
        for r in range(2)
    ]
    spans = [span("start_up", 0, 3), span("start_up", 14, 2, attempt=1)]
    tried = [
        attempt(0, 0, 10, is_kept=False, window_s=10.0),
        attempt(1, 14, 24, is_kept=True, window_s=16.0),
    ]
    filled.write([paper.run("baseline", attempt=1), *steps, *spans, *tried])
    causes, job = shares(filled)
    assert {c: row["seconds"] for c, row in causes.items() if row["seconds"]} == {
        "productive": 8.0, "start_up": 5.0, "disruption": 4.0, "redone": 5.0, "unknown": 2.0,
    }  # fmt: skip
    assert job["goodput_share"] == pytest.approx(8 / 24)
    assert job["redone_share"] == pytest.approx(5 / 24)


def test_an_evaluation_beside_steps_takes_nothing_from_them(paper, filled):
    steps = [paper.step("baseline", 0, s) for s in range(2)]
    filled.write([paper.run("baseline", world_size=1), *steps, span("evaluation", 2, 10)])
    causes, _ = shares(filled)
    assert causes["productive"]["seconds"] == 8.0
    assert causes["evaluation"]["seconds"] == 4.0


def test_reporting_is_told_apart_and_moves_no_figure_of_any_view(paper, filled):
    spans = [span("start_up", 0, 8), span("evaluation", 26, 4)]
    steps = [
        paper.step("baseline", 0, s, started_unix_ns=START + (10 + 4 * s) * S) for s in range(4)
    ]
    held = schema.FactPoolEvent(  # a device whose release is missing: held until the last record
        pool_id="local", host="paper", device_id="cpu", event_unix_ns=START, event="allocated",
        pipeline_id=PIPELINE, purchase="own", device_hour_cost=1.0, currency="USD", reason=None,
    )  # fmt: skip
    filled.write([paper.run("baseline", world_size=1), *steps, *spans, held])

    def content():
        told = {v.name: filled.con.execute(f"FROM {v.name} ORDER BY ALL").df() for v in views()}
        told["run_goodput"] = told["run_goodput"].drop(columns="reporting_s")
        return told

    before = content()
    assert measures.goodput(filled.con, PIPELINE)["reporting_s"] is None
    filled.write([span("reporting", 31, 2), span("reporting", 33.5, 1.5)])
    after = content()
    assert [name for name in before if not before[name].equals(after[name])] == []
    job = measures.goodput(filled.con, PIPELINE)
    assert (job["wall_s"], job["reporting_s"]) == (30.0, 3.5)
    pipeline = run_facts._PIPELINE
    assert filled.con.execute(pipeline, [PIPELINE]).fetchall() == [(16.0, 30.0)]


def test_a_job_that_only_reported_has_no_goodput(paper, filled):
    filled.write([*paper.arm("baseline"), span("reporting", 0, 2)])
    causes, job = shares(filled)
    assert causes == {}
    assert job["goodput_share"] is None


def test_a_job_without_spans_has_no_goodput(paper, filled):
    filled.write(paper.arm("baseline"))
    causes, job = shares(filled)
    assert causes == {}
    assert job["goodput_share"] is None
    assert job["effective_share"] is None
    with pytest.raises(WarehouseError, match=r"nosuch: there is no such pipeline"):
        measures.goodput(filled.con, "nosuch")


OF_A_JOB = ["start_up", "data", "checkpoint", "evaluation", "registration", "disruption", "other"]
KINDS = st.sampled_from([*OF_A_JOB, "reporting"])
TIMES = st.integers(0, 60 * S)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    spans=st.lists(
        st.tuples(KINDS, TIMES, st.integers(0, 20 * S)),
        min_size=1,
        max_size=8,
        unique_by=lambda s: (s[0], s[1]),
    ),
    starts=st.lists(TIMES, max_size=5, unique=True),
    bounds=st.lists(TIMES, min_size=4, max_size=4, unique=True),
)
def test_goodput_and_causes_are_the_wall_time_exactly(paper, filled, spans, starts, bounds):
    steps = [
        paper.step("baseline", 0, n, started_unix_ns=START + at) for n, at in enumerate(starts)
    ]
    told = [span("start_up", 30, 1)]
    told += [span(kind, began / S, length / S) for kind, began, length in spans]
    bounds = sorted(bounds)
    tried = [
        attempt(0, bounds[0] / S, bounds[1] / S, is_kept=False, window_s=7.0),
        attempt(1, bounds[2] / S, bounds[3] / S, is_kept=True),
    ]
    filled.clear()
    filled.write([paper.run("baseline", world_size=1), *steps, *told, *tried])
    causes, job = shares(filled)
    told = [s for s in told if s.span_kind != "reporting"]  # no part of the job
    ends = [s.began_unix_ns + round(s.duration_s * S) for s in told]
    ends += [s.started_unix_ns + 4 * S for s in steps] + [tried[1].ended_unix_ns]
    begins = [s.began_unix_ns for s in told] + [s.started_unix_ns for s in steps]
    begins.append(tried[0].began_unix_ns)
    assert sum(row["part_ns"] for row in causes.values()) == max(ends) - min(begins)
    assert len(causes) == 9
    assert all(row["part_ns"] >= 0 for row in causes.values())
    assert sum(row["share"] for row in causes.values()) == pytest.approx(1.0, abs=1e-12)
    assert job["goodput_share"] == causes["productive"]["share"]
