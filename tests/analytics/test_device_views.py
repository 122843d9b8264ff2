"""What devices did, in time and energy: nothing is invented over gaps and nothing vanishes."""

from decimal import Decimal

import pytest

from analytics import schema
from analytics.telemetry.counters import Energy
from tests.analytics.landed import MINUTE, START, S, land_records, loaded, query, sample

PIPELINE = "20261130T140000Z-1a2b"
PAPER_END = START + 10 * MINUTE


def event(at_s: float, what: str, *, device_id: str = "GPU-a", **changes) -> schema.FactPoolEvent:
    values = dict(
        pool_id="p", host="node-1", device_id=device_id, event_unix_ns=START + round(at_s * S),
        event=what, pipeline_id="", purchase=None, device_hour_cost=3.6, currency="EUR",
        reason=None,
    )  # fmt: skip
    return schema.FactPoolEvent(**(values | changes))


def rank(number: int, **changes) -> schema.DimRank:
    optional = {c.name: None for c in schema.columns(schema.DimRank) if c.nullable}
    values = dict(run_id=f"{PIPELINE}-baseline", pipeline_id=PIPELINE, attempt=0, rank=number,
                  host="paper", device_id=f"GPU-{number}")  # fmt: skip
    return schema.DimRank(**(optional | values | changes))


def seen(runs_dir, *records) -> None:
    land_records(runs_dir, "a", *records)
    loaded(runs_dir)


def test_without_told_intervals_a_sample_speaks_for_its_gap_but_not_over_a_hole(tmp_path):
    seen(tmp_path, *(sample(t) for t in (0, 10, 20, 30, 130, 140)))
    # gaps of 10, 10, 10, 100, 10 s: their median is 10 s, so the hole counts for 30 s
    found = query(tmp_path, "SELECT observed_s FROM device_interval ORDER BY sampled_unix_ns")
    assert found == [(None,), (10.0,), (10.0,), (10.0,), (30.0,), (10.0,)]
    assert query(tmp_path, "SELECT sampled_s FROM device_use") == [(70.0,)]


def test_a_told_interval_is_taken_as_it_is(tmp_path):
    seen(tmp_path, sample(0, interval_s=5.0), sample(100, interval_s=5.0))
    assert query(tmp_path, "SELECT observed_s FROM device_interval") == [(5.0,), (5.0,)]


def test_use_is_weighted_by_time_and_missing_is_not_zero(tmp_path):
    seen(
        tmp_path,
        sample(1, interval_s=1.0, utilization_share=1.0),
        sample(4, interval_s=3.0, utilization_share=0.0),
        sample(9, interval_s=5.0),
    )
    # 1 s busy of the 4 s whose use is known; the mean of the two points would be a half
    assert query(tmp_path, "SELECT utilization_share, sampled_s FROM device_use") == [(0.25, 9.0)]


def test_samples_weigh_as_much_as_they_overlap_a_step(paper):
    paper.write([
        paper.run("baseline", world_size=1, device="cuda"),
        rank(0),
        paper.step("baseline", 0, 0),
        paper.step("baseline", 0, 1),
        *(
            sample(at_s, pipeline_id=PIPELINE, host="paper", device_id="GPU-0", interval_s=3.0,
                   utilization_share=share, power_w=100.0)
            for at_s, share in ((2, 1.0), (5, 0.0), (8, 0.5))
        ),
    ])  # fmt: skip
    loaded(paper.runs_dir)
    rows = query(
        paper.runs_dir,
        "SELECT step, observed_s, num_device_samples, utilization_share, energy_j, is_resolved "
        "FROM step_device ORDER BY step",
    )
    # step 0 is 0-4 s: 2 s at 1 and 2 s at 0; step 1 is 4-8 s: 1 s at 0 and 3 s at a half
    assert rows == [
        (0, 4.0, 2, pytest.approx(0.5), pytest.approx(400.0), True),
        (1, 4.0, 2, pytest.approx(0.375), pytest.approx(400.0), True),
    ]
    # 8 sequences for 800 J
    found = query(
        paper.runs_dir,
        "SELECT energy_observed_share, energy_j, energy_per_1m_samples_j FROM run_energy",
    )
    assert found == [(1.0, pytest.approx(800.0), pytest.approx(1e8))]


