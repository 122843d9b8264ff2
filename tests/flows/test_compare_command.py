"""`seqscale compare` and `seqscale alerts` at the door: one document, one message, right codes."""

import json
import sys

import pytest

from flows.cli import main
from tests.analytics.landed import land_records, loaded, sample

PIPELINE = "20261130T140000Z-1a2b"


@pytest.fixture
def seqscale(monkeypatch, capsys):
    """Runs a command in this process; its exit code, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["seqscale", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def test_a_comparison_is_one_document_and_reads_as_a_table(published, seqscale):
    runs = [f"{PIPELINE}-balanced", f"{PIPELINE}-baseline"]
    where = ["--runs-dir", str(published.runs_dir)]
    code, out, _ = seqscale("compare", *runs, "--json", *where)
    assert code == 0
    [found] = json.loads(out)["comparisons"]
    assert found["kind"] == "paired"
    assert found["figures"]["step_s"]["ratio"]["value"] == 0.625
    code, out, _ = seqscale("compare", *runs, *where)
    assert code == 0
    assert "0.625" in out
    assert "paired: two arms of one pipeline" in out


def test_an_unknown_run_ends_with_code_2_and_one_message(published, seqscale):
    code, out, err = seqscale("compare", "nosuch", PIPELINE, "--runs-dir", str(published.runs_dir))
    assert (code, out) == (2, "")
    assert err.startswith("WarehouseError: 'nosuch' is no run and no pipeline of the warehouse")
    assert len(err.splitlines()) == 1


def test_a_warehouse_without_runs_says_how_to_get_one(tmp_path, seqscale):
    land_records(tmp_path, "a", sample(1))
    loaded(tmp_path)
    where = ("--runs-dir", str(tmp_path))
    for asked in (("compare", "latest", "latest"), ("alerts",), ("alerts", "--fail"), ("advise",)):
        code, out, err = seqscale(*asked, *where)
        assert (code, out) == (2, ""), asked
        assert err.startswith("WarehouseError: The warehouse holds no run yet. 'seqscale run'"), (
            asked
        )
        assert len(err.splitlines()) == 1


def test_latest_is_the_newest_pipeline_in_a_comparison(published, seqscale):
    where = ("--runs-dir", str(published.runs_dir))
    code, _, err = seqscale("compare", f"{PIPELINE}-balanced", "latest", *where)
    assert code == 2
    assert f"{PIPELINE}-balanced cannot be compared with itself" in err


def test_without_a_warehouse_the_command_that_makes_one_is_named(tmp_path, seqscale):
    code, _, err = seqscale("alerts", "--runs-dir", str(tmp_path))
    assert code == 2
    assert "seqscale run" in err


def test_alerts_fail_only_when_asked_to_and_found(paper, seqscale):
    for day, window_s in enumerate([4.0, 4.0, 4.0, 9.0], start=1):
        pipeline = f"202612{day:02d}T140000Z-1a2b"
        started = 1_796_047_200_000_000_000 + day * 86_400 * 10**9
        steps = [
            paper.step("baseline", r, 0, pipeline_id=pipeline, window_s=window_s) for r in range(2)
        ]
        run = paper.run("baseline", pipeline_id=pipeline, started_unix_ns=started)
        paper.write([run, *steps], pipeline_id=pipeline)
    paper.publish()
    where = ["--runs-dir", str(paper.runs_dir)]
    code, out, _ = seqscale("alerts", *where)
    assert code == 0
    assert "step_s is 9; the median of the 3 runs before is 4, the bound 4.2" in out
    code, out, _ = seqscale("alerts", "--fail", "--json", *where)
    assert code == 1
    assert {alert["figure"] for alert in json.loads(out)["alerts"]} >= {"step_s", "samples_per_s"}


def test_a_first_run_is_not_judged_and_no_failure(published, seqscale):
    code, out, _ = seqscale("alerts", "--fail", "--runs-dir", str(published.runs_dir))
    assert code == 0
    assert "no alert" in out
    assert f"not judged: {PIPELINE}-baseline, 0 earlier runs" in out


def test_fewer_last_runs_than_judge_another_are_refused(published, seqscale):
    code, _, err = seqscale("alerts", "--last", "2", "--runs-dir", str(published.runs_dir))
    assert code == 2
    assert "--last" in err
