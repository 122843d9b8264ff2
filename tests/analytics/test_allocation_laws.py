"""One allocation: hours, costs and states say the same wherever they are asked for."""

from collections import defaultdict
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analytics.paper_warehouse import (
    HOUR_NS,
    NOON_NS,
    attempt,
    event,
    rank_of,
    run,
    sample,
    step,
    warehouse_of,
)

MINUTE_NS = 60 * 10**9


def sums(con, query: str) -> dict[str, tuple[float, float]]:
    """Device -> (hours, cost) of a query of device, hours and cost."""
    found = defaultdict(lambda: (0.0, 0.0))
    for device, hours, cost in con.execute(query).fetchall():
        found[device] = (found[device][0] + (hours or 0), found[device][1] + float(cost or 0))
    return dict(found)


def readings(con) -> list[dict[str, tuple[float, float]]]:
    """Hours and cost of each device's allocations, as every view that has them tells them."""
    held = "(ended_unix_ns - began_unix_ns) / 3.6e12"
    return [
        sums(con, "SELECT device_id, device_hours, cost FROM allocation WHERE device_hours > 0"),
        sums(con, f"SELECT device_id, {held}, {held} * device_hour_cost FROM device_allocation "
                  f"WHERE {held} > 0"),
        sums(con, "SELECT device_id, device_hours, cost FROM allocation_day"),
        sums(con, "SELECT device_id, seconds / 3600, cost FROM allocation_state"),
        sums(con, "SELECT device_id, state_s / 3600, cost FROM device_state "
                  "WHERE state <> 'unallocated'"),
    ]  # fmt: skip


EXACT = ("allocation", "allocation_day", "allocation_state", "device_state", "device_minute")


def exact_costs(con, view: str) -> dict[tuple[str, str], Decimal]:
    """(device, currency) -> cost to the last micro-unit, of devices that pool events tell of."""
    rows = con.execute(
        f"SELECT device_id, currency, sum(cost) FROM {view} "
        "WHERE device_id IN (SELECT device_id FROM fact_pool_event) "
        "GROUP BY ALL HAVING sum(cost) > 0"
    ).fetchall()
    return {(device, currency): cost for device, currency, cost in rows}


def check_same(*records, zone: str | None = None) -> dict[str, tuple[float, float]]:
    with warehouse_of(*records, zone=zone) as con:
        first, *others = readings(con)
        exact = [exact_costs(con, view) for view in EXACT]
    assert all(costs == exact[0] for costs in exact[1:])
    for other in others:
        assert other.keys() >= first.keys()  # device_state also tells devices of no pool
        for device, told in first.items():
            assert other[device] == pytest.approx(told, rel=1e-6, abs=1e-4)
    return first


def test_a_missing_release_ends_everywhere_with_the_run():
    late = event(8, device_id="gpu-9", pipeline_id="b")
    end = event(9, "released", device_id="gpu-9", pipeline_id="b")
    found = check_same(event(0), late, end, run(), rank_of("r"), step(0, 3600.0))
    assert found["gpu-0"] == (1.0, 3.0)


def test_the_price_of_the_run_counts_everywhere():
    unpriced = event(0, device_hour_cost=None, currency=None)
    priced = run(device_hour_cost=3.0, currency="EUR")
    found = check_same(unpriced, event(1, "released"), priced, rank_of("r"), step(0, 3600.0))
    assert found == {"gpu-0": (1.0, 3.0)}


def test_a_device_given_on_before_its_release_is_held_everywhere_by_the_second():
    found = check_same(
        event(0), event(0.5, pipeline_id="b"), event(1, "released"),
        event(1.5, "released", pipeline_id="b"),
    )  # fmt: skip
    assert found == {"gpu-0": (1.5, 4.5)}


def test_the_release_of_another_run_ends_nothing_anywhere():
    found = check_same(event(0), event(0.25, "released", pipeline_id="b"), event(1, "released"))
    assert found == {"gpu-0": (1.0, 3.0)}


def test_a_device_that_is_still_held_is_held_until_the_latest_record():
    samples = [sample(hour / 4, 0.5) for hour in range(1, 9)]
    assert check_same(event(0, pipeline_id=""), *samples) == {"gpu-0": (2.0, 6.0)}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Madrid", "America/Los_Angeles"])
def test_an_allocation_over_the_end_of_the_last_year_is_all_there(zone):
    hours = 31 * 24 + 11  # 31 December, 23:00 UTC
    records = [event(hours), run(), attempt(hours, 4, is_kept=True, window_s=1.0)]
    assert check_same(*records, zone=zone) == {"gpu-0": (4.0, 12.0)}


