"""Loading imports in any order, twice or in pieces gives the same warehouse."""

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import schema
from analytics.contradictions import CONFLICTS, SAMPLES, contradictions_query
from analytics.ddl import create_tables
from analytics.errors import WarehouseError
from analytics.import_loading import merge_samples
from analytics.landing import merged_query
from analytics.warehouse import load, publish, rebuild
from tests.analytics.landed import START, S, land_records, loaded, query, sample, tables

PIPELINE = "20261130T140000Z-1a2b"
# device, second, power, utilisation: few of each, so that rows of one key come often
ROWS = st.tuples(
    st.sampled_from(["GPU-a", "GPU-b"]),
    st.integers(0, 12),
    st.sampled_from([None, 100.0, 200.0]),
    st.sampled_from([None, 0.25, 0.5]),
)


def as_sample(row) -> schema.FactDeviceSample:
    device, at_s, power_w, share = row
    return sample(at_s, device_id=device, power_w=power_w, utilization_share=share)


def pool(num_devices: int) -> schema.DimPool:
    return schema.DimPool(
        pool_id="p", cloud="own", region=None, instance_type=None, team_id=None,
        num_devices=num_devices, purchase=None,
    )  # fmt: skip


def test_an_import_is_loaded_where_no_pipeline_ever_ran(tmp_path):
    land_records(tmp_path, "a", sample(0, power_w=100.0), sample(1))
    report = load(tmp_path)
    assert (report.pipelines, report.imports) == ({}, ["a"])
    assert report.rows["fact_device_sample"] == 2
    publish(tmp_path)
    assert query(tmp_path, "SELECT import_id FROM dim_import") == [("a",)]
    assert query(tmp_path, "SELECT count(*), sum(power_w) FROM fact_device_sample") == [(2, 100.0)]


