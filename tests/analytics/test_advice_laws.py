"""Advice contradicts no measure and no other advice; each has worth, evidence and confidence."""

import contextlib
import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import schema
from analytics.errors import WarehouseError
from analytics.measures import straggler_ranking
from analytics.metrics import query_errors
from analytics.records import table_name
from analytics.run_advice import advise
from analytics.run_findings import ALREADY, MEASURE, NOTHING
from tests.analytics.paper_warehouse import (
    NOON_NS,
    attempt,
    event,
    rank_of,
    sample,
    warehouse_of,
)

S = 10**9
SPARE = dict(
    exposed_comm_s=0.0, exposed_copy_s=0.0, data_wait_s=0.0, unattributed_s=0.0, exposed_ids_s=0.0,
    exposed_gradients_s=0.0, exposed_dense_s=0.0,
)  # fmt: skip


def steps_of(paper, busy_s, cost_s, *, cpu_s=None, num=40, **changes):
    """Steps that last as long as the longest work of a rank; the others wait for it."""
    made = []
    for step in range(num):
        for rank, own_s in enumerate(busy_s):
            wait_s = max(busy_s) - own_s
            values = SPARE | dict(
                busy_s=own_s, cpu_s=(cpu_s or busy_s)[rank], predicted_cost_s=cost_s[rank],
                straggler_wait_s=wait_s, exposed_comm_total_s=wait_s, exposed_rows_s=wait_s,
                window_s=max(busy_s), pipeline_id="a",
                started_unix_ns=NOON_NS + round(step * max(busy_s) * 1e9),
            )  # fmt: skip
            one = paper.step("baseline", 0, step, **(values | changes))
            made.append(dataclasses.replace(one, rank=rank))
    return made


def run_of(paper, world_size=2, **changes):
    values = dict(pipeline_id="a", world_size=world_size, started_unix_ns=NOON_NS)
    return paper.run("baseline", **(values | changes))


def advised(*records):
    with warehouse_of(*records) as con:
        [run] = advise(con, "latest")
        ranking = {row["rank"]: row for row in straggler_ranking(con, run.run_id)}
    return run, {a.kind: a for a in run.advice}, {n.kind: n for n in run.notes}, ranking


def span(began_s, length_s, label="test", kind="evaluation", **changes):
    values = dict(
        pipeline_id="a", attempt=0, run_id=None, rank=0, span_kind=kind, label=label,
        began_unix_ns=NOON_NS + round(began_s * S), duration_s=length_s,
    )  # fmt: skip
    return schema.FactSpan(**(values | changes))


def test_a_rank_that_is_held_up_is_called_neither_slow_nor_badly_placed(paper):
    # rank 1 takes 2 s of time for the same work and the same CPU time: something else held it up
    steps = steps_of(paper, [1.0, 2.0], [1.0, 1.0], cpu_s=[1.0, 1.0])
    _, advice, notes, ranking = advised(run_of(paper), *steps)
    assert ranking[1]["cost_ratio"] == pytest.approx(1.0)
    assert advice == {}
    assert notes["slow_rank"].status == MEASURE
    assert "rank 1" in notes["slow_rank"].text
    assert notes["balance"].status == NOTHING
    assert "another placement would not change" in notes["balance"].text


def test_a_rank_with_the_most_work_is_not_slow(paper):
    _, advice, notes, ranking = advised(run_of(paper), *steps_of(paper, [1.0, 2.0], [1.0, 2.0]))
    assert ranking[1]["straggler_kind"] == "data_driven"
    assert "slow_rank" not in advice
    assert "its data, not its device" in notes["slow_rank"].text
    assert advice["balance"].recoverable_s == pytest.approx(40.0)


def test_a_rank_that_is_last_without_a_word_of_its_work_is_to_be_measured(paper):
    steps = steps_of(paper, [1.0, 2.0], [None, None], num_tokens=None)
    _, advice, notes, _ = advised(run_of(paper), *steps)
    assert "slow_rank" not in advice
    assert notes["slow_rank"].status == MEASURE
    assert "was not recorded" in notes["slow_rank"].text
    assert advice["balance"].confidence.level == "low"
    assert "no cost was predicted" in advice["balance"].confidence.reason


def test_events_as_work_leave_a_doubt(paper):
    steps = steps_of(paper, [1.0, 2.0], [None, None], num_tokens=50)
    _, advice, _, _ = advised(run_of(paper), *steps)
    assert advice["slow_rank"].confidence.level == "low"
    assert "events alone" in advice["slow_rank"].confidence.reason


def test_several_slow_ranks_are_advised_on_together(paper):
    # ranks 2 and 3 take 2 s and 1.9 s by turns, 1.95 times as long as the median of the others;
    # mended they take 2 s / 1.95, and the two others wait so much less in each of 40 steps
    turns = [steps_of(paper, busy_s, [1.0] * 4) for busy_s in ([1, 1, 2, 1.9], [1, 1, 1.9, 2])]
    steps = [one for found in turns for one in found if (one.step % 2) == (found is turns[1])]
    run = run_of(paper, 4)
    _, advice, _, ranking = advised(run, *steps, rank_of(run.run_id, 2, host="h7"))
    assert [ranking[r]["straggler_kind"] for r in range(4)] == [None, None, *["persistent"] * 2]
    slow = advice["slow_rank"]
    assert slow.recoverable_s == pytest.approx(40 * 2 * (2 - 2 / 1.95))
    assert "rank 2 on h7 takes 1.95 times" in slow.recommendation
    assert "rank 3 takes 1.95 times" in slow.recommendation
    assert {entry.rows["rank"] for entry in slow.evidence} == {2, 3}