TIMES = st.integers(0, 120).map(lambda minutes: minutes / 30)
EVENTS = st.lists(
    st.tuples(
        TIMES, st.sampled_from(["allocated", "allocated", "released", "failed"]),
        st.sampled_from(["gpu-0", "gpu-1"]), st.sampled_from(["a", "b", ""]),
    ),
    max_size=10, unique_by=lambda found: (found[0], found[2]),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(EVENTS, st.lists(st.tuples(TIMES, st.sampled_from([0.0, 0.5])), max_size=6, unique=True))
def test_every_view_tells_the_same_hours_and_costs(told, seen):
    events = [
        event(hour, what, device_id=device, pipeline_id=name) for hour, what, device, name in told
    ]
    check_same(*events, *{hour: sample(hour, share) for hour, share in seen}.values())


def states(con, view: str, state: str, seconds: str) -> dict[str, float]:
    rows = con.execute(f"SELECT {state}, sum({seconds}) FROM {view} GROUP BY ALL").fetchall()
    return {name: found for name, found in rows if found}


@pytest.mark.parametrize("interval_s", [60.0, None])
def test_the_four_states_of_a_device_are_the_five_of_its_allocation(interval_s):
    # of 60 minutes, 10 in steps without a sample, 20 idle, 10 with other work, the rest unseen
    minutes = [(n, 0.0) for n in range(11, 31)] + [(n, 0.9) for n in range(31, 41)]
    samples = [sample(n / 60, share, interval_s) for n, share in minutes]
    if interval_s is None:  # the first tells no stretch: let it come a minute earlier
        samples.append(sample(10 / 60, 0.0, None))
    records = [event(0), event(1, "released"), run(), rank_of("r"), step(0, 600.0), *samples]
    with warehouse_of(*records) as con:
        four = states(con, "device_state", "state", "state_s")
        five = states(con, "allocation_state", "cause", "seconds")
    assert five == pytest.approx(
        {"training": 600, "allocated_idle": 1200, "other_work": 600, "unobserved": 1200}, abs=61
    )
    five["training"] += five.pop("other_work")
    assert four == pytest.approx(five, abs=61)  # a minute has one state in the one, several here


@pytest.mark.parametrize("figure", ["sm_active_share", "engine_active_share", "utilization_share"])
def test_every_figure_of_activity_tells_idle_alike(figure):
    samples = [sample(n / 60, None, 60.0, **{figure: 0.0}) for n in range(1, 61)]
    with warehouse_of(event(0), event(1, "released"), *samples) as con:
        assert states(con, "device_state", "state", "state_s") == {"allocated_idle": 3600}
        assert states(con, "allocation_state", "cause", "seconds") == {"allocated_idle": 3600}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_minutes_days_and_states_of_an_odd_price_add_up_to_the_last_micro_unit(zone):
    # 25 h and 1 ns at a third of a unit: no minute's cost is a whole number of micro-units
    end = event(0, "released", event_unix_ns=NOON_NS + 25 * HOUR_NS + 1)
    seen_s = [sample(n / 7, 0.5 * (n % 2), 60.0) for n in range(1, 40)]
    records = [event(0, device_hour_cost=1 / 3), end, *seen_s]
    check_same(*records, zone=zone)
    with warehouse_of(*records, zone=zone) as con:
        per_day = con.execute(
            "SELECT date_key, (SELECT sum(cost) FROM device_state_day AS d "
            "WHERE d.date_key = a.date_key), sum(cost) FROM allocation_day AS a GROUP BY ALL"
        ).fetchall()
        assert [told for _, told, _ in per_day] == [kept for _, _, kept in per_day]
        assert len(per_day) == 2
        assert exact_costs(con, "allocation") == {("gpu-0", "EUR"): Decimal("8.333333")}


def test_money_of_two_currencies_is_not_added_in_a_minute():
    records = [
        event(0), event(0.005, device_hour_cost=100.0, currency="JPY", pipeline_id="b"),
        event(0.01, "released", pipeline_id="b"),
    ]  # fmt: skip
    with warehouse_of(*records) as con:
        assert con.execute("SELECT cost, currency FROM device_minute").fetchall() == [(None, None)]
        kept = con.execute("SELECT currency, cost FROM allocation ORDER BY 1").fetchall()
    assert kept == [("EUR", Decimal("0.015000")), ("JPY", Decimal("0.500000"))]


def test_a_step_is_in_the_same_pool_and_on_the_same_day_in_time_and_money():
    records = [
        event(0, pool_id="north"), event(1, "released", pool_id="north"),
        event(1, pool_id="south"), event(13, "released", pool_id="south"),
        run(device_hour_cost=3.0, currency="EUR"), rank_of("r"),
        step(0, 1800.0), step(1.5, 1800.0, step=1), step(11.5, 60.0, step=2),
    ]  # fmt: skip
    with warehouse_of(*records, zone="Europe/Madrid") as con:
        in_time = con.execute(
            "SELECT pool_id, date_key, sum(window_s) FROM rank_day_parts GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        in_money = con.execute(
            "SELECT pool_id, date_key, sum(seconds) FROM cost_by_day GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert in_time == in_money
    told = [(pool, day.isoformat(), seconds) for pool, day, seconds in in_time]
    assert told == [
        ("north", "2026-11-30", 1800.0), ("south", "2026-11-30", 1800.0),
        ("south", "2026-12-01", 60.0),  # 23:30 UTC is half past midnight in Madrid
    ]  # fmt: skip


def test_two_collectors_of_one_device_tell_of_its_time_once():
    # each tells of the same ten minutes: five idle, five at work; 30 s apart
    samples = [
        sample(n / 120 + shift, 0.0 if n <= 10 else 0.9, 30.0, pipeline_id=name)
        for n in range(1, 21)
        for name, shift in (("", 0.0), ("", 1 / 3600), ("a", 2 / 3600))
    ]
    with warehouse_of(event(0), event(1, "released"), *samples) as con:
        five = states(con, "allocation_state", "cause", "seconds")
        four = states(con, "device_state", "state", "state_s")
    assert five == pytest.approx(
        {"allocated_idle": 300, "other_work": 300, "unobserved": 3000}, abs=61
    )
    assert four == pytest.approx(
        {"allocated_idle": 300, "training": 300, "unobserved": 3000}, abs=61
    )


@pytest.mark.parametrize("price", [0.01, 2_000_000.0, 999_999_999.0])
def test_no_amount_is_too_large_to_be_shared_out(price):
    records = [
        event(0, device_hour_cost=price), event(10, "released"), rank_of("r"),
        run(device_hour_cost=price, currency="EUR"), step(0, 3600.0), step(5, 1800.0, step=1),
    ]  # fmt: skip
    found = check_same(*records)
    assert found == {"gpu-0": (10.0, pytest.approx(10 * price))}
    with warehouse_of(*records) as con:
        (recorded,) = con.execute("SELECT sum(cost) FROM cost_by_day").fetchone()
    assert float(recorded) == pytest.approx(1.5 * price)


@pytest.mark.parametrize(("back_s", "num_minutes"), [(30, 1), (90, 2), (80, 1), (150, 3)])
def test_a_sample_tells_of_the_minutes_that_it_covers_by_half(back_s, num_minutes):
    # taken at the end of minute 29, but for a nanosecond
    samples = [sample(0.5, 0.9, float(back_s), sampled_unix_ns=NOON_NS + 30 * MINUTE_NS - 1)]
    with warehouse_of(event(0), event(1, "released"), *samples) as con:
        told = con.execute("SELECT count(*) FROM device_minute WHERE state = 'training'").fetchall()
    assert told == [(num_minutes,)]


def test_a_sample_from_the_future_holds_no_device_until_then():
    samples = [
        sample(hour / 4, 0.5, ingested_unix_ns=NOON_NS + 3 * HOUR_NS) for hour in range(1, 9)
    ]
    late = {"sampled_unix_ns": NOON_NS + 60 * 365 * 24 * HOUR_NS}
    late["ingested_unix_ns"] = NOON_NS + 3 * HOUR_NS
    samples += [sample(0, 0.5, **late), sample(0, 0.5, device_id="gpu-7", **late)]
    samples.append(sample(0.5, 0.5, device_id="gpu-7", ingested_unix_ns=NOON_NS + 3 * HOUR_NS))
    assert check_same(event(0, pipeline_id=""), *samples)["gpu-0"] == (2.0, 6.0)
    with warehouse_of(event(0, pipeline_id=""), *samples) as con:
        assert con.execute("SELECT count(*) < 300 FROM device_minute").fetchall() == [(True,)]


@pytest.mark.parametrize(
    ("device", "devices", "num_devices"),
    [("cuda", "001", 2), ("cuda", "000", 1), ("cuda", "012", 3), ("cpu", "000", 3)],
)
def test_ranks_that_share_a_device_pay_for_it_once(device, devices, num_devices):
    # three ranks for an hour at 3 an hour; on CPU each stands for a device of the price list
    ranks = [rank_of("r", rank, device_id=f"gpu-{name}") for rank, name in enumerate(devices)]
    steps = [step(0, 3600.0, rank=rank) for rank in range(3)]
    lost = attempt(2, 1.0, is_kept=False, window_s=3 * 3600.0)
    priced = run(device_hour_cost=3.0, currency="EUR", world_size=3, device=device)
    with warehouse_of(priced, *ranks, *steps, lost) as con:
        told = con.execute("SELECT num_devices, device_hours, cost FROM run_efficiency").fetchall()
        by_cause = con.execute("SELECT sum(cost) FROM run_cause").fetchall()
        by_day = con.execute("SELECT sum(cost) FROM cost_by_day").fetchall()
        redone = con.execute("SELECT cost FROM attempt_redone").fetchall()
    cost = 3 * num_devices
    assert told == [(num_devices, num_devices, cost)]
    assert by_cause == by_day == redone == [(cost,)]
