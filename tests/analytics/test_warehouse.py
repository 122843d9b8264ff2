import fcntl
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from analytics import schema
from analytics.errors import JournalError, WarehouseError
from analytics.warehouse import load, open_published, publish

PIPELINE = "20261130T140000Z-1a2b"


def everything(runs_dir: Path) -> dict[str, list[tuple]]:
    publish(runs_dir)
    con = open_published(runs_dir)
    try:
        return {name: con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
                for name in schema.TABLES}  # fmt: skip
    finally:
        con.close()


def only_segment(paper, table: str, writer: str) -> Path:
    [path] = (paper.journal() / table).glob(f"{writer}-*")
    return path


def test_every_record_arrives_as_it_was_written(paper):
    paper.pipeline()
    report = load(paper.runs_dir)
    assert report.pipelines == {PIPELINE: 0}
    # 2 arms x 4 steps x 2 ranks; 2 arms x 3 evaluations
    assert report.rows["fact_step"] == 16
    assert report.rows["fact_evaluation"] == 6
    stored = everything(paper.runs_dir)
    step = paper.step("baseline", 1, 2)
    assert tuple(schema.to_mapping(step).values()) in stored["fact_step"]


def test_loading_twice_changes_nothing(paper):
    paper.pipeline()
    first = load(paper.runs_dir)
    before = everything(paper.runs_dir)
    assert load(paper.runs_dir) == first
    assert everything(paper.runs_dir) == before


def test_a_named_pipeline_is_loaded_and_others_stay(paper):
    other = "20261130T150000Z-ffff"
    paper.pipeline()
    paper.pipeline(other)
    load(paper.runs_dir)
    both = everything(paper.runs_dir)
    assert load(paper.runs_dir, [other]).pipelines == {other: 0}
    assert everything(paper.runs_dir) == both
    assert len(both["dim_run"]) == 4
    assert len(both["dim_dataset"]) == 1  # both pipelines used the same data


def test_only_the_last_attempt_is_kept(paper):
    paper.pipeline(attempt=0, num_steps=3)
    load(paper.runs_dir)
    paper.write(
        [paper.run("baseline", attempt=1), paper.step("baseline", 0, 0, attempt=1)], attempt=1
    )
    report = load(paper.runs_dir)
    assert report.pipelines == {PIPELINE: 1}
    stored = everything(paper.runs_dir)
    assert len(stored["fact_step"]) == 1
    assert len(stored["dim_run"]) == 1


def test_attempt_ten_comes_after_attempt_nine(paper):
    for attempt in (9, 10):
        paper.write([paper.run("baseline", attempt=attempt)], attempt=attempt)
    assert load(paper.runs_dir).pipelines == {PIPELINE: 10}


def test_an_attempt_without_records_does_not_hide_the_one_before(paper):
    paper.pipeline()
    paper.journal(attempt=1).mkdir(parents=True)
    assert load(paper.runs_dir).pipelines == {PIPELINE: 0}


def test_a_live_journal_is_loadable_and_its_torn_line_counted(paper):
    paper.pipeline()
    closed = only_segment(paper, "fact_step", "baseline")
    live = closed.with_name(closed.name + ".open")
    live.write_bytes(closed.read_bytes()[:-30])  # the last record is cut in the middle
    closed.unlink()
    report = load(paper.runs_dir)
    assert report.num_torn_lines == 1
    assert report.rows["fact_step"] == 15


def test_a_later_record_of_the_same_key_wins_and_is_counted(paper):
    paper.pipeline()
    again = paper.step("baseline", 0, 0, window_s=9.0)
    paper.write([again], writer="zz-late")
    report = load(paper.runs_dir)
    assert report.num_repeated_records == 1
    assert tuple(schema.to_mapping(again).values()) in everything(paper.runs_dir)["fact_step"]


