"""Imports that meet other rooms: a run's clock, traces of a folder, the warehouse."""

import os
from pathlib import Path

import numpy as np
import pytest

from analytics import warehouse
from analytics.errors import ConfigError
from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.importing import import_telemetry
from tests.analytics.importing_logs import samples
from tests.analytics.test_billing import written
from tests.conftest import PIPELINE, STARTED_UNIX_NS

S = 10**9


@pytest.fixture(params=[40])
def irregular(paper, request):
    """A run whose steps are busy or not by chance; its edges in seconds from its start."""
    rng = np.random.default_rng(3)
    windows = rng.integers(5, 60, request.param)
    begins = np.cumsum(windows) - windows
    steps = [
        paper.step(
            "baseline", 0, number, started_unix_ns=STARTED_UNIX_NS + int(begin) * S,
            window_s=float(window), busy_s=float(window) * (number % 2), straggler_wait_s=0.0,
            exposed_comm_s=0.0, data_wait_s=0.0, unattributed_s=float(window) * (1 - number % 2),
            exposed_comm_total_s=0.0, comm_s=0.0,
        )
        for number, (begin, window) in enumerate(zip(begins, windows, strict=True))
    ]  # fmt: skip
    paper.write([paper.dataset(), paper.price()], writer="flow", attempt=None)
    paper.write([paper.run("baseline"), *steps])
    paper.publish()
    return begins, int(windows.sum())


def test_the_clock_of_a_log_is_fitted_to_the_run_it_was_taken_in(paper, irregular, tmp_path):
    # DCGM#170: metrics lagged the application
    begins, total = irregular
    ahead_s = 125
    lines = ["timestamp,gpu_util"]
    for second in range(total):
        busy = (np.searchsorted(begins, second, side="right") - 1) % 2
        lines.append(f"{STARTED_UNIX_NS // S + second + ahead_s},{100 * busy}")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    options = ImportOptions(host="h", pipeline_id=PIPELINE, estimate_clock=True)
    (outcome,) = import_telemetry(path, paper.runs_dir, options)
    about = outcome.about
    assert about is not None, outcome.reason
    assert abs(about.clock_offset_ns - ahead_s * S) <= about.clock_uncertainty_ns <= 3 * S
    assert samples(paper.runs_dir, "min(sampled_unix_ns) OVER ()")[0][0] == about.first_unix_ns
    assert abs(about.first_unix_ns - STARTED_UNIX_NS) <= about.clock_uncertainty_ns
    assert about.clock_skew_ppm is None  # 20 minutes are too short to tell one


@pytest.mark.parametrize("irregular", [400], indirect=True)
def test_a_clock_that_runs_faster_is_told_with_its_rate_and_loses_its_offset_alone(
    paper, irregular, tmp_path
):
    begins, total = irregular
    seconds = np.arange(total)
    shown = STARTED_UNIX_NS + (seconds * (1 + 450e-6) * S).astype(np.int64)
    busy = (np.searchsorted(begins, seconds, side="right") - 1) % 2
    lines = [f"{time / S:.6f},{100 * share}" for time, share in zip(shown, busy, strict=True)]
    path = tmp_path / "log.csv"
    path.write_text("timestamp,gpu_util\n" + "\n".join(lines) + "\n")
    options = ImportOptions(host="h", pipeline_id=PIPELINE, estimate_clock=True)
    (outcome,) = import_telemetry(path, paper.runs_dir, options)
    about = outcome.about
    assert about is not None, outcome.reason
    # an error of 1.5 s over the log
    assert abs(about.clock_skew_ppm - 450) <= 1.5e6 / total
    assert any(" ppm faster than the run's (error " in note for note in outcome.notes)
    span_ns = about.last_unix_ns - about.first_unix_ns
    assert span_ns == pytest.approx(int(shown[-1] - shown[0]), abs=10**4)
    warehouse.load(paper.runs_dir)
    warehouse.publish(paper.runs_dir)
    with warehouse.open_published(paper.runs_dir) as con:
        kept = con.execute("SELECT clock_skew_ppm FROM dim_import").fetchall()
    assert kept == [(about.clock_skew_ppm,)]


