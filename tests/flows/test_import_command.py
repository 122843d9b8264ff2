"""`seqscale import-telemetry`: what it prints, its exit codes, its one JSON document."""

import json

import pytest
from typer.testing import CliRunner

from analytics.errors import ConfigError, InputError
from flows.cli import app

TEXT = "timestamp,index,gpu_util\n2026-01-01T00:00:00Z,0,5\n2026-01-01T00:00:01Z,0,999\nx,0,5\n"


@pytest.fixture
def command(tmp_path):
    (tmp_path / "log.csv").write_text(TEXT)
    (tmp_path / "notes.txt").write_text("nothing here")

    def run(*arguments: str):
        runs = ["--runs-dir", str(tmp_path / "runs")]
        return CliRunner().invoke(app, ["import-telemetry", *arguments, *runs])

    return run


def test_what_was_read_loaded_and_rejected_is_told_by_reason(command, tmp_path):
    result = command(str(tmp_path / "log.csv"), "--host", "h")
    assert result.exit_code == 0, result.output
    assert "3 rows read = 2 loaded + 1 rejected; 2 records" in result.stdout
    assert "rejected: 1 time_unreadable" in result.stdout
    assert "figures left out: 1 cell_out_of_range: utilization_share" in result.stdout
    assert (tmp_path / "runs" / "warehouse.duckdb").is_file()


def test_json_is_one_document_and_a_refused_file_ends_in_two(command, tmp_path):
    result = command(str(tmp_path / "log.csv"), str(tmp_path / "notes.txt"), "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)["outcomes"]
    assert [one["status"] for one in found] == ["imported", "refused"]
    assert found[0]["about"]["num_read"] == 3


def test_a_folder_with_something_to_import_ends_well_and_tells_the_rest(command, tmp_path):
    result = command(str(tmp_path), "--host", "h")
    assert result.exit_code == 0
    assert "notes.txt" in result.output


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        ("-1.5", "clock: 1.5 s behind UTC, added"),
        ("90", "clock: 90 s ahead of UTC, taken off"),
        ("0.0625", "clock: 0.062 s ahead of UTC, taken off"),
        ("0", "clock: 0 s ahead of UTC, taken off"),
    ],
)
def test_a_clock_is_ahead_of_utc_or_behind_it(command, tmp_path, offset, told):
    result = command(str(tmp_path / "log.csv"), "--host", "h", "--clock-offset", offset)
    assert told in result.stdout


@pytest.mark.parametrize("error", [InputError, ConfigError])
def test_a_refused_file_is_told_as_such_whatever_the_error_is_called(
    command, tmp_path, monkeypatch, error
):
    def refuse(*_: object) -> None:
        raise error("notes.txt: say which --time-zone.")

    monkeypatch.setattr("analytics.telemetry.importing._import_one", refuse)
    result = command(str(tmp_path / "notes.txt"))
    assert result.exit_code == 2
    assert "refused: notes.txt: say which --time-zone." in result.output
    assert "Error:" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clock-offset", "nan"], "--clock-offset is nan"),
        (["--clock-offset", "1e300"], "--clock-offset is 1e+300"),
        (["--started", "yesterday"], "with its zone"),
        (["--map", "duty"], "COLUMN=FIELD"),
        (["--estimate-clock"], "--pipeline"),
        (["--pipeline", "no-such-run"], "--pipeline is 'no-such-run'"),
        (["--kind", "fax"], "expected one of"),
    ],
)
def test_a_mistyped_option_is_one_message(command, tmp_path, arguments, message):
    result = command(str(tmp_path / "log.csv"), *arguments)
    assert message in str(result.exception)
    assert type(result.exception).__name__ in ("InputError", "ConfigError")


def test_names_of_a_folder_that_are_not_looked_at_are_told(command, tmp_path):
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    for folder in (logs / ".git" / "deep", elsewhere, logs / "deeper"):
        folder.mkdir(parents=True)
    (logs / ".git" / "deep" / "log.csv").write_text(TEXT.replace("Z,0,5", "Z,0,6"))
    (elsewhere / "log.csv").write_text(TEXT.replace("Z,0,5", "Z,0,7"))
    (logs / "deeper" / "log.csv").write_text(TEXT)
    for n in range(7):
        (logs / f".hidden{n}").write_text("")
    (logs / "linked").symlink_to(elsewhere)
    (logs / "loop").symlink_to(logs)
    result = command(str(logs), "--host", "h")
    assert result.exit_code == 0
    assert "3 rows read" in result.stdout
    assert (
        f"{logs}: not looked at, names that begin with a dot: .git, .hidden0, .hidden1, .hidden2, "
        ".hidden3 and 3 more. Name a file or folder itself to import it"
    ) in result.stdout
    assert f"{logs}: not looked at, links to folders: linked, loop. Name" in result.stdout
    told = json.loads(command(str(logs), "--host", "h", "--json").stdout)["outcomes"]
    assert sorted(one["status"] for one in told) == ["already", "not_looked_at", "not_looked_at"]
    # named itself, each is imported
    assert "3 rows read" in command(str(logs / "linked"), "--host", "h").stdout
    assert "3 rows read" in command(str(logs / ".git"), "--host", "h").stdout


def test_a_folder_of_hidden_files_alone_is_refused_with_their_names(command, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / ".log.csv").write_text(TEXT)
    result = command(str(tmp_path / "logs"))
    assert result.exit_code == 2
    assert "the folder holds no file to import; not looked at, names that begin" in result.output


EVENTS = (
    "pool_id,host,device_id,event,event_utc,pipeline_id,purchase,device_hour_cost,currency\n"
    "p,h1,gpu-0,allocated,2026-11-30T12:00:00Z,a,spot,1.25,EUR\n"
    "p,h1,gpu-0,released,soon,a,,,\n"
)


def test_a_source_that_tells_all_itself_says_which_options_had_no_effect(command, tmp_path):
    (tmp_path / "pool_events.csv").write_text(EVENTS)
    given = ("--host", "h", "--time-zone", "UTC", "--interval", "5")
    result = command(str(tmp_path / "pool_events.csv"), *given)
    assert result.exit_code == 0, result.output
    assert "--host, --time-zone, --interval: without effect here" in result.stdout
    assert "2 rows read = 1 loaded + 1 rejected" in result.stdout
    assert "rejected: 1 unreadable_event_utc" in result.stdout
    plain = command(str(tmp_path / "pool_events.csv"))
    assert "without effect" not in plain.stdout and "nothing was changed" in plain.stdout
