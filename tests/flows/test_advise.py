"""`seqscale advise` from the outside: one JSON document, words for a person, one message."""

import json

from typer.testing import CliRunner

from flows.cli import app

RUNNER = CliRunner()


def test_json_is_one_document_with_every_arm(published):
    done = RUNNER.invoke(
        app, ["advise", "latest", "--runs-dir", str(published.runs_dir), "--json", "--days", "30"]
    )
    assert done.exit_code == 0
    [baseline, balanced] = json.loads(done.stdout)["runs"]
    assert (baseline["arm"], balanced["arm"]) == ("baseline", "balanced")
    first = baseline["advice"][0]
    assert (first["rank"], first["kind"]) == (1, "balance")
    assert first["cost_over_days"] == 30 * first["cost_per_day"]
    assert first["evidence"][0]["view"] == "run_cause"


def test_a_person_reads_worth_floor_evidence_and_confidence(published):
    done = RUNNER.invoke(app, ["advise", "--runs-dir", str(published.runs_dir)])
    assert done.exit_code == 0
    for word in ("worth:", "floor:", "evidence:", "confidence:", "EUR a day", "bubble 50.0%"):
        assert word in done.stdout


def test_a_missing_warehouse_is_one_message(tmp_path):
    done = RUNNER.invoke(app, ["advise", "--runs-dir", str(tmp_path)])
    assert "there is no warehouse" in str(done.exception)
    assert type(done.exception).__name__ == "WarehouseError"  # main() makes exit code 2 of it


def test_the_zone_of_a_day_is_set_with_a_load(published):
    done = RUNNER.invoke(
        app, ["load", "--runs-dir", str(published.runs_dir), "--time-zone", "Europe/Madrid"]
    )
    assert done.exit_code == 0
    assert "Europe/Madrid" in (published.runs_dir / "settings.json").read_text()
