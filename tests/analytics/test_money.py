"""Costs: exact over any partition, idle within bounds, nothing that is allocated is lost."""

import dataclasses
import datetime
import itertools
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import metrics, money, schema
from analytics.ddl import view_column_docs, views
from tests.analytics.paper_warehouse import (
    HOUR_NS,
    NOON_NS,
    attempt,
    event,
    pool,
    price,
    rank_of,
    sample,
    warehouse_of,
)


def allocations(*records) -> list[tuple]:
    with warehouse_of(*records) as con:
        found = money.allocations(con)
    return [(row["device_hours"], row["cost"], row["ended_by"], row["is_doubled"]) for row in found]


def test_an_allocation_costs_its_hours_at_the_price_of_its_event():
    # 2 h at 3 an hour
    assert allocations(event(0), event(2, "released")) == [(2.0, 6.0, "released", False)]


def test_a_missing_release_ends_with_the_last_record_of_the_run_and_says_so():
    # the run's last record is 1 h after noon; a day later the device goes to another
    last = attempt(0, 1.0, is_kept=True, window_s=1.0)
    later = event(24, pipeline_id="b")
    found = allocations(last, event(0), later, event(25, "released", pipeline_id="b"))
    assert found == [(1.0, 3.0, "missing", False), (1.0, 3.0, "released", False)]


def test_a_device_given_away_twice_is_paid_for_once():
    # h1/gpu-0 goes to a at 0 and to b at 1; one release at 3: three hours, not five
    release = event(3, "released", pipeline_id="")
    found = allocations(event(0), event(1, pipeline_id="b"), release)
    assert found == [(1.0, 3.0, "missing", True), (2.0, 6.0, "released", False)]


def test_a_further_allocation_of_the_same_run_is_a_change_of_price():
    found = allocations(event(0), event(1, device_hour_cost=1.0), event(2, "released"))
    assert found == [(1.0, 3.0, "renewed", False), (1.0, 1.0, "released", False)]


def test_a_device_released_and_given_on_at_one_moment_is_not_doubled():
    found = allocations(
        event(0),
        event(1, "released"),
        event(1, pipeline_id="b"),
        event(2, "preempted", pipeline_id="b"),
    )
    assert found == [(1.0, 3.0, "released", False), (1.0, 3.0, "preempted", False)]


def test_hours_without_a_price_are_counted_and_cost_null():
    bare = event(0, device_hour_cost=None, currency=None)
    assert allocations(bare, event(2, "released")) == [(2.0, None, "released", False)]


def test_an_unpriced_event_takes_the_price_of_its_run(paper):
    bare = event(0, device_hour_cost=None, currency=None)
    run = paper.run("baseline", pipeline_id="a")
    # 9 an hour of the run
    assert allocations(run, bare, event(2, "released")) == [(2.0, 18.0, "released", False)]


def test_a_day_of_a_clock_change_has_25_hours_in_its_zone_and_costs_them():
    # Madrid, 25 October 2026: the day lasts from 22:00 UTC of the 24th to 23:00 of the 25th
    began = 1_792_879_200_000_000_000
    assert datetime.datetime.fromtimestamp(began / 1e9, datetime.UTC).hour == 22
    records = [
        event(0, event_unix_ns=began - 2 * HOUR_NS, device_hour_cost=1.0),
        event(0, "released", event_unix_ns=began + 26 * HOUR_NS),
    ]
    with warehouse_of(*records, zone="Europe/Madrid") as con:
        found = con.execute(
            "SELECT date_key, device_hours, cost FROM allocation_day ORDER BY date_key"
        ).fetchall()
        days = con.execute("SELECT count(*), min(date_key), max(date_key) FROM dim_date").fetchall()
    assert [(day.isoformat(), hours, float(cost)) for day, hours, cost in found] == [
        ("2026-10-24", 2.0, 2.0), ("2026-10-25", 25.0, 25.0), ("2026-10-26", 1.0, 1.0),
    ]  # fmt: skip
    # whole years, without a gap
    assert days == [(365, datetime.date(2026, 1, 1), datetime.date(2026, 12, 31))]


