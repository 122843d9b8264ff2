"""What a published copy holds as rows is what its views would say."""

import contextlib

import pytest

from analytics import materialising, schema
from analytics.ddl import views
from analytics.purging import purge
from analytics.warehouse import open_published, publish
from tests.analytics.landed import MINUTE, START, land_records, loaded, sample
from tests.analytics.test_device_views import event, rank


def said(runs_dir) -> dict[str, tuple]:
    """Rows, columns, types and comments of every view of the published copy."""
    with contextlib.closing(open_published(runs_dir)) as con:
        comments = con.execute(
            "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() "
            "WHERE database_name = current_database()"
        ).fetchall()
        return {
            view.name: (
                con.execute(f"FROM {view.name} ORDER BY ALL").fetchall(),
                sorted(row for row in comments if row[0] == view.name),
            )
            for view in views()
        }


def tables_there(runs_dir) -> set[str]:
    with contextlib.closing(open_published(runs_dir)) as con:
        found = con.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    return {name for (name,) in found if not name.startswith(("fact_", "dim_", "warehouse_"))}


@pytest.fixture
def seen(paper):
    """A run with steps, samples of counters, power and gaps, imported samples, events of a pool."""
    paper.pipeline()
    paper.write([
        rank(0),
        *(sample(at_s, pipeline_id=rank(0).pipeline_id, host="paper", device_id="GPU-0",
                 interval_s=2.0, energy_j=90.0 * at_s, power_w=100.0, utilization_share=0.5)
          for at_s in range(0, 40, 2)),
    ], writer="sampler")  # fmt: skip
    land_records(paper.runs_dir, "a",
                 *(sample(at_s, energy_j=float(at_s % 90)) for at_s in range(0, 600, 7)),
                 event(0, "allocated"), event(500, "released"))  # fmt: skip
    loaded(paper.runs_dir)
    return paper.runs_dir


@pytest.mark.parametrize("is_purged", [False, True])
def test_the_rows_of_a_large_copy_are_those_of_its_views(seen, monkeypatch, is_purged):
    if is_purged:
        purge(seen, older_than_days=0, now_ns=START + 5 * MINUTE)
        publish(seen)
    expected = said(seen)
    assert tables_there(seen) == set()
    assert all(expected[name][0] for name in materialising.MATERIALISED), "the test needs rows"
    monkeypatch.setattr(materialising, "MANY_SAMPLES", 1)
    publish(seen)
    assert tables_there(seen) == set(materialising.MATERIALISED)
    assert said(seen) == expected


def test_the_next_copy_tells_the_samples_that_came_since(seen, monkeypatch):
    monkeypatch.setattr(materialising, "MANY_SAMPLES", 1)
    publish(seen)
    land_records(seen, "b", *(sample(at_s, energy_j=1.0 * at_s) for at_s in range(1000, 1100)))
    loaded(seen)
    late = said(seen)
    monkeypatch.setattr(materialising, "MANY_SAMPLES", 10**9)
    publish(seen)
    assert said(seen) == late
    assert tables_there(seen) == set()


def test_materialised_views_are_views_in_the_order_of_their_files():
    names = [view.name for view in views()]
    places = [names.index(name) for name in materialising.MATERIALISED]
    assert places == sorted(places)
    assert not set(materialising.MATERIALISED) & set(schema.TABLES)