def test_loading_imports_twice_changes_nothing(tmp_path):
    land_records(tmp_path, "a", sample(0), sample(1))
    before = loaded(tmp_path)
    assert load(tmp_path).imports == []
    assert loaded(tmp_path) == before


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROWS, min_size=2, max_size=10), st.data())
def test_any_order_repetition_and_cut_gives_the_same_warehouse(rows, data):
    cut = data.draw(st.integers(1, len(rows) - 1))
    again = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=4))
    pieces = data.draw(st.permutations([rows[:cut], rows[cut:], again]))
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole", Path(folder) / "parts"
        land_records(whole, "all", *map(as_sample, rows))
        for number, piece in enumerate(pieces):
            land_records(parts, f"piece-{number}", *map(as_sample, piece))
            if data.draw(st.booleans()):
                load(parts)
        assert loaded(parts, SAMPLES, CONFLICTS) == loaded(whole, SAMPLES, CONFLICTS)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A warehouse in memory, and a table `given` with the columns of its device samples."""
    with duckdb.connect() as connection:
        create_tables(connection)
        connection.execute(
            "CREATE TABLE given AS SELECT *, 0 AS piece FROM fact_device_sample LIMIT 0"
        )
        yield connection


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROWS, min_size=1, max_size=25), data=st.data())
def test_merging_pieces_in_any_order_gives_what_merging_all_gives(con, rows, data):
    pieces = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations([0, 1, 2, 3, data.draw(st.integers(0, 3))]))
    con.execute(f"DELETE FROM given; DELETE FROM {SAMPLES}; DELETE FROM {CONFLICTS}")
    for row, piece in zip(rows, pieces, strict=True):
        values = list(schema.to_mapping(as_sample(row)).values())
        con.execute(f"INSERT INTO given VALUES ({', '.join('?' * (len(values) + 1))})",
                    [*values, piece])  # fmt: skip
    for piece in order:
        source = f"(SELECT * EXCLUDE (piece) FROM given WHERE piece = {piece})"
        merge_samples(con, SAMPLES, merged_query(SAMPLES, source), is_distinct=True)
        # as landing a piece keeps what it contradicts itself in
        told = f"SELECT * FROM ({contradictions_query(source)})"
        merge_samples(con, CONFLICTS, told, is_distinct=True)
    every = "(SELECT * EXCLUDE (piece) FROM given)"
    for name, query_of_all in (
        (SAMPLES, merged_query(SAMPLES, every)),
        (CONFLICTS, f"SELECT * FROM ({contradictions_query(every)})"),
    ):
        ours = con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
        names = ", ".join(c.name for c in schema.columns(schema.TABLES[name]))
        whole = con.execute(f"SELECT {names} FROM ({query_of_all}) ORDER BY ALL").fetchall()
        assert ours == whole


def test_an_import_into_the_middle_of_another_is_merged(tmp_path):
    land_records(tmp_path, "a", sample(0, power_w=1.0), sample(2, power_w=2.0))
    load(tmp_path)
    land_records(tmp_path, "b", sample(1, power_w=5.0), sample(2, utilization_share=0.5))
    rows = loaded(tmp_path, "fact_device_sample")["fact_device_sample"]
    assert len(rows) == 3
    found = query(
        tmp_path,
        "SELECT power_w, utilization_share FROM fact_device_sample ORDER BY sampled_unix_ns",
    )
    assert found == [(1.0, None), (5.0, None), (2.0, 0.5)]


def test_of_other_tables_the_latest_import_counts_whatever_is_loaded_first(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    old, new = (pool(4), START), (pool(8), START + 1)
    for runs_dir, order in ((first, [old, new]), (second, [new, old])):
        for record, imported in order:
            land_records(runs_dir, f"i{imported}", record, imported_unix_ns=imported)
            load(runs_dir)
        publish(runs_dir)
    for runs_dir in (first, second):
        assert query(runs_dir, "SELECT num_devices FROM dim_pool") == [(8,)]
    assert tables(first) == tables(second)


def test_what_was_imported_for_a_run_outlives_a_reload_of_its_journals(paper):
    paper.pipeline()
    ours = dict(pipeline_id=PIPELINE, host="paper")
    mine = schema.FactPoolEvent(
        pool_id="p", host="paper", device_id="cpu", event_unix_ns=START, event="allocated",
        pipeline_id=PIPELINE, purchase=None, device_hour_cost=None, currency=None, reason=None,
    )  # fmt: skip
    paper.write([sample(0, power_w=1.0, **ours)], writer="sampler")
    land_records(paper.runs_dir, "a", sample(0, utilization_share=0.5, **ours),
                 sample(1, **ours), mine, pipeline_id=PIPELINE)  # fmt: skip
    before = loaded(paper.runs_dir)
    figures = "SELECT power_w, utilization_share FROM fact_device_sample ORDER BY sampled_unix_ns"
    assert query(paper.runs_dir, figures) == [(1.0, 0.5), (None, None)]
    assert len(before["fact_pool_event"]) == 1
    assert loaded(paper.runs_dir) == before
    load(paper.runs_dir, [PIPELINE])
    publish(paper.runs_dir)
    assert tables(paper.runs_dir) == before


def test_an_import_for_a_run_that_is_loaded_later_ends_the_same(paper):
    paper.pipeline()
    load(paper.runs_dir)
    land_records(paper.runs_dir, "a", sample(0, pipeline_id=PIPELINE, power_w=2.0))
    report = load(paper.runs_dir, [])
    assert report.pipelines == {PIPELINE: 0}  # loaded along, so that the order does not matter
    publish(paper.runs_dir)
    before = tables(paper.runs_dir)
    assert loaded(paper.runs_dir) == before


def test_made_anew_the_warehouse_is_the_same(paper):
    paper.pipeline()
    load(paper.runs_dir)
    land_records(paper.runs_dir, "a", sample(0), sample(2), pool(4))
    load(paper.runs_dir)
    land_records(paper.runs_dir, "b", sample(2, power_w=1.0), sample(3), imported_unix_ns=START + 1)
    before = loaded(paper.runs_dir)
    rebuild(paper.runs_dir)
    publish(paper.runs_dir)
    assert tables(paper.runs_dir) == before
    assert sorted(p.name for p in (paper.runs_dir / ".work").iterdir()) == [
        "load.lock", "warehouse.duckdb"
    ]  # fmt: skip


def test_making_anew_does_not_lose_what_has_no_source_any_more_unless_told(paper):
    paper.pipeline()
    paper.pipeline("20261130T150000Z-ffff")
    load(paper.runs_dir)
    (paper.runs_dir / PIPELINE).rename(paper.runs_dir.parent / "elsewhere")
    with pytest.raises(WarehouseError, match=rf"source is gone, such as {PIPELINE}.*--drop-gone"):
        rebuild(paper.runs_dir)
    rebuild(paper.runs_dir, drop_gone=True)
    publish(paper.runs_dir)
    assert query(paper.runs_dir, "SELECT DISTINCT pipeline_id FROM dim_run") == [
        ("20261130T150000Z-ffff",)
    ]


def test_a_damaged_import_is_named_and_nothing_is_loaded(tmp_path):
    land_records(tmp_path, "a", sample(0))
    before = loaded(tmp_path)
    folder = land_records(tmp_path, "b", sample(1))
    path = folder / "fact_device_sample.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WarehouseError, match=r"b/fact_device_sample.parquet.*import its source"):
        load(tmp_path)
    publish(tmp_path)
    assert tables(tmp_path) == before


def test_an_import_of_a_newer_version_is_refused(tmp_path):
    folder = land_records(tmp_path, "a", sample(0))
    path = folder / "fact_device_sample.parquet"
    duckdb.sql(f"COPY (SELECT *, 1 AS new FROM '{path}') TO '{path}.new' (FORMAT parquet)")
    path.with_name(path.name + ".new").replace(path)
    with pytest.raises(WarehouseError, match=r"the column 'new'.*A newer one wrote it"):
        load(tmp_path)


def test_every_attempt_has_its_line_and_the_last_one_is_kept(paper):
    for attempt in (0, 1):
        steps = [paper.step("baseline", r, s, attempt=attempt) for r in range(2) for s in range(2)]
        paper.write([paper.run("baseline", attempt=attempt), *steps[: 4 - attempt]],
                    attempt=attempt)  # fmt: skip
    paper.journal(attempt=2).mkdir(parents=True)
    loaded(paper.runs_dir)
    rows = query(
        paper.runs_dir,
        "SELECT attempt, is_kept, num_ranks, num_rank_steps, window_s, began_unix_ns, "
        "ended_unix_ns FROM dim_attempt ORDER BY attempt",
    )
    # windows of 4 s; the second attempt's rank 1 recorded its first step only
    assert rows == [
        (0, False, 2, 4, 16.0, START, START + 8 * S),
        (1, True, 2, 3, 12.0, START, START + 8 * S),
        (2, False, 0, 0, 0.0, None, None),
    ]


def test_figures_that_two_imports_tell_differently_are_counted(tmp_path):
    land_records(tmp_path, "a", sample(0, power_w=100.0), sample(1, power_w=100.0))
    assert load(tmp_path).num_conflicts == 0
    # one power differs; the same figure again, and one that was untold, are no contradiction
    land_records(
        tmp_path, "b", sample(0, power_w=100.0), sample(1, power_w=200.0, utilization_share=0.5)
    )
    assert load(tmp_path).num_conflicts == 1
    assert load(tmp_path).num_conflicts == 0


CONTRADICTED = (
    f"SELECT host, device_id, figure, (sampled_unix_ns - {START}) // {S}, least_value, "
    "largest_value FROM fact_sample_conflict ORDER BY ALL"
)


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_what_imports_tell_differently_is_kept_whatever_order_they_come_in(tmp_path, order):
    told = {
        # a contradicts itself: of 0.25 and 0.5 the sample keeps 0.5
        "a": [sample(0, utilization_share=0.25), sample(0, utilization_share=0.5),
              sample(1, power_w=200.0)],
        # the same figure again, and one that was untold, are no contradiction
        "b": [sample(0, utilization_share=0.5), sample(1, power_w=100.0, temperature_c=40.0)],
        "c": [sample(0, utilization_share=0.75), sample(1, power_w=150.0)],
    }  # fmt: skip
    for name in order:
        land_records(tmp_path, name, *told[name])
        load(tmp_path)
    publish(tmp_path)
    expected = [
        ("node-1", "GPU-a", "power_w", 1, 100.0, 200.0),
        ("node-1", "GPU-a", "utilization_share", 0, 0.25, 0.75),
    ]
    assert query(tmp_path, CONTRADICTED) == expected
    rebuild(tmp_path)  # all at once
    publish(tmp_path)
    assert query(tmp_path, CONTRADICTED) == expected


def test_what_an_import_and_a_journal_tell_differently_outlives_a_reload(paper):
    paper.pipeline()
    ours = dict(pipeline_id=PIPELINE, host="paper")
    paper.write([sample(0, power_w=1.0, **ours)], writer="sampler")
    land_records(
        paper.runs_dir, "a", sample(0, power_w=2.0, **ours), sample(1, power_w=3.0, **ours),
        sample(1, power_w=4.0, **ours), pipeline_id=PIPELINE,
    )  # fmt: skip
    expected = [
        ("paper", "GPU-a", "power_w", 0, 1.0, 2.0),
        ("paper", "GPU-a", "power_w", 1, 3.0, 4.0),
    ]
    for _ in range(2):
        load(paper.runs_dir, [PIPELINE])
        publish(paper.runs_dir)
        assert query(paper.runs_dir, CONTRADICTED) == expected


def test_the_spans_of_an_attempt_that_was_lost_stay_time_of_the_job(paper):
    def span(attempt, seconds):
        return schema.FactSpan(
            pipeline_id=PIPELINE, attempt=attempt, run_id=None, rank=0, span_kind="start_up",
            label="start", began_unix_ns=START + attempt * 60 * S, duration_s=seconds,
        )  # fmt: skip

    for attempt, seconds in ((0, 5.0), (1, 3.0)):
        own = [paper.run("baseline", attempt=attempt)]
        own.append(paper.step("baseline", 0, 0, attempt=attempt))
        paper.write([*own, span(attempt, seconds)], attempt=attempt)
    load(paper.runs_dir)
    publish(paper.runs_dir)
    rows = query(paper.runs_dir, "SELECT attempt, duration_s FROM fact_span ORDER BY attempt")
    assert rows == [(0, 5.0), (1, 3.0)]
    assert query(paper.runs_dir, "SELECT DISTINCT attempt FROM fact_step") == [(1,)]


def test_loaders_of_several_processes_queue(paper):
    names = [f"20261130T15000{n}Z-ffff" for n in range(3)]
    for number, name in enumerate(names):
        paper.pipeline(name)
        land_records(paper.runs_dir, f"i{number}", sample(number), sample(number + 1))
    code = """
        import sys
        from pathlib import Path
        from analytics.warehouse import load, publish
        load(Path(sys.argv[1]), [sys.argv[2]])
        publish(Path(sys.argv[1]))
    """
    children = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), paper.runs_dir, name])
        for name in names
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0, 0]
    at_once = tables(paper.runs_dir)
    assert loaded(paper.runs_dir) == at_once
    assert len(at_once["dim_run"]) == 6
    assert len(at_once["fact_device_sample"]) == 4
