from decimal import Decimal
from pathlib import Path

import pytest

from analytics import metrics, schema, warehouse
from analytics.ddl import view_column_docs, views
from analytics.warehouse import open_published

PIPELINE = "20261130T140000Z-1a2b"


@pytest.fixture
def con(published):
    con = open_published(published.runs_dir)
    yield con
    con.close()


def query(paper, sql: str) -> list[tuple]:
    paper.publish()
    con = open_published(paper.runs_dir)
    try:
        return con.execute(sql).fetchall()
    finally:
        con.close()


def test_the_gain_of_a_forecast_is_the_best_placement_against_random(paper):
    def forecast(placement: str, share: float, size: int = 4) -> schema.FactStragglerForecast:
        return schema.FactStragglerForecast(
            pipeline_id=PIPELINE, dataset_id="d0", num_ranks=2, sequences_per_rank=size,
            placement=placement, straggler_share=share, bound_share=0.125,
            straggler_cost_per_1000_device_hours=share * 9000, currency="EUR",
            instance_type="paper.1",
        )  # fmt: skip

    rows = [forecast("random_equal", 0.5), forecast("lpt_free", 0.25), forecast("lookahead", 0.0)]
    paper.write([*rows, forecast("random_equal", 0.75, size=8)])
    warehouse.load(paper.runs_dir)
    found = query(
        paper,
        "SELECT sequences_per_rank, best_placement, gain_share, gain_cost_per_1000_device_hours "
        "FROM forecast_gain ORDER BY sequences_per_rank",
    )
    # half of the time at 9 an hour, 4,500 per 1,000 hours; one placement alone gains nothing
    assert found == [
        (4, "lookahead", 0.5, Decimal("4500.000000")),
        (8, "random_equal", 0.0, Decimal("0.000000")),
    ]


def test_the_line_of_an_arm_is_what_paper_says(con):
    baseline, balanced = metrics.run_efficiency(con, PIPELINE)
    assert (baseline["arm"], balanced["arm"]) == ("baseline", "balanced")
    # every rank's window is 4 s; ranks 3 s and 1 s of own work of 8 s: half is bubble
    assert baseline["step_s"] == pytest.approx(4.0)
    assert baseline["bubble_share"] == pytest.approx(0.5)
    assert baseline["busy_share"] == pytest.approx(0.5)
    # rank 1 waits 2 s of 8 s; wire 1 s, data 0.5 s, rest 0.5 s
    assert baseline["straggler_wait_share"] == pytest.approx(0.25)
    assert baseline["exposed_comm_share"] == pytest.approx(0.125)
    assert baseline["data_wait_share"] == pytest.approx(0.0625)
    assert baseline["unattributed_share"] == pytest.approx(0.0625)
    # mean own work 2 s, largest 3 s: 1 - 2/3, in CPU time as well (half of each)
    assert baseline["straggler_share"] == pytest.approx(1 / 3)
    assert baseline["straggler_cpu_share"] == pytest.approx(1 / 3)
    # 8 sequences every 4 s
    assert baseline["samples_per_s"] == pytest.approx(2.0)
    # 4 steps x 2 ranks x 4 s = 32 s at 9 an hour
    assert baseline["cost"] == 0.08
    assert baseline["currency"] == "EUR"
    # 32 sequences for 0.08
    assert baseline["cost_per_1m_samples"] == pytest.approx(2500.0)
    # half of 1,000 device-hours at 9
    assert baseline["bubble_cost_per_1000_device_hours"] == pytest.approx(4500.0)
    # 4 s of 5 s are own work; 20 s at 9 an hour
    assert balanced["bubble_share"] == pytest.approx(0.2)
    assert balanced["straggler_share"] == pytest.approx(0.0)
    assert balanced["samples_per_s"] == pytest.approx(3.2)
    assert balanced["cost"] == 0.05
    assert balanced["rows_ahead_share"] == pytest.approx(0.25)