def test_the_dates_of_an_empty_warehouse_are_none():
    with warehouse_of() as con:
        assert con.execute("SELECT count(*) FROM dim_date").fetchall() == [(0,)]
        assert money.cost_by(con) == []
        assert money.bill_vs_estimate(con) == []


def states(*records) -> dict[str, tuple[float, float | None]]:
    with warehouse_of(*records) as con:
        found = money.allocation_states(con)
    return {row["cause"]: (row["seconds"], row["cost"]) for row in found}


def test_allocated_time_is_training_idle_other_work_or_unobserved(paper):
    # 4 h at 3: a step of 1 h, samples of 15 min: two idle, one at work, four within the step's
    # hour; the rest nobody saw: 4 h - 1 h - 0.5 h - 0.25 h
    run = paper.run("baseline", pipeline_id="a", world_size=1)
    step = paper.step(
        "baseline", 0, 0, pipeline_id="a", started_unix_ns=NOON_NS, window_s=3600.0, busy_s=3597.0,
    )  # fmt: skip
    within = [sample(hour, 0.9) for hour in (0.25, 0.5, 0.75, 0.99)]
    after = [sample(1.5, 0.0), sample(1.75, 0.01), sample(2.0, 0.5)]
    found = states(run, step, rank_of(run.run_id), event(0), event(4, "released"), *within, *after)
    assert found == {
        "training": (3600.0, 3.0),
        "other_work": (900.0, 0.75),
        "allocated_idle": (1800.0, 1.5),
        "unobserved": (8100.0, 6.75),
    }


def test_ranks_that_share_a_device_train_at_the_same_time(paper):
    # two ranks of one CPU are in a step of an hour together: an hour, not two
    run = paper.run("baseline", pipeline_id="a")
    steps = [
        paper.step("baseline", rank, 0, pipeline_id="a", started_unix_ns=NOON_NS, window_s=3600.0)
        for rank in range(2)
    ]
    ranks = [rank_of(run.run_id, rank, device_id="gpu-0") for rank in range(2)]
    found = states(run, *steps, *ranks, event(0), event(4, "released"))
    assert found == {"training": (3600.0, 3.0), "unobserved": (10800.0, 9.0)}


def test_a_device_without_any_sample_is_unobserved_and_priced_not_idle():
    # a wholly unseen device must neither vanish nor count as idle or busy
    seen = [event(0), event(1, "released"), sample(1, 1.0, 3600.0)]
    unseen = [event(0, device_id="gpu-1"), event(1, "released", device_id="gpu-1")]
    assert states(*seen, *unseen) == {"other_work": (3600.0, 3.0), "unobserved": (3600.0, 3.0)}
    with warehouse_of(*seen, *unseen) as con:
        found = [(row["device_id"], row["is_sampled"], row["is_allocated"])
                 for row in money.devices(con)]  # fmt: skip
    assert found == [("gpu-0", True, True), ("gpu-1", False, True)]


def test_a_sampled_device_that_was_never_allocated_costs_nothing_and_is_listed():
    # every GPU of a shared host may be sampled; only those that were allocated are charged
    stranger = sample(0.5, 1.0, device_id="gpu-7", pipeline_id="")
    records = [event(0), event(1, "released"), stranger]
    assert states(*records) == {"unobserved": (3600.0, 3.0)}
    with warehouse_of(*records) as con:
        listed = {row["device_id"]: row["is_allocated"] for row in money.devices(con)}
    assert listed == {"gpu-0": True, "gpu-7": False}


def test_usage_is_not_the_allocation_and_idle_is_never_negative():
    # a pool of no devices: no row, no negative idle
    assert states(pool(num_devices=0)) == {}
    # samples that claim more time than was allocated are cut to it
    found = states(event(0), event(1, "released"), sample(1, 0.0, 9000.0))
    assert found == {"allocated_idle": (3600.0, 3.0)}