def test_what_a_slow_rank_costs_is_not_said_without_arrivals(paper):
    untold = dict(straggler_wait_s=None, exposed_comm_s=None)
    _, advice, notes, _ = advised(run_of(paper), *steps_of(paper, [1.0, 2.0], [1.0, 1.0], **untold))
    assert "slow_rank" not in advice
    assert notes["slow_rank"].status == MEASURE
    assert "rank 1 takes 2.00 times as long" in notes["slow_rank"].text


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.floats(0.5, 4), st.floats(0.5, 4), st.floats(0.5, 4)), min_size=2, max_size=4
    ),
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([0.0, 0.1]),
)
def test_advice_on_stragglers_says_what_their_ranking_says(paper, ranks, device, bound):
    busy_s, cpu_s, cost_s = (list(told) for told in zip(*ranks, strict=True))
    run = run_of(paper, len(ranks), device=device, bound_straggler_share=bound)
    _, advice, notes, ranking = advised(run, *steps_of(paper, busy_s, cost_s, cpu_s=cpu_s))
    persistent = {r for r, row in ranking.items() if row["straggler_kind"] == "persistent"}
    if "slow_rank" in advice:
        assert {entry.rows["rank"] for entry in advice["slow_rank"].evidence} == persistent
    else:
        assert bool(persistent) == ("could be recovered" in notes["slow_rank"].text)
    wait_s = 40 * sum(max(busy_s) - own_s for own_s in busy_s)
    told = [advice[kind].recoverable_s for kind in ("slow_rank", "balance") if kind in advice]
    assert sum(told) <= wait_s + 1e-6
    if max(cost_s) - min(cost_s) < 1e-9:
        assert "balance" not in advice


def test_schedules_that_were_tried_are_not_called_overlapped(paper):
    steps = steps_of(paper, [1.0, 1.0], [1.0, 1.0])
    run = run_of(paper, schedule="auto")
    _, _, notes, _ = advised(run, *steps)
    assert notes["overlap"].status == ALREADY
    assert "ended before one was chosen" in notes["overlap"].text
    trial = schema.FactScheduleTrial(
        run_id=run.run_id, pipeline_id="a", attempt=0, step=20, schedule="synchronous",
        num_steps=10, step_s=1.0, is_chosen=True, reason="the fastest",
    )  # fmt: skip
    _, _, notes, _ = advised(run, *steps, trial)
    assert "found none that overlaps faster than synchronous" in notes["overlap"].text
    _, _, notes, _ = advised(run, *steps, dataclasses.replace(trial, schedule="split"))
    assert notes["overlap"].text == "The exchange is overlapped already (schedule split)."


def test_only_evaluations_that_were_repeated_can_be_left_out(paper):
    steps = steps_of(paper, [1.0, 1.0], [1.0, 1.0])
    # as 'seqscale run' records it: 40 s of steps, then one span of 60 s
    _, advice, notes, _ = advised(run_of(paper), *steps, span(40, 60, "every arm"))
    assert "evaluation" not in advice
    assert notes["evaluation"].text.startswith("Evaluation takes 60.0% of the job")
    # each arm on each split once is no repetition either
    once = [span(40 + 15 * n, 15, label) for n, label in enumerate(["a", "b", "c", "d"])]
    _, advice, _, _ = advised(run_of(paper), *steps, *once)
    assert "evaluation" not in advice
    # validation three times of 10, 10 and 20 s, then a test of 20 s: 20 s of 100 s may go
    told = [
        span(40, 10, "validation"), span(50, 10, "validation"), span(60, 20, "validation"),
        span(80, 20, "test"),
    ]  # fmt: skip
    _, advice, _, _ = advised(run_of(paper), *steps, *told)
    assert advice["evaluation"].recoverable_share == pytest.approx(0.2)
    # two ranks for a day of 86,400 s
    assert advice["evaluation"].recoverable_s_per_day == pytest.approx(0.2 * 2 * 86_400)


def test_a_day_holds_steps_for_as_long_as_the_job_does(paper):
    # 20 s of steps of which a quarter is waiting, and 60 s of start-up: a sixteenth of the day
    steps = steps_of(paper, [1.0, 2.0], [1.0, 2.0], num=10)
    run, advice, _, _ = advised(run_of(paper), *steps, span(20, 60, kind="start_up"))
    assert run.goodput_share == pytest.approx(0.25)
    assert advice["balance"].recoverable_share == pytest.approx(0.25)
    assert advice["balance"].recoverable_s_per_day == pytest.approx(2 * 86_400 / 16)
    # at 9 an hour and device
    assert advice["balance"].cost_per_day == pytest.approx(2 * 24 / 16 * 9)