def test_quality_is_of_the_test_split_with_popularity_beside_it(con):
    baseline = metrics.run_efficiency(con, PIPELINE)[0]
    assert baseline["hr_at_10"] == pytest.approx(0.16)
    assert baseline["popularity_hr_at_10"] == pytest.approx(0.08)
    assert baseline["ndcg_at_10"] == pytest.approx(0.08)
    assert baseline["popularity_ndcg_at_10"] == pytest.approx(0.04)
    assert baseline["mrr"] == pytest.approx(0.04)
    rankers = [(row["arm"], row["ranker"]) for row in metrics.quality(con, PIPELINE)]
    assert rankers == [
        ("baseline", "model"), ("baseline", "popularity"),
        ("balanced", "model"), ("balanced", "popularity"),
    ]  # fmt: skip


def test_causes_share_out_the_whole_cost(con):
    causes = [row for row in metrics.pipeline_causes(con, PIPELINE) if row["arm"] == "baseline"]
    # 0.08 over shares 1/2, 1/4, 1/8, 1/16, 1/16; no copies; host and kernel were not measured
    assert [(row["cause"], row["share"], row["cost"]) for row in causes] == [
        ("busy", 0.5, 0.04),
        ("straggler_wait", 0.25, 0.02),
        ("exposed_comm", 0.125, 0.01),
        ("exposed_copy", 0.0, 0.0),
        ("data_wait", 0.0625, 0.005),
        ("unattributed", 0.0625, 0.005),
    ]


def test_the_last_micro_unit_goes_to_the_largest_remainder(paper):
    # 1 s in three thirds of a second at 0.0036 an hour costs 1 micro-unit: one cause gets it all
    third = 1 / 3
    paper.write([
        paper.run("baseline", world_size=1, device_hour_cost=0.0036),
        paper.step(
            "baseline", 0, 0, window_s=1.0, busy_s=third, straggler_wait_s=0.0,
            exposed_comm_s=third, exposed_comm_total_s=third, data_wait_s=third,
            unattributed_s=0.0,
        ),
    ])  # fmt: skip
    rows = query(paper, "SELECT cause, cost FROM run_cause ORDER BY cause_rank")
    costs = {cause: cost for cause, cost in rows if cost}
    assert costs == {"busy": Decimal("0.000001")}


@pytest.mark.parametrize("rate", [0.01, 3.0, 7.77, 98.32])
def test_costs_of_causes_add_up_to_the_last_micro_unit(paper, rate):
    steps = [
        paper.step(
            "baseline", rank, step, busy_s=0.1 * (step + 1) / 3, straggler_wait_s=step / 7,
            exposed_comm_s=rank / 11, exposed_comm_total_s=step / 7 + rank / 11,
            data_wait_s=1 / 13, unattributed_s=1e-9,
            window_s=0.1 * (step + 1) / 3 + step / 7 + rank / 11 + 1 / 13 + 1e-9,
        )
        for step in range(5) for rank in range(2)
    ]  # fmt: skip
    paper.write([paper.run("baseline", device_hour_cost=rate), *steps])
    rows = query(
        paper,
        "SELECT any_value(e.cost), sum(c.cost), any_value(e.bubble_cost), "
        "sum(c.cost) FILTER (WHERE cause <> 'busy') "
        "FROM run_efficiency e JOIN run_cause c USING (run_id)",
    )
    [(cost, by_cause, wasted, wasted_by_cause)] = rows
    assert cost == by_cause
    assert wasted == wasted_by_cause
    assert cost > 0


def test_without_arrival_times_only_the_sum_is_told(paper):
    unsplit = dict(straggler_wait_s=None, exposed_comm_s=None, exposed_comm_total_s=2.5)
    paper.write(
        [paper.run("baseline"), *(paper.step("baseline", r, 0, **unsplit) for r in range(2))]
    )
    rows = query(
        paper,
        "SELECT straggler_wait_share, exposed_comm_share, exposed_comm_total_share "
        "FROM run_efficiency",
    )
    assert rows == [(None, None, pytest.approx(5 / 8))]
    causes = query(paper, "SELECT cause FROM run_cause ORDER BY cause_rank")
    assert ("exposed_comm_total",) in causes
    assert ("straggler_wait",) not in causes