def test_a_purged_minute_is_observed_like_its_samples():
    minute = schema.FactDeviceMinute(
        pipeline_id="a", attempt=0, host="h1", device_id="gpu-0", device_name=None,
        minute_unix_ns=NOON_NS, num_samples=60, observed_s=60.0, utilization_observed_s=60.0,
        utilized_s=0.0, sm_active_observed_s=0.0, sm_active_s=0.0, power_observed_s=0.0,
        energy_j=0.0, max_memory_used_bytes=None, max_memory_total_bytes=None,
        max_sampler_cpu_s=None,
    )  # fmt: skip
    found = states(event(0), event(1, "released"), minute)
    assert found == {"allocated_idle": (60.0, 0.05), "unobserved": (3540.0, 2.95)}


HOURS = st.integers(0, 200)
EVENTS = st.lists(
    st.tuples(
        HOURS,
        st.sampled_from(["allocated", "allocated", "released", "preempted", "failed"]),
        st.sampled_from(["gpu-0", "gpu-1"]),
        st.sampled_from(["p", "q"]),
        st.sampled_from(["a", "b", ""]),
        st.sampled_from([0.0, 0.000001, 1.37, 98.32, None]),
    ),
    max_size=12,
    unique_by=lambda found: (found[0], found[1], found[2], found[3]),
)
SAMPLES = st.lists(
    st.tuples(HOURS, st.sampled_from([None, 0.0, 0.01, 0.5, 1.0]), st.floats(0, 90_000)),
    max_size=8,
    unique_by=lambda found: found[0],
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(EVENTS, SAMPLES, st.sampled_from(["UTC", "Europe/Madrid", "Asia/Kathmandu"]))
def test_allocations_of_a_device_are_disjoint_and_their_costs_sum_exactly(told, seen, zone):
    records = [
        event(hour / 3, what, device_id=device, pool_id=pool_id, pipeline_id=pipeline,
              device_hour_cost=cost if what == "allocated" else None,
              currency="EUR" if what == "allocated" and cost is not None else None)
        for hour, what, device, pool_id, pipeline, cost in told
    ]  # fmt: skip
    records += [sample(hour / 3, share, interval_s) for hour, share, interval_s in seen]
    with warehouse_of(*records, zone=zone) as con:
        whole = con.execute(
            "SELECT host, device_id, began_unix_ns, ended_unix_ns, cost FROM allocation "
            "ORDER BY 1, 2, 3, 4"
        ).fetchall()
        by_day = con.execute(
            "SELECT sum(cost), sum(ended_unix_ns - began_unix_ns) FROM allocation_day"
        ).fetchall()
        by_state = con.execute(
            "SELECT sum(cost), sum(seconds), min(seconds), min(cost) FROM allocation_state"
        ).fetchall()
    for before, after in itertools.pairwise(whole):
        assert before[2] <= before[3]
        assert before[:2] != after[:2] or before[3] <= after[2]
    costs = [row[4] for row in whole if row[4] is not None and row[3] > row[2]]
    total = sum(costs, Decimal(0))
    length_ns = sum(row[3] - row[2] for row in whole)
    assert by_day[0][0] == by_state[0][0] or by_day[0][0] == by_state[0][0] == total
    assert (by_day[0][0] or 0) == total
    assert (by_day[0][1] or 0) == length_ns
    assert (by_state[0][1] or 0.0) == pytest.approx(length_ns / 1e9, abs=1e-3)
    assert (by_state[0][2] or 0) >= 0
    assert (by_state[0][3] or 0) >= 0


STEPS = st.lists(
    st.tuples(
        st.integers(0, 72), st.floats(0, 5000), st.floats(0, 50), st.floats(0, 1e-6),
        st.booleans(),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS, st.sampled_from([0.01, 7.77, 98.32]), st.sampled_from(["UTC", "Europe/Madrid"]))
def test_costs_sum_exactly_over_any_partition(paper, told, rate, zone):
    dimensions = ("date_key", "pool_id", "rank", "device_id", "cause")
    partitions = [n for size in range(6) for n in itertools.combinations(dimensions, size)]
    records = [paper.run("baseline", pipeline_id="a", device_hour_cost=rate)]
    for step, (hour, busy_s, wait_s, rest_s, is_split) in enumerate(told):
        for rank in range(2):
            wire_s = wait_s / 7
            records.append(
                paper.step(
                    "baseline", rank, step, pipeline_id="a", busy_s=busy_s,
                    started_unix_ns=NOON_NS + hour * HOUR_NS,
                    straggler_wait_s=wait_s if is_split else None,
                    exposed_comm_s=wire_s if is_split else None,
                    exposed_comm_total_s=wait_s + wire_s, data_wait_s=0.25,
                    unattributed_s=rest_s, window_s=busy_s + wait_s + wire_s + 0.25 + rest_s,
                )
            )  # fmt: skip
    records += [pool(), rank_of(records[0].run_id), event(0)]
    with warehouse_of(*records, zone=zone) as con:
        whole = con.execute("SELECT sum(cost) FROM run_cause").fetchall()[0][0]
        con.execute("CREATE OR REPLACE TEMP TABLE by_day AS SELECT * FROM cost_by_day")
        for names in partitions:
            grouped = f" GROUP BY {', '.join(names)}" if names else ""
            parts = con.execute(f"SELECT sum(cost) FROM by_day{grouped}").fetchall()
            assert sum(part[0] for part in parts) == whole
        by_cause = con.execute(
            "SELECT run_cause.cost = sum(cost_by_day.cost) FROM cost_by_day "
            "JOIN run_cause USING (run_id, cause) GROUP BY run_id, cause, run_cause.cost"
        ).fetchall()
    assert all(row[0] for row in by_cause)


def test_a_step_counts_to_the_day_it_began_in_the_configured_zone(paper):
    # the paper pipeline begins at 14:00 UTC; in Kiritimati (UTC+14) that is 04:00 of the next day
    records = [paper.run("baseline"), *(paper.step("baseline", rank, 0) for rank in range(2))]
    for zone, day in (("UTC", "2026-11-30"), ("Pacific/Kiritimati", "2026-12-01")):
        with warehouse_of(*records, zone=zone) as con:
            [row] = money.cost_by(con, "date_key")
        # 2 ranks x 4 s at 9 an hour
        assert row == {"date_key": day, "seconds": 8.0, "cost": 0.02, "currency": "EUR"}


def test_a_rank_belongs_to_the_pool_of_its_device(paper):
    run = paper.run("baseline", pipeline_id="a")
    steps = [paper.step("baseline", rank, 0, pipeline_id="a") for rank in range(2)]
    ranks = [rank_of(run.run_id, 0), rank_of(run.run_id, 1)]
    events = [event(0), event(0, device_id="gpu-1", pool_id="q")]
    records = [run, *steps, *ranks, *events, pool(), pool(pool_id="q", team_id=None)]
    with warehouse_of(*records) as con:
        by_pool = money.cost_by(con, "pool_id", "team_id")
        wasted = money.cost_by(con, is_wasted=True)
    # each rank 4 s at 9 an hour; of the 8 s ranks work 3 s and 1 s
    assert [(row["pool_id"], row["team_id"], row["cost"]) for row in by_pool] == [
        ("p", "ads", 0.01), ("q", None, 0.01),
    ]  # fmt: skip
    assert wasted == [{"seconds": 4.0, "cost": 0.01, "currency": "EUR"}]


def test_a_million_samples_cost_their_kept_steps_and_the_redone_ones(paper):
    # kept: 4 steps x 2 ranks x 4 s = 32 s at 9 an hour = 0.08, one of the steps skipped: 24 of 32
    # sequences; redone before: 40 s = 0.10
    run = paper.run("baseline", pipeline_id="a")
    steps = [
        paper.step("baseline", rank, step, pipeline_id="a", was_skipped=step == 3)
        for step in range(4) for rank in range(2)
    ]  # fmt: skip
    lost = attempt(0, 0.5, is_kept=False, window_s=40.0)
    kept = attempt(1, 0.5, is_kept=True, window_s=32.0)
    with warehouse_of(run, *steps, lost, kept) as con:
        [row] = money.pipeline_cost(con)
        [redone] = money.attempts_redone(con)
    assert (row["recorded_cost"], row["redone_cost"], row["cost"]) == (0.08, 0.1, 0.18)
    assert row["cost_basis"] == "recorded"
    assert row["num_kept_samples"] == 24
    assert row["cost_per_1m_samples"] == 7500.0  # 0.18 / 24 x 1,000,000
    assert (redone["redone_s"], redone["cost"], redone["was_preempted"]) == (40.0, 0.1, False)
    # an allocation that is known is what was paid: 2 h at 3
    with warehouse_of(run, *steps, lost, kept, event(0), event(2, "released")) as con:
        [row] = money.pipeline_cost(con)
    assert (row["cost_basis"], row["cost"], row["allocated_hours"]) == ("allocated", 6.0, 2.0)
    assert row["cost_per_1m_samples"] == 250_000.0


def spot(*records) -> dict:
    with warehouse_of(*records) as con:
        [row] = money.spot_saving(con)
    return row


def test_spot_saves_the_difference_of_dated_prices_less_what_preemptions_redo():
    # on demand 3 from 8:00, 4 from 13:00; spot 1: hours 0-2 (on demand 3), taken away, 3-5 (4)
    records = [
        event(-4, host="h9"), event(-3, "released", host="h9"),
        event(1, host="h9", device_hour_cost=4.0), event(1.5, "released", host="h9"),
        event(0, purchase="spot", device_hour_cost=1.0), event(2, "preempted"),
        event(3, purchase="spot", device_hour_cost=1.0), event(5, "released"),
    ]  # fmt: skip
    row = spot(*records)
    assert (row["spot_hours"], row["spot_cost"], row["on_demand_cost"]) == (4.0, 4.0, 14.0)
    assert (row["saving_cost"], row["num_preemptions"]) == (10.0, 1)
    assert (row["redone_cost"], row["net_saving_cost"]) == (0.0, 10.0)
    # the attempt that the preemption ended had trained 2 h: on demand they were not needed, at the
    # mean 14 / 4 an hour; 10 - 7
    lost = dataclasses.replace(
        attempt(0, 2.0, is_kept=False, window_s=7200.0), ended_unix_ns=NOON_NS + 2 * HOUR_NS
    )
    kept = dataclasses.replace(
        attempt(1, 2.0, is_kept=True, window_s=7200.0), began_unix_ns=NOON_NS + 3 * HOUR_NS
    )
    row = spot(*records, lost, kept)
    assert (row["redone_hours"], row["redone_cost"], row["net_saving_cost"]) == (2.0, 7.0, 3.0)


def test_spot_without_any_on_demand_price_has_no_saving():
    records = [event(0, purchase="spot", device_hour_cost=1.0), event(2, "released")]
    assert spot(*records)["saving_cost"] is None
    # the price list tells one; of another currency it tells nothing
    assert spot(*records, pool(), price())["saving_cost"] == 4.0
    assert spot(*records, pool(), price(currency="USD"))["saving_cost"] is None


def test_every_cause_has_its_place_and_its_words_once():
    with warehouse_of() as con:
        found = con.execute(
            "SELECT cause, cause_label FROM dim_cause ORDER BY cause_rank"
        ).fetchall()
        bubble = con.execute("SELECT cause FROM dim_cause WHERE is_bubble").fetchall()
    assert dict(found) == money.ALL_CAUSE_LABELS
    assert [cause for cause, _ in found] == list(money.ALL_CAUSE_LABELS)
    assert {row[0] for row in bubble} == set(metrics.CAUSE_LABELS) - {"busy"}


def test_an_unknown_dimension_is_refused():
    with warehouse_of() as con:
        with pytest.raises(ValueError, match="'password' is none of"):
            money.cost_by(con, "password")
        with pytest.raises(ValueError, match="'x' is none of"):
            money.allocation_states(con, "x")
        with pytest.raises(ValueError, match="'team' is none of"):
            money.bill_vs_estimate(con, "team")


@pytest.mark.parametrize("view", [view.name for view in views() if view.name in (
    "dim_date", "dim_cause", "dim_host", "dim_device", "allocation", "allocation_day",
    "allocation_state", "cost_by_day", "attempt_redone", "pipeline_cost", "spot_saving",
    "bill_line", "estimate_day", "bill_vs_estimate",
)])  # fmt: skip
def test_every_column_of_a_money_view_is_documented(view):
    with warehouse_of() as con:
        described = [row[0] for row in con.execute(f"DESCRIBE {view}").fetchall()]
    docs = view_column_docs(view)
    assert [name for name in described if name not in docs] == []