def test_money_of_two_currencies_does_not_rank(paper):
    # three quarters of an allocation at 300 JPY were idle; a quarter of the steps at 9 EUR waits
    steps = steps_of(paper, [1.0, 2.0], [1.0, 2.0])
    idle = [
        event(0, device_hour_cost=300.0, currency="JPY"), event(4, "released"),
        sample(3.0, 0.0, 3 * 3600.0),
    ]  # fmt: skip
    found, advice, _, _ = advised(run_of(paper), *steps, *idle)
    assert advice["idle_devices"].cost_per_day > 9 * advice["balance"].cost_per_day
    by_time = sorted(found.advice, key=lambda a: -a.recoverable_s_per_day)
    assert [a.kind for a in found.advice] == [a.kind for a in by_time]


def test_every_device_of_the_allocation_counts_where_one_is_idle(paper):
    # gpu-0 is idle for 2 of its 4 hours, gpu-1 is at work: a quarter of the time of two devices
    records = [
        event(0), event(4, "released"), sample(2.0, 0.0, 2 * 3600.0),
        event(0, device_id="gpu-1"), event(4, "released", device_id="gpu-1"),
        sample(3.0, 0.9, 3 * 3600.0, device_id="gpu-1"),
    ]  # fmt: skip
    _, advice, _, _ = advised(run_of(paper), *steps_of(paper, [1.0, 1.0], [1.0, 1.0]), *records)
    assert advice["idle_devices"].recoverable_share == pytest.approx(0.25)
    assert advice["idle_devices"].recoverable_s_per_day == pytest.approx(43_200)
    assert "1 of 2 device(s)" in advice["idle_devices"].confidence.reason


def everything(paper):
    """Records on which every rule but that of purchase has something to say."""
    run = run_of(paper, attempt=1, device="cuda")
    changes = dict(
        attempt=1, window_s=12.0, exposed_comm_s=1.0, exposed_comm_total_s=2.0, exposed_rows_s=2.0,
        exposed_copy_s=1.0, data_wait_s=1.0, host_wait_s=1.0, kernel_gap_s=1.0, unattributed_s=1.0,
    )  # fmt: skip
    steps = [
        dataclasses.replace(
            one, was_skipped=one.step < 10, started_unix_ns=NOON_NS + one.step * 12 * S,
            exposed_comm_total_s=1.0 + one.straggler_wait_s,
        )
        for one in steps_of(paper, [2.0, 6.0], [1.0, 1.5], **changes)
    ]  # fmt: skip
    return [
        run, *steps, attempt(0, 0.5, is_kept=False, window_s=500.0),
        attempt(1, 0.5, is_kept=True, window_s=960.0),
        *[span(480 + 50 * n, 50, attempt=1) for n in range(3)],
        event(0), event(4, "released"), sample(3.0, 0.0, 3600.0),
    ]  # fmt: skip


def test_every_advice_has_worth_evidence_and_confidence(paper):
    with warehouse_of(*everything(paper)) as con:
        [run] = advise(con, "latest")
        for advice in run.advice:
            assert advice.recoverable_s > 0
            assert 0 < advice.recoverable_share <= 1
            assert advice.recoverable_s_per_day > 0
            assert advice.cost_per_day > 0
            assert advice.share_of
            assert advice.floor
            assert advice.confidence.level in ("high", "medium", "low")
            assert advice.confidence.reason
            for entry in advice.evidence:
                where = " AND ".join(f"{column} = ?" for column in entry.rows)
                found = con.execute(
                    f"SELECT count(*) FROM {entry.view} WHERE {where}", list(entry.rows.values())
                ).fetchall()
                assert found[0][0] > 0
                assert any(value is not None for value in entry.figures.values())
    assert {advice.kind for advice in run.advice} == {
        "slow_rank", "balance", "overlap", "prefetch", "launches", "copies", "checkpoints",
        "skipped_steps", "evaluation", "idle_devices",
    }  # fmt: skip
    assert run.recoverable_s <= run.bubble_s


@pytest.mark.parametrize("record", [schema.FactStep, schema.FactSpan, schema.DimAttempt])
def test_what_is_no_number_is_null_in_the_document_or_refused(paper, record):
    # no importer lets one in; a warehouse that holds one all the same has a document or one message
    table = table_name(record)
    names = [c.name for c in schema.columns(record) if c.python_type is float]
    num_documents = 0
    with warehouse_of(*everything(paper)) as con:
        for name in names:
            con.execute(f"CREATE TEMP TABLE told AS FROM {table}")
            con.execute(f"UPDATE {table} SET {name} = 'nan'")
            with contextlib.suppress(WarehouseError), query_errors():
                [run] = advise(con, "latest")
                json.dumps(run.plain(30), allow_nan=False)
                num_documents += 1
            con.execute(f"DELETE FROM {table}")
            con.execute(f"INSERT INTO {table} FROM told")
            con.execute("DROP TABLE told")
    assert num_documents >= (record is schema.FactStep)