def test_one_rank_has_no_straggler_share(paper):
    alone = paper.step("baseline", 0, 0, comm_s=0.0)
    paper.write([paper.run("baseline", world_size=1), alone])
    rows = query(
        paper, "SELECT straggler_share, straggler_cpu_share, overlap_share FROM run_efficiency"
    )
    assert rows == [(None, None, None)]


def test_a_step_that_a_killed_rank_did_not_finish_is_no_balance(paper):
    records = [paper.step("baseline", r, s) for s in range(2) for r in range(2)]
    half = paper.step("baseline", 0, 2, busy_s=4.0)  # rank 1 died in step 2
    paper.write([paper.run("baseline"), *records, half])
    rows = query(paper, "SELECT num_recorded_steps, straggler_share FROM run_efficiency")
    assert rows == [(3, pytest.approx(1 / 3))]


def test_a_run_that_recorded_no_step_still_has_its_line(paper):
    paper.write([paper.run("baseline")])
    rows = query(paper, "SELECT arm, step_s, bubble_share, cost, dataset_name FROM run_efficiency")
    assert rows == [("baseline", None, None, None, None)]


def test_a_series_keeps_first_steps_and_sums_shares(con):
    points = metrics.step_series(con, f"{PIPELINE}-baseline", max_points=2)
    assert [p["step"] for p in points] == [0, 2]
    # losses per target are 5, 4, 3, 2 over equal targets
    assert [p["loss"] for p in points] == [pytest.approx(4.5), pytest.approx(2.5)]
    assert points[0]["straggler_share"] == pytest.approx(1 / 3)
    assert len(metrics.step_series(con, f"{PIPELINE}-baseline", max_points=100)) == 4
    with pytest.raises(ValueError, match="at least one point"):
        metrics.step_series(con, "any", max_points=0)


def test_pipelines_are_listed_newest_first(published):
    published.write(
        [
            published.run(
                "baseline", pipeline_id="20271130T140000Z-1a2b", started_unix_ns=2 * 10**18
            )
        ],
        pipeline_id="20271130T140000Z-1a2b",
    )
    published.publish()
    con = open_published(published.runs_dir)
    rows = metrics.pipelines(con)
    con.close()
    assert [r["pipeline_id"] for r in rows] == ["20271130T140000Z-1a2b", PIPELINE]
    assert [r["num_runs"] for r in rows] == [1, 2]
    # the last window of the baseline starts after 12 s and lasts 4 s
    assert rows[1]["ended_unix_ns"] - rows[1]["started_unix_ns"] == 16 * 10**9
    assert rows[0]["ended_unix_ns"] is None


def test_every_column_of_the_exported_view_is_documented(con):
    described = [row[0] for row in con.execute("DESCRIBE run_efficiency").fetchall()]
    docs = view_column_docs("run_efficiency")
    assert [c for c in described if c not in docs] == []
    with pytest.raises(ValueError, match="'nosuch' is not a view"):
        view_column_docs("nosuch")


def test_every_view_file_says_its_grain_its_units_and_its_sources():
    for view in views():
        head = view.query.split("\nSELECT")[0].split("\nWITH")[0]
        assert view.name in head, Path(view.name)
        for word in ("Grain:", "Units:", "Reads from:"):
            assert word in head, (view.name, word)


def test_every_instant_is_a_count_of_nanoseconds_and_no_clock_on_a_wall(con):
    # streamlit#1346, streamlit#2388, streamlit#2369: what has no zone is shifted by who shows it
    rows = con.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
    ).fetchall()
    assert [row for row in rows if row[2].startswith("TIME")] == []
    counts = {kind for _, name, kind in rows if name.endswith("unix_ns")}
    assert counts == {"BIGINT"}
