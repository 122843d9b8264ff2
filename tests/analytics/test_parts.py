"""Where the time of ranks, devices, pools and days went: the parts are the window, always."""

import dataclasses
import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import measures, schema
from analytics.warehouse import open_published

PIPELINE = "20261130T140000Z-1a2b"
RUN = f"{PIPELINE}-baseline"
DAY_NS = 86_400 * 10**9
PARTS = (
    "busy_s", "straggler_wait_s", "exposed_comm_s", "unsplit_comm_s", "exposed_copy_s",
    "data_wait_s", "host_wait_s", "kernel_gap_s", "unattributed_s",
)  # fmt: skip
VIEWS = ("run_parts", "run_rank_parts", "run_device_parts", "pool_parts", "day_parts")


def on_device(rank: int, **changes) -> schema.DimRank:
    values = dict(
        run_id=RUN, pipeline_id=PIPELINE, attempt=0, rank=rank, local_rank=rank, host="paper",
        device_id=f"GPU-{rank}", device_name="NVIDIA H200", clock_offset_ns=0,
        clock_uncertainty_ns=0, peak_memory_bytes=None,
    )  # fmt: skip
    return schema.DimRank(**(values | changes))


def pool_event(pool: str, device: str, at_ns: int, event: str) -> schema.FactPoolEvent:
    return schema.FactPoolEvent(
        pool_id=pool, host="paper", device_id=device, event_unix_ns=at_ns, event=event,
        pipeline_id="", purchase=None, device_hour_cost=None, currency=None, reason=None,
    )  # fmt: skip


def test_each_rank_has_its_own_parts_and_bubble(paper):
    paper.pipeline()
    paper.write([on_device(0), on_device(1)], writer="ranks")
    paper.publish()
    con = open_published(paper.runs_dir)
    slow, waiting = measures.rank_parts(con, RUN)
    con.close()
    # four windows of 4 s: rank 0 works 3 s of each, rank 1 works 1 s and waits 2 s
    assert (slow["rank"], slow["window_s"], slow["busy_s"]) == (0, 16.0, 12.0)
    assert (slow["straggler_wait_s"], waiting["straggler_wait_s"]) == (0.0, 8.0)
    assert (slow["bubble_share"], waiting["bubble_share"]) == (0.25, 0.75)
    assert slow["num_rank_steps"] == 4
    assert (slow["host"], slow["device_id"]) == ("paper", "GPU-0")
    assert slow["host_wait_s"] is None  # not measured on CPU


def test_overlap_is_of_all_communication_and_untold_without_any(paper, filled):
    under = [paper.step("baseline", 0, s, comm_s=2.0, overlapped_comm_s=1.5) for s in range(2)]
    alone = [paper.step("baseline", 1, s, comm_s=0.0, overlapped_comm_s=0.0) for s in range(2)]
    filled.write([paper.run("baseline"), *under, *alone])
    rows = measures.rank_parts(filled.con, RUN)
    assert [row["overlap_share"] for row in rows] == [0.75, None]


def test_another_device_of_the_host_is_not_the_runs(paper, filled):
    # mlflow#13398, wandb#538, wandb#9062: every GPU of a shared host was put down to the run
    filled.write(paper.arm("baseline"))
    sample = dict(
        pipeline_id="", attempt=0, host="paper", device_id="GPU-7", device_name="NVIDIA H200",
        sampled_unix_ns=1_796_047_201_000_000_000, interval_s=1.0, utilization_share=1.0,
        memory_used_bytes=None, memory_total_bytes=None, power_w=700.0, sampler_cpu_s=None,
    )  # fmt: skip
    other = schema.from_mapping(schema.FactDeviceSample, sample)
    own = [dataclasses.replace(other, device_id=f"GPU-{r}", power_w=50.0 * (r + 1)) for r in (0, 1)]
    filled.write([on_device(0), on_device(1), other])

    def asked(query: str) -> list[tuple]:
        return filled.con.execute(query).fetchall()

    # GPU-7 worked at 700 W beside the run's first second: nothing of it is the run's
    assert asked("SELECT DISTINCT device_id FROM rank_device ORDER BY 1") == [
        ("GPU-0",),
        ("GPU-1",),
    ]
    allocated = (
        "SELECT DISTINCT device_id FROM device_allocation WHERE pipeline_id <> '' ORDER BY 1"
    )
    assert asked(allocated) == [("GPU-0",), ("GPU-1",)]
    assert asked("SELECT count(utilization_share) FROM step_device") == [(0,)]
    assert asked("SELECT energy_j FROM run_energy") == [(None,)]
    # what its own devices used in that second is
    filled.write(own)
    assert asked("SELECT energy_j FROM run_energy") == [(150.0,)]


