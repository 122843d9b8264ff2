"""Pools, teams and allocations from CSV: in our words, or refused with a reason."""

import duckdb
import pytest

from analytics.billing import instant
from analytics.errors import InputError
from analytics.pools import import_pools, looks_like_pools

EVENTS = """pool_id,host,device_id,event,event_utc,pipeline_id,purchase,device_hour_cost,currency
p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,a,spot,1.25,EUR
p,h1,gpu-0,preempted,2026-11-30T15:00:00+01:00,a,,,
"""


def landed(tmp_path, about, table):
    path = tmp_path / "runs" / "telemetry" / about.import_id / f"{table}.parquet"
    return duckdb.connect().execute(f"SELECT * FROM '{path}' ORDER BY ALL").fetchall()


def test_a_folder_of_pools_teams_and_events_is_taken_up(tmp_path):
    (tmp_path / "pools.csv").write_text(
        "pool_id,cloud,region,instance_type,team_id,num_devices,purchase\n"
        "p,aws,eu-west-1,p5.48xlarge,ads,8,spot\nq,own,,,,,\n"
    )
    (tmp_path / "teams.csv").write_text("team_id,team_name\nads,Anuncios y señal\n")
    (tmp_path / "pool_events.csv").write_text(EVENTS)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    about = import_pools(tmp_path, tmp_path / "runs")
    assert (about.num_files, about.num_read, about.num_rejected, about.num_records) == (3, 5, 0, 5)
    assert landed(tmp_path, about, "dim_pool") == [
        ("p", "aws", "eu-west-1", "p5.48xlarge", "ads", 8, "spot"),
        ("q", "own", None, None, None, None, None),
    ]
    assert landed(tmp_path, about, "dim_team") == [("ads", "Anuncios y señal")]
    events = landed(tmp_path, about, "fact_pool_event")
    noon = instant("2026-11-30T12:00Z")
    assert [row[3] - noon for row in events] == [0, 2 * 3600 * 10**9]
    assert events[0][4:9] == ("allocated", "a", "spot", 1.25, "EUR")
    assert import_pools(tmp_path, tmp_path / "runs") == about


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("p,h1,gpu-0,borrowed,2026-11-30T12:00:00Z,,,,", "unknown_event"),
        ("p,h1,gpu-0,allocated,noon,,,,", "unreadable_event_utc"),
        ("p,,gpu-0,allocated,2026-11-30T12:00:00Z,,,,", "missing_host"),
        ("p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,,spot,one,EUR", "unreadable_device_hour_cost"),
        ("p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,,spot,nan,EUR",
         "out_of_bounds_device_hour_cost"),
        ("p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,,spot,-1,EUR",
         "out_of_bounds_device_hour_cost"),
        ("p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,,spot,1,", "missing_currency"),
        ("p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,,cheap,1,EUR", "unknown_purchase"),
        ("p,h1,gpu-0", "wrong_number_of_cells"),
        ("p,h\x001,gpu-0,allocated,2026-11-30T12:00:00Z,,,,", "zero_byte"),
        ("p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,a,spot,2.5,EUR", "contradicts_a_row_before"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_refused_with_its_reason(tmp_path, line, reason):
    path = tmp_path / "pool_events.csv"
    path.write_text(EVENTS + line + "\n")
    about = import_pools(path, tmp_path / "runs")
    assert (about.num_read, about.num_loaded, about.num_rejected) == (3, 2, 1)
    [reject] = landed(tmp_path, about, "fact_import_reject")
    assert reject[1:4] == ("pool_events.csv", 4, reason)


def test_more_rows_than_memory_is_meant_for_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("analytics.pools._MOST_ROWS", 3)
    path = tmp_path / "pools.csv"
    rows = [f"p{n},own" for n in range(4)]
    path.write_text("\n".join(["pool_id,cloud", *rows[:3]]))
    assert import_pools(path, tmp_path / "runs").num_loaded == 3
    for more in (rows[3], "x"):  # rejected rows are held too
        path.write_text("\n".join(["pool_id,cloud", *rows[:3], more]))
        with pytest.raises(InputError, match="more than 3 rows of its kind"):
            import_pools(path, tmp_path / "runs")


def test_a_file_of_another_form_is_refused_with_what_is_wanted(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfe\x00garbage")
    assert not looks_like_pools(path)
    with pytest.raises(InputError, match="pool_id,cloud"):
        import_pools(path, tmp_path / "runs")