def test_a_corrupt_line_in_a_closed_segment_loads_nothing_at_all(paper):
    paper.pipeline()
    load(paper.runs_dir)
    before = everything(paper.runs_dir)
    paper.pipeline("20261130T130000Z-0000")  # older, so it would be loaded first
    segment = only_segment(paper, "fact_step", "baseline")
    lines = segment.read_text().splitlines()
    lines[2] = lines[2].replace('"window_s": 4.0', '"window_s": "x"')
    segment.write_text("\n".join(lines) + "\n")
    message = (
        rf"line 3: 'window_s' is 'x', expected a number.*seqscale load {paper.runs_dir}/{PIPELINE}"
    )
    with pytest.raises(JournalError, match=message):
        load(paper.runs_dir)
    assert everything(paper.runs_dir) == before


def test_a_record_of_another_pipeline_is_refused(paper):
    paper.write([paper.run("baseline", pipeline_id="elsewhere")])
    with pytest.raises(JournalError, match=r"pipeline_id 'elsewhere'.*Move the segment"):
        load(paper.runs_dir)


def test_a_record_of_another_attempt_is_refused(paper):
    paper.write([paper.run("baseline", attempt=3)])
    with pytest.raises(JournalError, match="attempt 3"):
        load(paper.runs_dir)


