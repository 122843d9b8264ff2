"""A warehouse of every older version becomes today's with the rows it had; a newer one is refused.

old_warehouses/version_N.sql is frozen: its tables as they were made then, and the paper pipeline.
"""

import shutil
from pathlib import Path

import duckdb
import pytest

from analytics import schema
from analytics.errors import WarehouseError
from analytics.versions import VERSION
from analytics.warehouse import load, open_published, publish, rebuild
from tests.analytics.landed import land_records, loaded, query, sample

OLD = Path(__file__).parent / "old_warehouses"
PIPELINE = "20261130T140000Z-1a2b"  # the one in the old warehouses
NEW = "20270101T000000Z-0000"


def old_rows(path: Path) -> dict[str, list[tuple]]:
    """Every row of an old warehouse by its columns of that time."""
    with duckdb.connect(path, read_only=True) as con:
        names = [row[0] for row in con.execute("SHOW TABLES").fetchall()]
        return {name: con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
                for name in names}  # fmt: skip


def old_columns(path: Path) -> dict[str, str]:
    with duckdb.connect(path, read_only=True) as con:
        return dict(
            con.execute(
                "SELECT table_name, string_agg(column_name, ', ' ORDER BY column_index) "
                "FROM duckdb_columns() GROUP BY table_name"
            ).fetchall()
        )


@pytest.fixture(params=range(1, VERSION))
def old(request, tmp_path) -> Path:
    """A warehouse as an older version left it."""
    path = tmp_path / "old.duckdb"
    with duckdb.connect(path) as con:
        con.execute((OLD / f"version_{request.param}.sql").read_text(encoding="utf-8"))
    return path


def test_the_rows_of_an_old_warehouse_stay_and_todays_come_on_top(old, paper):
    rows, names = old_rows(old), old_columns(old)
    assert len(rows["fact_step"]) == 16
    assert rows["fact_device_sample"]
    work = paper.runs_dir / ".work"
    work.mkdir(parents=True)
    shutil.copyfile(old, work / "warehouse.duckdb")
    shutil.copyfile(old, paper.runs_dir / "warehouse.duckdb")
    paper.pipeline(NEW)
    land_records(paper.runs_dir, "a", sample(0, temperature_c=40.0))
    loaded(paper.runs_dir)
    for name, before in rows.items():
        is_of_pipeline = "pipeline_id" in names[name].split(", ")
        where = f"WHERE pipeline_id NOT IN ('', '{NEW}')" if is_of_pipeline else ""
        now = query(paper.runs_dir, f"SELECT {names[name]} FROM {name} {where} ORDER BY ALL")
        assert now == before, name
    assert query(paper.runs_dir, "SELECT temperature_c FROM fact_device_sample "
                 "WHERE temperature_c IS NOT NULL") == [(40.0,)]  # fmt: skip
    # what the step forward makes of a pipeline whose folder is gone: 4 steps of 2 arms on 2 ranks
    assert query(
        paper.runs_dir,
        "SELECT attempt, is_kept, num_ranks, num_rank_steps FROM dim_attempt "
        f"WHERE pipeline_id = '{PIPELINE}'",
    ) == [(0, True, 2, 16)]
    assert query(paper.runs_dir, "SELECT version FROM warehouse_version") == [(VERSION,)]
    bubbles = query(paper.runs_dir, "SELECT arm, bubble_share FROM run_efficiency ORDER BY ALL")
    assert bubbles == [(arm, pytest.approx(share)) for arm, share in
                       (("balanced", 0.2),) * 2 + (("baseline", 0.5),) * 2]  # fmt: skip


def test_an_old_published_copy_opens_until_a_load_replaces_it(old, tmp_path):
    shutil.copyfile(old, tmp_path / "warehouse.duckdb")
    assert query(tmp_path, "SELECT count(*) FROM fact_step") == [(16,)]


def test_a_newer_warehouse_is_refused_by_loaders_and_readers(paper):
    paper.pipeline()
    load(paper.runs_dir)
    publish(paper.runs_dir)
    for path in (
        paper.runs_dir / ".work" / "warehouse.duckdb",
        paper.runs_dir / "warehouse.duckdb",
    ):
        with duckdb.connect(path) as con:
            con.execute(f"UPDATE warehouse_version SET version = {VERSION + 1}")
    message = rf"newer seqscale wrote this warehouse: its layout has version {VERSION + 1}"
    for refused in (load, publish, open_published):
        with pytest.raises(WarehouseError, match=message):
            refused(paper.runs_dir)
    rebuild(paper.runs_dir)  # what the message says
    publish(paper.runs_dir)
    assert query(paper.runs_dir, "SELECT count(*) FROM fact_step") == [(16,)]


def test_todays_tables_are_those_that_a_fresh_warehouse_has(old, paper):
    """Layouts, not only rows: types, keys and what may be NULL."""
    layout = (
        "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        "WHERE database_name = current_database() AND table_name IN "
        f"({', '.join(repr(name) for name in schema.TABLES)}) ORDER BY ALL"
    )
    keys = (
        "SELECT table_name, constraint_column_names FROM duckdb_constraints() WHERE "
        "constraint_type = 'PRIMARY KEY' AND database_name = current_database() ORDER BY ALL"
    )
    paper.pipeline()
    fresh = paper.runs_dir.parent / "fresh"
    shutil.copytree(paper.runs_dir, fresh)
    (paper.runs_dir / ".work").mkdir()
    shutil.copyfile(old, paper.runs_dir / ".work" / "warehouse.duckdb")
    for runs_dir in (paper.runs_dir, fresh):
        loaded(runs_dir)
    assert query(paper.runs_dir, layout) == query(fresh, layout)
    assert query(paper.runs_dir, keys) == query(fresh, keys)