def test_a_log_that_does_not_move_with_the_run_keeps_its_clock(paper, irregular, tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{STARTED_UNIX_NS // S + second},50" for second in range(500)]
    path.write_text("timestamp,gpu_util\n" + "\n".join(rows) + "\n")
    options = ImportOptions(host="h", pipeline_id=PIPELINE, estimate_clock=True)
    (outcome,) = import_telemetry(path, paper.runs_dir, options)
    assert outcome.about.clock_offset_ns is None
    assert any("not fitted" in note for note in outcome.notes)


def test_imported_samples_are_in_the_published_warehouse(tmp_path):
    path, runs_dir = tmp_path / "log.csv", tmp_path / "runs"
    path.write_text("timestamp,gpu_util\n2026-01-01T00:00:00Z,5\nx,5\n")
    import_telemetry(path, runs_dir, ImportOptions(host="h"))
    for _ in range(2):
        warehouse.load(runs_dir)
    warehouse.publish(runs_dir)
    with warehouse.open_published(runs_dir) as con:
        found = con.execute("SELECT host, device_id, utilization_share FROM fact_device_sample")
        assert found.fetchall() == [("h", "gpu-0", 0.05)]
        kept = con.execute("SELECT line, reason FROM fact_import_reject").fetchall()
        assert kept == [(3, "time_unreadable")]
        counts = con.execute("SELECT num_read, num_loaded, num_rejected FROM dim_import")
        assert counts.fetchall() == [(2, 1, 1)]


def test_traces_of_a_folder_are_handed_on_as_one_import(tmp_path):
    folder = Path(os.environ.get("SEQSCALE_TEST_DATA", "")) / "traces" / "hta" / "triton_example"
    if not folder.is_dir():
        pytest.skip("SEQSCALE_TEST_DATA names no folder with traces/")
    (outcome,) = import_telemetry(folder, tmp_path)
    assert outcome.about is not None, outcome.reason
    assert outcome.about.source_kind == "kineto_trace"
    (again,) = import_telemetry(folder, tmp_path)
    assert again.status == "already"


def test_bills_of_any_packing_and_pools_find_their_rooms(tmp_path):
    runs = tmp_path / "runs"
    written(tmp_path / "bill.csv.gz", {})
    written(tmp_path / "parts" / "1.csv", {"BilledCost": "1"})
    written(tmp_path / "parts" / "2.csv", {"BilledCost": "2"})
    (tmp_path / "pools.csv").write_text("pool_id,cloud\np,own\n")
    found = [
        import_telemetry(tmp_path / name, runs, ImportOptions())
        for name in ("bill.csv.gz", "parts", "pools.csv")
    ]
    abouts = [outcome.about for [outcome] in found]  # the parts of a bill are one import
    assert [(about.num_files, about.num_loaded) for about in abouts] == [(1, 1), (2, 2), (1, 1)]
    warehouse.load(runs)
    warehouse.publish(runs)
    con = warehouse.open_published(runs)
    assert con.execute("SELECT sum(billed_cost) FROM fact_cost").fetchall()[0][0] == 27
    assert con.execute("SELECT pool_id FROM dim_pool").fetchall() == [("p",)]
    con.close()


def in_force(runs) -> list[str]:
    """The resources of the lines that count."""
    warehouse.load(runs)
    warehouse.publish(runs)
    with warehouse.open_published(runs) as con:
        rows = con.execute("SELECT resource_id FROM bill_line WHERE is_in_force ORDER BY ALL")
        return [name for (name,) in rows.fetchall()]


def test_a_bill_that_puts_another_out_of_force_says_so_and_how_to_mend_it(tmp_path):
    runs, parts = tmp_path / "runs", tmp_path / "parts"
    month = {"BillingPeriodStart": "2026-10-01T00:00:00Z", "ResourceId": "old"}
    one = written(
        parts / "one.csv", {"BilledCost": "1200.5", "ResourceId": "a"},
        {"BilledCost": "-0.25", "ResourceId": "b"}, month,
    )  # fmt: skip
    two = written(parts / "two.csv", {"BilledCost": "7", "ResourceId": "c"})
    other = written(tmp_path / "other.csv", {"BillingAccountId": "9", "ResourceId": "d"})
    for path in (one, other):  # nothing of the same account and period is there
        [outcome] = import_telemetry(path, runs, ImportOptions())
        assert outcome.notes == ()
    [outcome] = import_telemetry(two, runs, ImportOptions())
    [note] = outcome.notes
    # 1200.50 - 0.25 of two lines; the third is of another period and stays
    assert "replaces 2 lines, 1,200.25 EUR, of billing period 2026-11 of account 123" in note
    assert "'one.csv'" in note and "put them into one folder" in note
    assert in_force(runs) == ["c", "d", "old"]
    # the first part again: still out of force, and it says so
    [outcome] = import_telemetry(one, runs, ImportOptions())
    assert outcome.status == "already"
    assert "2 of its 3 lines do not count" in outcome.notes[0]
    # what the note says
    [outcome] = import_telemetry(parts, runs, ImportOptions())
    assert outcome.notes == ()  # it holds what it replaces
    assert in_force(runs) == ["a", "b", "c", "d", "old"]
    [again] = import_telemetry(two, runs, ImportOptions())
    assert "1 of its 1 lines do not count" in again.notes[0]
    assert in_force(runs) == ["a", "b", "c", "d", "old"]


def test_a_bill_in_a_folder_and_one_below_it_are_two_exports_of_one_import_each(tmp_path):
    runs, folder = tmp_path / "runs", tmp_path / "bills"
    written(folder / "a.csv", {"ResourceId": "a"})
    written(folder / "below" / "b.csv", {"ResourceId": "b"})
    found = import_telemetry(folder, runs, ImportOptions())
    assert [one.about.num_loaded for one in found] == [1, 1]
    assert [len(one.notes) for one in found] == [0, 1]
    assert in_force(runs) == ["b"]


def test_a_run_that_is_not_known_is_refused_with_those_that_are(paper, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("timestamp,gpu_util\n2026-01-01T00:00:00Z,5\n")

    def named(name: str, runs_dir=paper.runs_dir):
        return import_telemetry(log, runs_dir, ImportOptions(host="h", pipeline_id=name))

    with pytest.raises(ConfigError, match=r"knows no such run; known are: none.*--runs-dir"):
        named(PIPELINE)
    paper.pipeline()  # journals that no one has loaded are known
    with pytest.raises(ConfigError, match=rf"'{PIPELINE}x', and .*known are: {PIPELINE}\."):
        named(PIPELINE + "x")
    assert not (paper.runs_dir / "telemetry").exists()
    [outcome] = named(PIPELINE)
    assert outcome.status == "imported"
    # so is a run whose folder is gone and that the warehouse holds
    paper.publish()
    (paper.runs_dir / PIPELINE).rename(tmp_path / "elsewhere")
    [outcome] = named(PIPELINE)
    assert outcome.status == "already"


def test_what_is_no_file_is_named_and_not_passed_over(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "pools.csv").write_text("pool_id,cloud\np,own\n")
    (folder / "dangling.csv").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe.csv")
    found = import_telemetry(folder, tmp_path / "runs", ImportOptions())
    told = {Path(one.path).name: one.status for one in found}
    assert told == {"logs": "imported", "dangling.csv": "refused", "pipe.csv": "refused"}
    [alone] = import_telemetry(folder / "pipe.csv", tmp_path / "runs", ImportOptions())
    assert "no regular file" in alone.reason


def test_the_same_bytes_with_options_of_another_meaning_are_refused(tmp_path):
    log = tmp_path / "gpu.csv"
    log.write_text("timestamp, index, utilization.gpu [%]\n2026/11/30 12:00:00.000, 0, 5 %\n")
    runs, plain = tmp_path / "runs", ImportOptions(time_zone="UTC")
    [first] = import_telemetry(log, runs, plain)
    [again] = import_telemetry(log, runs, plain)
    assert (first.status, again.status) == ("imported", "already")
    renamed = ImportOptions(
        time_zone="UTC", renamed=(("utilization.gpu [%]", "utilization.memory"),)
    )
    [other] = import_telemetry(log, runs, renamed)
    assert other.status == "refused"
    assert "with other options (none; now map=" in other.reason and "--rebuild" in other.reason


@pytest.mark.parametrize(
    ("name", "is_part"),
    [("part_1_0001.csv", True), ("focus-00002.csv", True), ("bill-2026-11.csv", False)],
)
def test_one_part_of_a_bill_says_that_parts_belong_in_one_folder(tmp_path, name, is_part):
    path = written(tmp_path / name, {})
    (outcome,) = import_telemetry(path, tmp_path / "runs")
    assert outcome.status == "imported"
    assert any("one part of several" in note for note in outcome.notes) == is_part
    folder = tmp_path / "whole"
    written(folder / name, {"BilledCost": "1"})
    written(folder / f"other-{name}", {"BilledCost": "2"})
    (outcome,) = import_telemetry(folder, tmp_path / "runs")
    assert not any("one part of several" in note for note in outcome.notes)