def test_a_folder_without_pipelines_is_left_untouched(tmp_path):
    with pytest.raises(WarehouseError, match=r"no pipeline has run here.*seqscale run"):
        load(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_pipeline_is_named_with_the_known_ones(paper):
    paper.pipeline()
    with pytest.raises(WarehouseError, match=rf"nosuch: there is no such pipeline.*{PIPELINE}"):
        load(paper.runs_dir, ["nosuch"])


def test_a_second_load_waits_for_the_lock_and_then_gives_up(paper):
    paper.pipeline()
    load(paper.runs_dir)
    with (paper.runs_dir / ".work" / "load.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WarehouseError, match=r"another load has held the lock for 0.1 s"):
            load(paper.runs_dir, lock_timeout_s=0.1)
        with pytest.raises(WarehouseError, match="another load"):
            publish(paper.runs_dir, lock_timeout_s=0.1)
    load(paper.runs_dir, lock_timeout_s=0.1)


def test_publishing_before_loading_names_the_command(tmp_path):
    with pytest.raises(
        WarehouseError, match=f"nothing to publish. Run 'seqscale load --runs-dir {tmp_path}'"
    ):
        publish(tmp_path)


def test_a_reader_keeps_the_old_copy_and_the_next_one_gets_the_new(paper):
    # duckdb#17158: a reader and a writer of one file locked each other out
    paper.pipeline()
    load(paper.runs_dir)
    publish(paper.runs_dir)
    old = open_published(paper.runs_dir)
    paper.pipeline("20261130T150000Z-ffff")
    load(paper.runs_dir)
    publish(paper.runs_dir)
    new = open_published(paper.runs_dir)
    assert old.execute("SELECT count(*) FROM dim_run").fetchall() == [(2,)]
    assert new.execute("SELECT count(*) FROM dim_run").fetchall() == [(4,)]
    assert new.execute("SELECT count(*) FROM run_efficiency").fetchall() == [(4,)]
    old.close()
    new.close()


def test_publishing_leaves_nothing_beside_the_copy(paper):
    paper.pipeline()
    load(paper.runs_dir)
    assert publish(paper.runs_dir) == paper.runs_dir / "warehouse.duckdb"
    assert {p.name for p in paper.runs_dir.iterdir()} == {".work", PIPELINE, "warehouse.duckdb"}
    assert {p.name for p in (paper.runs_dir / ".work").iterdir()} == {
        "warehouse.duckdb", "load.lock"
    }  # fmt: skip


def test_the_published_copy_cannot_be_written(published):
    con = open_published(published.runs_dir)
    with pytest.raises(Exception, match="read-only"):
        con.execute("DELETE FROM dim_run")
    con.close()


def test_a_missing_warehouse_names_the_commands_that_fill_it(tmp_path):
    with pytest.raises(WarehouseError, match=r"no warehouse. Run 'seqscale run .*'seqscale load"):
        open_published(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000])
def test_a_damaged_warehouse_names_the_command_that_mends_it(tmp_path, content):
    (tmp_path / "warehouse.duckdb").write_bytes(content)
    with pytest.raises(WarehouseError, match=r"not a warehouse.*seqscale load"):
        open_published(tmp_path)


def test_a_warehouse_that_another_process_writes_is_busy(published):
    # duckdb#17158, duckdb#77: read_only is still blocked by who writes that very file
    path = published.runs_dir / "warehouse.duckdb"
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(WarehouseError, match="the warehouse is busy"):
            open_published(published.runs_dir, timeout_s=0.1)
        writer.communicate("\n", timeout=30)
    open_published(published.runs_dir).close()


def test_a_runs_folder_that_cannot_be_written_is_named(paper):
    paper.pipeline()
    (paper.runs_dir / ".work").write_text("a file where the folder should be")
    with pytest.raises(WarehouseError, match=f"{paper.runs_dir}: the warehouse cannot be written"):
        load(paper.runs_dir)


def test_a_full_disk_is_told_and_leaves_the_old_warehouse(paper):
    paper.pipeline()
    load(paper.runs_dir)
    before = everything(paper.runs_dir)
    paper.pipeline("20261130T150000Z-ffff")
    # No file of this child may grow beyond 4 KiB: what a full disk does, without filling one.
    code = """
        import resource, sys
        from pathlib import Path
        from analytics.errors import WarehouseError
        from analytics.warehouse import load
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            load(Path(sys.argv[1]))
        except WarehouseError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(paper.runs_dir)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "the warehouse cannot be written" in done.stdout, done.stderr
    assert everything(paper.runs_dir) == before


def test_a_damaged_working_warehouse_is_made_anew_from_all_journals(paper):
    paper.pipeline("first")
    paper.pipeline("second")
    before = load(paper.runs_dir).rows
    # what a full disk leaves: a file that DuckDB does not know for its own
    (paper.runs_dir / ".work" / "warehouse.duckdb").write_bytes(b"\0" * 8192)
    report = load(paper.runs_dir, ["second"])
    assert sorted(report.pipelines) == ["first", "second"]
    assert report.rows == before


def test_a_column_added_to_the_schema_reaches_an_old_warehouse(paper):
    import duckdb

    paper.pipeline()
    load(paper.runs_dir)
    con = duckdb.connect(paper.runs_dir / ".work" / "warehouse.duckdb")
    con.execute("DROP TABLE warehouse_version")  # as before there were versions
    con.execute("DROP TABLE fact_device_sample")
    con.execute("CREATE TABLE fact_device_sample (pipeline_id VARCHAR)")
    con.close()
    load(paper.runs_dir)
    publish(paper.runs_dir)
    con = open_published(paper.runs_dir)
    present = [row[0] for row in con.execute("DESCRIBE fact_device_sample").fetchall()]
    con.close()
    assert set(present) == {c.name for c in schema.columns(schema.TABLES["fact_device_sample"])}


OLD_LAYOUT = """
DROP TABLE warehouse_version;
DROP TABLE dim_dataset;
CREATE TABLE dim_dataset (
    dataset_id VARCHAR NOT NULL, dataset_name VARCHAR NOT NULL, source_sha256 VARCHAR NOT NULL,
    terms VARCHAR NOT NULL, num_rows_read BIGINT NOT NULL, num_rows_kept BIGINT NOT NULL,
    num_users BIGINT NOT NULL, num_items BIGINT NOT NULL, min_length BIGINT NOT NULL,
    median_length DOUBLE NOT NULL, max_length BIGINT NOT NULL, tied_share DOUBLE NOT NULL,
    PRIMARY KEY (dataset_id)
);
INSERT INTO dim_dataset VALUES ('old', 'old', '0', 'own', 9, 9, 2, 3, 4, 4.5, 5, 0.0);
DROP TABLE fact_straggler_forecast;
CREATE TABLE fact_straggler_forecast (
    pipeline_id VARCHAR NOT NULL, dataset_id VARCHAR NOT NULL, num_ranks BIGINT NOT NULL,
    sequences_per_rank BIGINT NOT NULL, placement VARCHAR NOT NULL,
    straggler_share DOUBLE NOT NULL, bound_share DOUBLE NOT NULL,
    straggler_cost_per_1000_device_hours DOUBLE NOT NULL, currency VARCHAR NOT NULL,
    instance_type VARCHAR NOT NULL, PRIMARY KEY (pipeline_id, num_ranks, placement)
);
INSERT INTO fact_straggler_forecast
VALUES ('old', 'old', 2, 4, 'lpt_free', 0.5, 0.25, 7, 'EUR', 'x');
DROP TABLE fact_profile; DROP TABLE fact_length_bin; DROP TABLE fact_profile_advice;
DROP TABLE fact_batch_profile; DROP TABLE fact_memory_forecast;
"""  # as it was before the profile had more than one batch size


def forecast(sequences_per_rank: int) -> schema.FactStragglerForecast:
    return schema.FactStragglerForecast(
        pipeline_id=PIPELINE, dataset_id="d0", num_ranks=2, sequences_per_rank=sequences_per_rank,
        placement="lpt_free", straggler_share=0.5, bound_share=0.25,
        straggler_cost_per_1000_device_hours=1.0, currency="EUR", instance_type="paper.1",
    )  # fmt: skip


def test_a_warehouse_of_the_layout_before_takes_todays_records(paper):
    import duckdb

    paper.pipeline()
    load(paper.runs_dir)
    con = duckdb.connect(paper.runs_dir / ".work" / "warehouse.duckdb")
    con.execute(OLD_LAYOUT)
    con.close()
    # two batch sizes of one number of ranks, and a data set of too few users to tell lengths of
    few = paper.dataset(dataset_id="few", min_length=None, median_length=None, max_length=None)
    paper.write([forecast(4), forecast(8), few], writer="late")
    load(paper.runs_dir)
    publish(paper.runs_dir)
    con = open_published(paper.runs_dir)
    sizes = con.execute(
        "SELECT pipeline_id, sequences_per_rank FROM fact_straggler_forecast ORDER BY ALL"
    ).fetchall()
    kept = con.execute(
        "SELECT dataset_id, min_length, num_training_events FROM dim_dataset ORDER BY ALL"
    ).fetchall()
    tables = {row[0] for row in con.execute("SHOW TABLES").fetchall()}
    con.close()
    assert sizes == [(PIPELINE, 4), (PIPELINE, 8), ("old", 4)]
    assert kept == [("d0", 5, 24), ("few", None, 24), ("old", 4, None)]
    assert {"fact_profile", "fact_length_bin", "fact_batch_profile", "run_efficiency"} <= tables
    before = everything(paper.runs_dir)
    load(paper.runs_dir)
    assert everything(paper.runs_dir) == before


def test_a_journal_of_before_has_null_in_columns_that_were_added(paper):
    paper.pipeline()
    [segment] = (paper.journal(attempt=None) / "dim_dataset").glob("flow-*")
    record = json.loads(segment.read_text())
    added = [c.name for c in schema.columns(schema.DimDataset) if c.added]
    segment.write_text(json.dumps({k: v for k, v in record.items() if k not in added}) + "\n")
    load(paper.runs_dir)
    row = everything(paper.runs_dir)["dim_dataset"][0]
    assert row[-len(added) :] == (None,) * len(added)


def test_bounds_and_words_of_the_schema_stand_in_the_database(published):
    con = open_published(published.runs_dir)
    comment = con.execute(
        "SELECT comment FROM duckdb_columns() WHERE table_name = 'fact_step' "
        "AND column_name = 'window_s'"
    ).fetchall()
    checks = con.execute(
        "SELECT count(*) FROM duckdb_constraints() WHERE table_name = 'fact_step' "
        "AND constraint_type = 'CHECK'"
    ).fetchall()
    con.close()
    assert comment == [("Length of the window; windows tile a block [s]",)]
    bounded = [c for c in schema.columns(schema.FactStep) if c.lower is not None]
    assert checks == [(len(bounded),)]  # fact_step has lower bounds only
