"""The same measure by run, rank, device, pool and day: however it is cut, it adds up."""

import itertools

import pytest

from analytics import measures
from tests.analytics.paper_warehouse import event, rank_of, sample, warehouse_of
from tests.analytics.test_allocation_laws import run, step

CUTS = [
    names for size in range(len(measures.DIMENSIONS) + 1)
    for names in itertools.combinations(measures.DIMENSIONS, size)
]  # fmt: skip
# two ranks on two devices of two pools; two steps, before and after midnight in Madrid
RECORDS = [
    run(world_size=2, precision="bf16"),
    *(rank_of("r", rank, device_name="NVIDIA H200") for rank in range(2)),
    event(0, pool_id="north"), event(13, "released", pool_id="north"),
    event(0, pool_id="south", device_id="gpu-1"),
    event(13, "released", pool_id="south", device_id="gpu-1"),
    *(
        step(hour, 60.0, step=number, rank=rank, model_flops=(rank + 1) * 989.5e12)
        for number, hour in enumerate((1, 11.5))
        for rank in range(2)
    ),
    *(
        sample(hour + minute / 60, 0.5, 60.0, device_id=f"gpu-{rank}", power_w=100.0 * (rank + 1))
        for hour in (1, 11.5)
        for minute in range(1, 3)
        for rank in range(2)
    ),
]  # fmt: skip


@pytest.fixture
def con():
    with warehouse_of(*RECORDS, zone="Europe/Madrid") as con:
        yield con


def test_energy_and_operations_add_up_however_they_are_cut(con):
    for names in CUTS:
        check_cut(con, names)


def check_cut(con, names) -> None:
    energy = measures.energy_by(con, *names)
    # two steps of a minute at 100 W and at 200 W
    assert sum(row["energy_j"] for row in energy) == pytest.approx(2 * 60 * (100 + 200))
    assert sum(row["window_s"] for row in energy) == pytest.approx(240)
    mfu = measures.mfu_by(con, *names)
    assert sum(row["model_flops"] for row in mfu) == pytest.approx(6 * 989.5e12)
    assert sum(row["peak_flops"] for row in mfu) == pytest.approx(4 * 60 * 989.5e12)


def test_each_rank_device_pool_and_day_has_its_own_share(con):
    shares = {row["rank"]: row["mfu_share"] for row in measures.mfu_by(con, "rank")}
    assert shares == pytest.approx({0: 1 / 60, 1: 2 / 60})
    by_pool = {row["pool_id"]: row["energy_j"] for row in measures.energy_by(con, "pool_id")}
    assert by_pool == pytest.approx({"north": 12_000, "south": 24_000})
    days = {row["date_key"]: row["energy_j"] for row in measures.energy_by(con, "date_key")}
    assert days == pytest.approx({"2026-11-30": 18_000, "2026-12-01": 18_000})


def test_the_mfu_of_a_run_is_that_of_its_ranks(con):
    assert measures.mfu_by(con, "run_id")[0]["mfu_share"] == pytest.approx(
        measures.run_mfu(con, "r")["mfu_share"]
    )


def test_an_unknown_peak_leaves_no_share_of_any_sum_with_it():
    known, unknown = RECORDS[1], rank_of("r", 1, device_name="paper GPU")
    with warehouse_of(RECORDS[0], known, unknown, *RECORDS[3:]) as con:
        shares = {row["rank"]: row["mfu_share"] for row in measures.mfu_by(con, "rank")}
        assert shares == {0: pytest.approx(1 / 60), 1: None}
        (whole,) = measures.mfu_by(con)
        assert whole["mfu_share"] is None and whole["model_flops"] > 0


def test_days_of_energy_and_states_add_up_to_the_device(con):
    days = con.execute(
        "SELECT host, device_id, sum(metered_energy_j), sum(power_energy_j) "
        "FROM device_day_energy GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    whole = con.execute(
        "SELECT host, device_id, sum(metered_energy_j), sum(power_energy_j) "
        "FROM device_energy GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert days == [(*row[:2], *map(pytest.approx, row[2:])) for row in whole]
    states = con.execute(
        "SELECT pool_id, date_key::VARCHAR, sum(state_s) FROM device_state_day "
        "WHERE state <> 'unallocated' GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    # thirteen hours each, the last two after midnight in Madrid
    assert states == [
        (pool, day, pytest.approx(hours * 3600))
        for pool in ("north", "south")
        for day, hours in (("2026-11-30", 11), ("2026-12-01", 2))
    ]


def test_an_unknown_dimension_is_refused(con):
    with pytest.raises(ValueError, match="'arm; DROP' is no dimension"):
        measures.energy_by(con, "arm; DROP")
