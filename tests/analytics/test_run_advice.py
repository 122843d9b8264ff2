"""Advice: ranked by money, above stated floors, with evidence, and never without."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import schema
from analytics.errors import WarehouseError
from analytics.run_advice import advise
from analytics.run_findings import ALREADY, MEASURE
from tests.analytics.paper_warehouse import (
    HOUR_NS,
    NOON_NS,
    attempt,
    event,
    pool,
    rank_of,
    sample,
    warehouse_of,
)

PIPELINE = "20261130T140000Z-1a2b"


def steps_of(paper, arm: str = "baseline", num: int = 40, **changes):
    return [paper.step(arm, rank, step, **changes) for step in range(num) for rank in range(2)]


def advised(*records, name: str = "latest"):
    with warehouse_of(*records) as con:
        [run] = advise(con, name)
    return run, {a.kind: a for a in run.advice}, {n.kind: n for n in run.notes}


def test_what_is_worth_most_comes_first_in_seconds_and_money_of_a_day(paper):
    run, advice, notes = advised(paper.run("baseline"), *steps_of(paper))
    # of 8 s a step: 2 s waiting, 1 s wire of which half collides, 0.5 s data; no copies
    assert [a.kind for a in run.advice] == ["balance", "overlap", "prefetch"]
    shares = [a.recoverable_share for a in run.advice]
    assert shares == pytest.approx([2 / 8, 0.5 / 8, 0.5 / 8])
    balance = advice["balance"]
    # 2 ranks x 86,400 s a day x 1/4, at 9 an hour
    assert balance.recoverable_s_per_day == pytest.approx(43_200)
    assert balance.cost_per_day == pytest.approx(108.0)
    assert balance.currency == "EUR"
    assert balance.recoverable_s == pytest.approx(80.0)  # 40 steps x 2 s
    assert balance.confidence.level == "medium"  # 40 steps, all alike
    assert balance.confidence.share_lower == pytest.approx(0.25)
    # unattributed is 1/16 of the time: a thing to measure, not advice
    assert notes["unattributed"].status == MEASURE
    assert "unattributed" not in advice


def test_the_bubble_is_more_than_what_is_called_recoverable(paper):
    run, _, _ = advised(paper.run("baseline"), *steps_of(paper))
    # half of the time is bubble; 2 + 0.5 + 0.5 of its 4 s may be recovered
    assert run.bubble_s == pytest.approx(160.0)
    assert run.recoverable_s == pytest.approx(120.0)


def test_every_advice_has_evidence_that_is_there(paper):
    with warehouse_of(paper.run("baseline"), *steps_of(paper)) as con:
        [run] = advise(con, "latest")
        for advice in run.advice:
            assert advice.evidence
            assert advice.floor
            for entry in advice.evidence:
                where = " AND ".join(f"{column} = ?" for column in entry.rows)
                found = con.execute(
                    f"SELECT count(*) FROM {entry.view} WHERE {where}", list(entry.rows.values())
                ).fetchall()
                assert found[0][0] > 0
                assert entry.figures


def test_the_floor_of_balance_is_what_no_placement_of_whole_sequences_beats(paper):
    # busy 4 s a step; at a bound of 0.2 the slowest makes ranks wait 4 x 0.2 / 0.8 = 1 s of the 2
    run = paper.run("baseline", bound_straggler_share=0.2)
    _, advice, _ = advised(run, *steps_of(paper))
    assert advice["balance"].recoverable_s == pytest.approx(40.0)
    assert advice["balance"].floor_s == pytest.approx(40.0)


def test_without_a_bound_the_confidence_is_low(paper):
    run = paper.run("baseline", bound_straggler_share=None)
    _, advice, _ = advised(run, *steps_of(paper))
    assert advice["balance"].confidence.level == "low"
    assert "no bound" in advice["balance"].confidence.reason


def test_a_knob_that_is_on_is_not_advised(paper):
    run = paper.run(
        "baseline", placement="lpt_free", schedule="split", predicted_straggler_share=0.004
    )
    _, advice, notes = advised(run, *steps_of(paper))
    assert "balance" not in advice
    assert "overlap" not in advice
    assert notes["balance"].status == notes["overlap"].status == ALREADY


def test_a_plan_far_above_the_bound_is_told_to_look_ahead(paper):
    run = paper.run("baseline", placement="lpt_free", predicted_straggler_share=0.25)
    _, advice, _ = advised(run, *steps_of(paper))
    assert "--lookahead" in advice["balance"].recommendation


def test_waiting_that_was_not_told_from_the_wire_is_to_be_measured_first(paper):
    unsplit = steps_of(paper, straggler_wait_s=None, exposed_comm_s=None)
    _, advice, notes = advised(paper.run("baseline"), *unsplit)
    assert notes["balance"].status == MEASURE
    assert not {"balance", "overlap"} & set(advice)


def test_rows_whose_collisions_nobody_counted_are_not_promised(paper):
    _, advice, notes = advised(paper.run("baseline", collision_share=None), *steps_of(paper))
    assert "overlap" not in advice
    assert notes["overlap"].status == MEASURE


def test_a_device_that_is_slow_for_its_work_is_named_and_not_counted_twice(paper):
    # both ranks have work of 1; rank 1 takes 2 s for it, rank 0 1 s and waits 1 s: all of the wait
    # goes when rank 1 is as fast
    run = paper.run("baseline", pipeline_id="a")
    steps = []
    for step in range(40):
        for rank, busy_s in ((0, 1.0), (1, 2.0)):
            wait_s = 2.0 - busy_s
            steps.append(
                paper.step(
                    "baseline", rank, step, pipeline_id="a", busy_s=busy_s, cpu_s=busy_s,
                    predicted_cost_s=1.0,
                    straggler_wait_s=wait_s, exposed_comm_s=0.0, exposed_comm_total_s=wait_s,
                    exposed_rows_s=wait_s, data_wait_s=0.0, unattributed_s=0.0, window_s=2.0,
                )
            )  # fmt: skip
    found, advice, _ = advised(run, *steps, rank_of(run.run_id, 1, host="h7"))
    assert [a.kind for a in found.advice] == ["slow_rank"]
    slow = advice["slow_rank"]
    assert "rank 1 on h7" in slow.recommendation
    assert slow.recoverable_s == pytest.approx(40.0)
    figures = slow.evidence[0].figures
    assert (figures["cost_ratio"], figures["last_share"]) == (2.0, 1.0)


def test_late_launches_are_advised_on_where_they_were_measured(paper):
    gpu = paper.run("baseline", device="cuda")
    _, _, notes = advised(gpu, *steps_of(paper))
    assert notes["launches"].status == MEASURE
    measured = steps_of(paper, host_wait_s=0.15, kernel_gap_s=0.1, unattributed_s=0.0)
    _, advice, _ = advised(gpu, *measured)
    # 0.25 s on each of two ranks of 8 s
    assert advice["launches"].recoverable_share == pytest.approx(0.5 / 8)
    # on a CPU nothing is launched
    _, _, notes = advised(paper.run("baseline"), *steps_of(paper))
    assert "launches" not in notes


def test_skipped_and_redone_steps_are_counted_beside_the_bubble(paper):
    run = paper.run("baseline", pipeline_id="a")
    steps = [
        paper.step("baseline", rank, step, pipeline_id="a", was_skipped=step < 4)
        for step in range(40) for rank in range(2)
    ]  # fmt: skip
    # 320 s kept, 80 s of an attempt before: a fifth of all
    lost = attempt(0, 0.5, is_kept=False, window_s=80.0)
    found, advice, _ = advised(run, *steps, lost, attempt(1, 0.5, is_kept=True, window_s=320.0))
    assert advice["checkpoints"].recoverable_share == pytest.approx(0.2)
    # 4 steps x 4 s of own work of 320 s
    assert advice["skipped_steps"].recoverable_share == pytest.approx(16 / 320)
    assert found.recoverable_s <= found.bubble_s


def test_evaluating_again_and_again_is_advised_on_but_the_last_one_stays(paper):
    run = paper.run("baseline", pipeline_id="a", started_unix_ns=NOON_NS)
    steps = steps_of(paper, num=10, pipeline_id="a", started_unix_ns=NOON_NS)
    spans = [
        schema.FactSpan(
            pipeline_id="a", attempt=0, run_id=None, rank=0, span_kind="evaluation", label="test",
            began_unix_ns=NOON_NS + number * 20 * 10**9, duration_s=10.0,
        )
        for number in range(1, 5)
    ]  # fmt: skip
    _, advice, _ = advised(run, *steps, *spans)
    # 4 x 10 s of a job of 90 s; three of the four may go
    assert advice["evaluation"].recoverable_share == pytest.approx(30 / 90)
    _, advice, notes = advised(run, *steps, spans[0])
    assert "evaluation" not in advice
    assert "none is repeated" in notes["evaluation"].text


def test_idle_devices_are_advised_on_and_unseen_ones_are_to_be_measured(paper):
    run = paper.run("baseline", pipeline_id="a")
    steps = steps_of(paper, pipeline_id="a")
    records = [event(0), event(4, "released"), sample(1.0, 0.0, 3600.0)]
    _, advice, notes = advised(run, *steps, *records)
    # one of four allocated hours at 3 was idle: 1/4 of a day of one device
    assert advice["idle_devices"].recoverable_share == pytest.approx(0.25)
    assert advice["idle_devices"].cost_per_day == pytest.approx(18.0)
    assert notes["unobserved_devices"].status == MEASURE


def test_spot_is_advised_where_a_dated_price_is_cheaper_and_against_where_it_cost_more(paper):
    run = paper.run("baseline", pipeline_id="a", world_size=1)
    steps = [paper.step("baseline", 0, step, pipeline_id="a") for step in range(40)]
    other = event(-2, host="h9", pipeline_id="b", purchase="spot", device_hour_cost=1.0)
    _, advice, _ = advised(run, *steps, event(0), event(4, "released"), other)
    # 2 an hour less on one device
    assert advice["purchase"].cost_per_day == pytest.approx(48.0)
    assert advice["purchase"].recoverable_share is None
    # on spot at 2 beside 3 on demand: 4 h save 4; 2 h redone at 3 are 6 lost
    dear = [
        event(-2, host="h9", pipeline_id="b"), event(-1, "released", host="h9", pipeline_id="b"),
        event(0, purchase="spot", device_hour_cost=2.0), event(2, "preempted"),
        event(3, purchase="spot", device_hour_cost=2.0), event(5, "released"),
        attempt(0, 2.0, is_kept=False, window_s=7200.0),
        dataclasses.replace(
            attempt(1, 2.0, is_kept=True, window_s=160.0), began_unix_ns=NOON_NS + 3 * HOUR_NS
        ),
    ]  # fmt: skip
    _, advice, _ = advised(run, *steps, *dear, pool())
    assert "on demand" in advice["purchase"].recommendation
    # 2 lost over 4 h on one device, a day
    assert advice["purchase"].cost_per_day == pytest.approx(12.0)


def test_without_a_price_advice_is_ranked_by_time_and_has_no_money(paper):
    run = paper.run("baseline", device_hour_cost=None, currency=None, instance_type=None)
    found, advice, _ = advised(run, *steps_of(paper))
    assert next(iter(advice)) == "balance"
    assert {a.cost_per_day for a in found.advice} == {None}
    assert found.plain(days=30)["advice"][0]["cost_over_days"] is None


def test_a_run_that_recorded_nothing_gets_no_advice(paper):
    run, advice, notes = advised(paper.run("baseline"))
    assert advice == {}
    assert notes["steps"].status == MEASURE
    assert run.plain()["bubble_share"] is None


def test_one_rank_has_nobody_to_wait_for(paper):
    alone = [paper.step("baseline", 0, step) for step in range(40)]
    _, advice, notes = advised(paper.run("baseline", world_size=1), *alone)
    assert not {"balance", "overlap", "slow_rank"} & (set(advice) | set(notes))


def test_a_run_a_pipeline_or_the_latest_may_be_named(paper):
    runs = [
        paper.run("balanced"), paper.run("baseline"),
        paper.run("baseline", pipeline_id="old", started_unix_ns=1),
    ]  # fmt: skip
    with warehouse_of(*runs) as con:
        assert [run.arm for run in advise(con, "latest")] == ["baseline", "balanced"]
        assert [run.arm for run in advise(con, PIPELINE)] == ["baseline", "balanced"]
        assert [run.run_id for run in advise(con, "old-baseline")] == ["old-baseline"]
        with pytest.raises(WarehouseError, match="'nosuch' is no run"):
            advise(con, "nosuch")


def test_days_scale_the_money_alone(paper):
    run, _, _ = advised(paper.run("baseline"), *steps_of(paper))
    [first, *_] = run.plain(days=30)["advice"]
    assert first["cost_over_days"] == pytest.approx(30 * first["cost_per_day"])


PART = st.floats(0, 10)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(PART, PART, PART, PART, PART, PART), min_size=1, max_size=12),
    st.floats(0, 0.9),
    st.floats(0, 1),
    st.sampled_from(["synchronous", "ids_ahead", "split"]),
)
def test_what_is_recoverable_is_never_more_than_the_bubble(paper, told, bound, collision, schedule):
    run = paper.run(
        "baseline", bound_straggler_share=bound, collision_share=collision, schedule=schedule,
        device="cuda",
    )  # fmt: skip
    steps = []
    for step, (busy_s, wait_s, wire_s, copy_s, data_s, gap_s) in enumerate(told):
        for rank in range(2):
            steps.append(
                paper.step(
                    "baseline", rank, step, busy_s=busy_s * (rank + 1), straggler_wait_s=wait_s,
                    exposed_comm_s=wire_s, exposed_comm_total_s=wait_s + wire_s,
                    exposed_rows_s=wait_s + wire_s, exposed_copy_s=copy_s, data_wait_s=data_s,
                    host_wait_s=gap_s, kernel_gap_s=0.0, unattributed_s=0.0,
                    window_s=busy_s * (rank + 1) + wait_s + wire_s + copy_s + data_s + gap_s,
                )
            )  # fmt: skip
    found, _, _ = advised(run, *steps)
    assert 0 <= found.recoverable_s <= found.bubble_s + 1e-6
    for advice in found.advice:
        assert advice.evidence
        assert 0 < advice.recoverable_share <= 1
    worth = [advice.cost_per_day for advice in found.advice]
    assert worth == sorted(worth, reverse=True)