def test_a_sample_longer_than_its_steps_is_shared_out_among_them(paper):
    # DCGM#170: at an interval of 30 s nothing is told of a step of 4 s alone
    paper.write([
        paper.run("baseline", world_size=1, device="cuda"),
        rank(0),
        *(paper.step("baseline", 0, n) for n in range(3)),
        sample(12, pipeline_id=PIPELINE, host="paper", device_id="GPU-0", interval_s=12.0,
               utilization_share=0.75),
    ])  # fmt: skip
    loaded(paper.runs_dir)
    rows = query(
        paper.runs_dir,
        "SELECT observed_s, utilization_share, is_resolved FROM step_device ORDER BY step",
    )
    assert rows == [(4.0, 0.75, False)] * 3  # the sampling is coarser than the steps: it says so


def test_ranks_that_share_a_device_share_its_energy(paper):
    paper.pipeline(num_steps=1)
    paper.write(
        [sample(4, pipeline_id=PIPELINE, host="paper", device_id="cpu", interval_s=4.0,
                power_w=10.0)],
        writer="sampler",
    )  # fmt: skip
    loaded(paper.runs_dir)
    rows = query(
        paper.runs_dir,
        "SELECT rank, device_id, energy_j FROM step_device "
        f"WHERE run_id = '{PIPELINE}-baseline' ORDER BY rank",
    )
    assert rows == [(0, "cpu", 20.0), (1, "cpu", 20.0)]  # no dim_rank: the host's processor


def test_a_device_is_not_guessed_among_several(paper):
    paper.write([
        paper.run("baseline", world_size=1, device="cuda"),
        paper.step("baseline", 0, 0),
        *(sample(4, pipeline_id=PIPELINE, host="paper", device_id=f"GPU-{n}", interval_s=4.0)
          for n in range(2)),
    ])  # fmt: skip
    loaded(paper.runs_dir)
    assert query(paper.runs_dir, "SELECT device_id, observed_s FROM step_device") == [(None, 0.0)]


def test_energy_follows_the_counter_over_a_reset_and_not_what_cannot_be(tmp_path):
    # zeus#181, zeus#45, compute-runtime#938: a counter that fell has begun anew, and is no terawatt
    counter = [1000.0, 1500.0, 200.0, 1e15, 1e15 + 300]
    seen(
        tmp_path,
        *(
            sample(n, interval_s=1.0, power_w=100.0, power_limit_w=700.0, energy_j=value)
            for n, value in enumerate(counter)
        ),
    )
    # first sample: by power, 100 J; then 500 J; 200 J since the reset; by power again; 300 J
    found = query(
        tmp_path,
        "SELECT metered_energy_j, power_energy_j, num_counter_resets, num_implausible "
        "FROM device_energy",
    )
    assert found == [(1200.0, 500.0, 1, 1)]


@pytest.mark.parametrize("limit_w", [700.0, None])
@pytest.mark.parametrize("of_the_most", [0.99, 1.01])
def test_the_views_believe_of_a_counter_what_the_sampler_believes(tmp_path, limit_w, of_the_most):
    most_w = 1.5 * (limit_w or 3000)
    first, second = 1000.0, 1000.0 + of_the_most * most_w
    sampler = Energy()
    sampler.take(first, 0.0, limit_w)
    is_believed = sampler.take(second, 1.0, limit_w) is not None
    assert is_believed == (of_the_most < 1)
    seen(
        tmp_path,
        *(
            sample(n, interval_s=1.0, power_limit_w=limit_w, energy_j=value)
            for n, value in enumerate((first, second))
        ),
    )
    assert query(tmp_path, "SELECT num_implausible FROM device_energy") == [(int(not is_believed),)]


def test_without_power_and_counter_no_energy_is_told(tmp_path):
    seen(tmp_path, sample(0, interval_s=1.0), sample(1, interval_s=1.0))
    assert query(tmp_path, "SELECT metered_energy_j, power_energy_j FROM device_energy") == [
        (None, None)
    ]