def test_ranks_that_share_a_device_are_summed_on_it(paper, filled):
    filled.write(paper.arm("baseline"))
    filled.write([on_device(0), on_device(1, device_id="GPU-0")])
    [row] = measures.device_parts(filled.con, RUN)
    assert (row["num_ranks"], row["window_s"], row["bubble_share"]) == (2, 32.0, 0.5)


def test_a_device_counts_to_the_pool_that_it_was_allocated_from_then(paper, filled):
    filled.write(paper.arm("baseline"))
    began = paper.step("baseline", 0, 0).started_unix_ns
    filled.write([on_device(0), on_device(1)])
    filled.write(
        [
            pool_event("north", "GPU-0", began - 1, "allocated"),
            # from the third step on, which begins after 8 s, it belongs to another pool
            pool_event("north", "GPU-0", began + 8 * 10**9, "released"),
            pool_event("south", "GPU-0", began + 8 * 10**9, "allocated"),
            pool_event("north", "GPU-1", began - 2, "allocated"),
            pool_event("north", "GPU-1", began + 4 * 10**9, "released"),
        ]
    )
    pools = {row["pool_id"]: row for row in measures.pool_parts(filled.con)}
    # north: two steps of GPU-0 and one of GPU-1; south: two; none: three
    assert pools["north"]["window_s"] == 12.0
    assert pools["south"]["window_s"] == 8.0
    assert pools[None]["window_s"] == 12.0


def test_a_step_counts_to_the_day_it_began_on(paper, filled):
    midnight = 20_800 * DAY_NS
    steps = [
        paper.step("baseline", 0, 0, started_unix_ns=midnight - 1),
        paper.step("baseline", 0, 1, started_unix_ns=midnight),
        paper.step("baseline", 0, 2, started_unix_ns=midnight + DAY_NS - 1),
    ]
    filled.write([paper.run("baseline"), *steps])
    rows = measures.day_parts(filled.con)
    day = datetime.date(1970, 1, 1) + datetime.timedelta(days=20_800)
    before = day - datetime.timedelta(days=1)
    assert [(row["date_key"], row["num_rank_steps"]) for row in rows] == [
        (before.isoformat(), 1),
        (day.isoformat(), 2),
    ]


seconds = st.integers(0, 10**10).map(lambda ns: ns / 1e9)
maybe = st.none() | seconds


@st.composite
def steps_of_ranks(draw):
    """Steps whose parts make up their windows, some of them not told apart or not measured."""
    rows = []
    for step in range(draw(st.integers(1, 3))):
        for rank in range(draw(st.integers(1, 2))):
            row = {name: draw(seconds) for name in (
                "busy_s", "exposed_copy_s", "data_wait_s", "unattributed_s",
            )}  # fmt: skip
            row |= {"host_wait_s": draw(maybe), "kernel_gap_s": draw(maybe)}
            wait, wire = draw(seconds), draw(seconds)
            is_split = draw(st.booleans())
            row["exposed_comm_total_s"] = wait + wire
            row["straggler_wait_s"] = wait if is_split else None
            row["exposed_comm_s"] = wire if is_split else None
            told = [v for n, v in row.items() if n not in ("straggler_wait_s", "exposed_comm_s")]
            row["window_s"] = sum(v for v in told if v is not None)
            row["comm_s"] = row["exposed_comm_total_s"] + draw(seconds)
            row["overlapped_comm_s"] = row["comm_s"] - row["exposed_comm_total_s"]
            rows.append((rank, step, draw(st.integers(0, 2)), row))
    return rows


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=steps_of_ranks())
def test_parts_sum_to_the_window_however_time_is_grouped(paper, filled, rows):
    steps = [
        paper.step("baseline", rank, step, started_unix_ns=20_800 * DAY_NS + day * DAY_NS, **row)
        for rank, step, day, row in rows
    ]
    filled.clear()
    filled.write([paper.run("baseline"), on_device(0), on_device(1), *steps])
    whole = sum(row["window_s"] for _, _, _, row in rows)
    for view in VIEWS:
        query = f"SELECT window_s, {', '.join(PARTS)} FROM {view}"
        found = filled.con.execute(query).fetchall()
        for window, *parts in found:
            told = [part for part in parts if part is not None]
            assert all(part >= 0 for part in told)
            # opencost#3900, kubecost#1978: 0 <= idle <= total, and all of it is the total
            assert sum(told) == pytest.approx(window, rel=1e-9, abs=1e-6)
        assert sum(row[0] for row in found) == pytest.approx(whole, rel=1e-9, abs=1e-6)
    shares = filled.con.execute("SELECT bubble_share FROM run_rank_parts").fetchall()
    assert all(share is None or -1e-9 <= share <= 1 for (share,) in shares)