def states(runs_dir) -> dict[tuple[str, int], str]:
    rows = query(runs_dir, "SELECT device_id, minute_unix_ns, state FROM device_minute")
    return {(device, (minute - START) // MINUTE): state for device, minute, state in rows}


def test_a_device_that_was_never_sampled_is_priced_as_unobserved(tmp_path):
    # legion#691, reportseff#19: an idle device that was missing made the rest read 100 %
    seen(
        tmp_path,
        event(0, "allocated"),
        event(0, "allocated", device_id="GPU-b"),
        event(180, "released"),
        event(180, "released", device_id="GPU-b"),
        *(sample(10 * n + 5, interval_s=10.0, sm_active_share=0.9) for n in range(6)),
        *(sample(10 * n + 65, interval_s=10.0, sm_active_share=0.0) for n in range(6)),
    )
    assert states(tmp_path) == {
        ("GPU-a", 0): "training", ("GPU-a", 1): "allocated_idle", ("GPU-a", 2): "unobserved",
        ("GPU-b", 0): "unobserved", ("GPU-b", 1): "unobserved", ("GPU-b", 2): "unobserved",
    }  # fmt: skip
    rows = query(
        tmp_path,
        "SELECT device_id, state, state_s, cost, currency FROM device_state "
        "WHERE state_s > 0 ORDER BY ALL",
    )
    # 3.6 an hour is 0.06 a minute; all of 6 minutes is there
    assert rows == [
        ("GPU-a", "allocated_idle", 60.0, Decimal("0.060000"), "EUR"),
        ("GPU-a", "training", 60.0, Decimal("0.060000"), "EUR"),
        ("GPU-a", "unobserved", 60.0, Decimal("0.060000"), "EUR"),
        ("GPU-b", "unobserved", 180.0, Decimal("0.180000"), "EUR"),
    ]


def test_time_between_two_allocations_is_unallocated_and_costs_nothing(tmp_path):
    seen(
        tmp_path,
        event(0, "allocated"), event(60, "released"),
        event(150, "allocated"), event(240, "preempted"),
    )  # fmt: skip
    assert [state for _, state in sorted(states(tmp_path).items())] == [
        "unobserved", "unallocated", "unobserved", "unobserved"
    ]  # fmt: skip
    rows = query(tmp_path, "SELECT state, sum(state_s), sum(cost) FROM device_state GROUP BY state")
    assert sorted(rows) == [
        ("unallocated", 90.0, None), ("unobserved", 150.0, Decimal("0.150000"))
    ]  # fmt: skip


def test_a_failure_ends_what_was_held_and_is_no_state_of_a_device(tmp_path):
    # rank 0's device goes on working until the attempt ends, rank 1's stands idle since it died
    seen(
        tmp_path,
        event(0, "allocated"), event(0, "allocated", device_id="GPU-b"),
        event(120, "failed"), event(120, "failed", device_id="GPU-b"),
        event(180, "allocated"), event(180, "allocated", device_id="GPU-b"),
        event(240, "released"), event(240, "released", device_id="GPU-b"),
        *(sample(10 * n + 5, interval_s=10.0, sm_active_share=0.9) for n in range(12)),
        *(
            sample(10 * n + 5, device_id="GPU-b", interval_s=10.0, sm_active_share=0.9 * (n < 6))
            for n in range(12)
        ),
    )  # fmt: skip
    assert states(tmp_path) == {
        ("GPU-a", 0): "training", ("GPU-a", 1): "training",
        ("GPU-b", 0): "training", ("GPU-b", 1): "allocated_idle",
        ("GPU-a", 2): "unallocated", ("GPU-b", 2): "unallocated",
        ("GPU-a", 3): "unobserved", ("GPU-b", 3): "unobserved",
    }  # fmt: skip
    # both were paid for until the attempt ended: 2 minutes of 0.06, and 1 after it
    rows = query(
        tmp_path, "SELECT device_id, sum(cost) FROM device_state GROUP BY ALL ORDER BY ALL"
    )
    assert rows == [("GPU-a", Decimal("0.180000")), ("GPU-b", Decimal("0.180000"))]
    ends = query(
        tmp_path, f"SELECT DISTINCT ended_by FROM allocation WHERE began_unix_ns = {START}"
    )
    assert ends == [("failed",)]


def test_samples_without_any_activity_figure_are_not_idle(tmp_path):
    # nvidia_gpu_exporter#203, sonar#247: a slice has no utilisation, which was drawn as 0
    seen(
        tmp_path,
        sample(30, interval_s=30.0, memory_used_bytes=5),
        sample(30, device_id="GPU-b/1/0", interval_s=30.0, engine_active_share=0.5),
        sample(30, device_id="GPU-c", interval_s=30.0, num_processes=0),
    )
    assert states(tmp_path) == {
        ("GPU-a", 0): "unobserved", ("GPU-b/1/0", 0): "training", ("GPU-c", 0): "allocated_idle"
    }  # fmt: skip


def test_a_sample_that_speaks_for_minutes_observes_them_all(tmp_path):
    seen(tmp_path, sample(290, interval_s=290.0, utilization_share=0.5))
    assert set(states(tmp_path).values()) == {"training"}
    assert len(states(tmp_path)) == 5


def test_a_run_holds_its_devices_where_no_pool_tells(paper):
    paper.pipeline(num_steps=1)
    loaded(paper.runs_dir)
    found = query(
        paper.runs_dir,
        "SELECT host, device_id, allocation_source, ended_unix_ns - began_unix_ns "
        "FROM device_allocation",
    )
    assert found == [("paper", "cpu", "run", 4 * S)]


def test_a_sample_from_the_future_is_kept_beside_the_time_it_came(tmp_path):
    # promitor#290: clocks that were off made samples "too old" or "in the future", then lost
    seen(tmp_path, sample(10**6, ingested_unix_ns=START), sample(-(10**6), ingested_unix_ns=START))
    found = query(
        tmp_path,
        "SELECT (sampled_unix_ns - ingested_unix_ns) // 1000000000 FROM fact_device_sample "
        "ORDER BY ALL",
    )
    assert found == [(-(10**6),), (10**6,)]


def test_zero_and_missing_stay_apart_with_the_version_that_told_them(tmp_path):
    # dcgm-exporter#700: a new version tells nothing where the old one told 0
    seen(
        tmp_path,
        sample(0, interval_s=1.0, utilization_share=0.0, collector="dcgm-exporter 3.1"),
        sample(1, interval_s=1.0, utilization_share=None, collector="dcgm-exporter 3.3"),
    )
    found = query(
        tmp_path, "SELECT collector, utilization_share FROM fact_device_sample ORDER BY ALL"
    )
    assert found == [("dcgm-exporter 3.1", 0.0), ("dcgm-exporter 3.3", None)]
    assert query(tmp_path, "SELECT utilization_share FROM device_use") == [(0.0,)]


def test_idle_time_is_never_negative_nor_more_than_all(tmp_path):
    # opencost#3900, kubecost#1978: idle cost that was negative, or allocation called usage
    seen(
        tmp_path,
        event(0, "allocated"), event(90, "released"),
        *(sample(10 * n, interval_s=25.0, sm_active_share=0.5) for n in range(12)),
    )  # fmt: skip
    rows = query(tmp_path, "SELECT state, state_s, cost FROM device_state")
    assert all(state_s >= 0 and (cost is None or cost >= 0) for _, state_s, cost in rows)
    allocated = sum(state_s for state, state_s, _ in rows if state != "unallocated")
    assert allocated == pytest.approx(90.0)
    assert sum(cost for _, _, cost in rows if cost) == Decimal("0.090000")


def test_the_cost_of_watching_is_that_of_every_sampler(tmp_path):
    # each sampler counts its CPU time from 0: 1 s of 100 s, 3 s of 100 s in another attempt, and
    # 2 s of 100 s in the evaluation of that
    def watched(begin, attempt, seconds):
        return [
            sample(begin + t, attempt=attempt, interval_s=50.0, sampler_cpu_s=seconds * t / 100)
            for t in (50, 100)
        ]

    seen(tmp_path, *watched(0, 0, 1.0), *watched(200, 1, 3.0), *watched(400, 1, 2.0))
    assert query(tmp_path, "SELECT sampled_s, sampler_cpu_share FROM device_use") == [(300.0, 0.02)]
