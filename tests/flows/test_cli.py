"""The door: instant help, one message for a user's mistake, nothing but the result on stdout."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from tests.conftest import PaperRuns

HEAVY = ("torch", "mlflow", "prefect", "pandas", "duckdb", "streamlit", "numpy")


def cli(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `seqscale ...` in this process."""
    monkeypatch.setattr(sys, "argv", ["seqscale", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def rows(users: int, events: int, *, time: str = "17{:08d}") -> str:
    """A file with the given users, each with the given events."""
    lines = [
        f"u{u},i{(u + e) % 30},{time.format(u * 100 + e)}"
        for u in range(users)
        for e in range(events)
    ]
    return "\n".join(["uid,sku,ts", *lines]) + "\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['seqscale', '--help']\n"
        "from flows.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("run", "fetch", "prepare", "profile", "load", "export", "dashboard"):
        assert command in done.stdout


def test_python_m_flows_is_seqscale_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "--interactions" in done.stdout


BAD_FILES = {
    "empty file": ("", "empty"),
    "header alone": ("uid,sku,ts\n", "no row"),
    "misnamed column": ("who,sku,ts\nu1,i1,1\n", "who"),  # says which columns exist
    "all rows dropped": (rows(8, 2), "none of the 16 rows is left"),
    "one user only": (rows(1, 9), "only one user"),
    "unparsable times": (rows(3, 8, time="day {}"), "24 of 24 values"),
    "one unparsable time": (rows(3, 8) + "u1,i1,soon\n", "'soon' in line 26"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_ends_with_code_2_and_one_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = BAD_FILES[name]
    source, runs = write(tmp_path / "bad.csv", text), tmp_path / "runs"
    arguments = ["run", "--interactions", source, "--runs-dir", str(runs), "--json"]
    arguments += ["--user", "uid", "--item", "sku", "--time", "ts"]
    assert cli(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert "bad.csv" in err
    assert err.count("Error: ") == 1
    assert "Traceback" not in err
    assert not [path for path in runs.iterdir() if path.name != ".work"]  # nothing half-written
    assert not list((runs / ".work" / "stores").glob("*"))


def test_a_bad_time_names_the_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # the header is line 1, so the third row is line 4; 30 of 4 x 8 rows are bad
    lines = rows(4, 8).splitlines()
    lines[3:] = [line.rsplit(",", 1)[0] + ",yesterday" for line in lines[3:]]
    source = write(tmp_path / "bad.csv", "\n".join(lines) + "\n")
    assert (
        cli(monkeypatch, "profile", source, "--user", "uid", "--item", "sku", "--time", "ts") == 2
    )
    err = capsys.readouterr().err
    assert "30 of 32 values" in err
    assert "line 4" in err


WRONG_SETTINGS = {
    "missing file": (["--interactions", "nowhere.csv"], "nowhere.csv does not exist"),
    "unknown recipe": (["--recipe", "big"], "known are demo_cpu, smoke_cpu"),
    "unknown instance": (["--instance", "tpu"], "known are p5.48xlarge"),
    "currency without rates": (["--currency", "EUR"], "a table of dated rates is needed"),
    "batch below ranks": (["--batch", "2", "--ranks", "4"], "fewer than the 4 ranks"),
    "no epoch": (["--epochs", "0"], "num_epochs is 0"),
    "odd pipeline id": (["--pipeline-id", "../up"], "cannot name a folder"),
    "empty pipeline id": (["--pipeline-id", ""], "cannot name a folder"),
    "a file's pipeline id": (["--pipeline-id", "mlflow.db"], "cannot name a folder"),
    "a folder's pipeline id": (["--pipeline-id", "export"], "cannot name a folder"),
}


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_a_wrong_setting_ends_with_code_2_before_anything_is_made(
    name: str,
    interactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, expected = WRONG_SETTINGS[name]
    runs = tmp_path / "runs"
    given = [] if "--interactions" in options else ["--interactions", str(interactions)]
    assert cli(monkeypatch, "run", "--runs-dir", str(runs), *given, *options) == 2
    assert expected in capsys.readouterr().err
    assert not runs.exists()


def test_fewer_users_than_ranks_is_told_before_a_folder_is_made(
    interactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs"
    arguments = ["run", "--interactions", str(interactions), "--runs-dir", str(runs)]
    arguments += ["--user", "uid", "--item", "sku", "--time", "ts", "--ranks", "61"]
    assert cli(monkeypatch, *arguments, "--batch", "61") == 2
    assert "There are 60 users for 61 ranks" in capsys.readouterr().err
    assert [path.name for path in runs.iterdir()] == [".work"]


def test_a_run_folder_in_use_is_refused(
    interactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = tmp_path / "runs" / "r7"
    taken.mkdir(parents=True)
    arguments = ["run", "--interactions", str(interactions), "--pipeline-id", "r7"]
    assert cli(monkeypatch, *arguments, "--runs-dir", str(tmp_path / "runs")) == 2
    assert f"{taken} is already there" in capsys.readouterr().err
    assert not list(taken.iterdir())


def test_a_runs_dir_that_cannot_be_made_is_told(
    interactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # a file stands where the folder should be: refused to root as well, unlike a mode
    (tmp_path / "file").write_text("")
    runs = tmp_path / "file" / "runs"
    arguments = ["run", "--interactions", str(interactions), "--runs-dir", str(runs)]
    assert cli(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert "cannot be written" in err
    assert "--runs-dir" in err


def test_a_corrupt_line_in_a_closed_segment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "r7" / "journal" / "dim_dataset"
    folder.mkdir(parents=True)
    (folder / "flow-000000.jsonl").write_text("{not json\n")
    assert cli(monkeypatch, "load", str(tmp_path / "runs" / "r7")) == 2
    err = capsys.readouterr().err
    assert "flow-000000.jsonl line 1" in err
    assert "seqscale load" in err


def test_export_without_a_warehouse_names_the_command_that_fills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(monkeypatch, "export", "--runs-dir", str(tmp_path)) == 2
    assert "seqscale" in capsys.readouterr().err


def test_profile_prints_one_json_document_and_states_its_coefficients(
    interactions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["profile", str(interactions), "--user", "uid", "--item", "sku", "--time", "ts"]
    assert cli(monkeypatch, *arguments, "--gpus", "16", "--json") == 0
    out, _ = capsys.readouterr()
    result = json.loads(out)
    assert result["dataset"]["num_users"] == 60
    assert result["num_gpus"] == 16
    assert 16 in {forecast["num_ranks"] for forecast in result["profile"]["forecasts"]}
    assert "stated, not measured" in result["profile"]["cost"]["source"]


def test_profile_needs_neither_torch_nor_prefect(interactions: Path) -> None:
    # a None in sys.modules makes an import fail as if the package were absent
    code = (
        "import sys\n"
        "for name in ('torch', 'prefect', 'mlflow', 'pandas', 'pyarrow', 'psutil'):\n"
        "    sys.modules[name] = None\n"
        "from flows.cli import main\n"
        "main()"
    )
    options = ["profile", str(interactions), "--user", "uid", "--item", "sku", "--time", "ts"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "p5.48xlarge" in done.stdout


def test_an_unknown_cost_model_lists_the_known(
    interactions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(monkeypatch, "profile", str(interactions), "--cost-model", "gpt") == 2
    assert "known are hstu-8x1024@h100" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    interactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("flows.run.NEEDED", {"no_such_module": "training"})
    arguments = ["run", "--interactions", str(interactions), "--runs-dir", str(tmp_path / "runs")]
    assert cli(monkeypatch, *arguments) == 2
    assert "pip install 'seqscale[all]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_export_is_written_in_the_dialect_that_was_asked(
    published: PaperRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = published.runs_dir
    assert cli(monkeypatch, "export", "--runs-dir", str(runs), "--dialect", "excel-es") == 0
    price = (runs / "export" / "csv" / "dim_price" / "dim_price.csv").read_bytes()
    assert price.startswith(b"\xef\xbb\xbfpipeline_id;")
    assert b";9,0;EUR;" in price
    assert cli(monkeypatch, "export", "--runs-dir", str(runs), "--dialect", "excel") == 2
    assert "powerbi, excel-es" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("analytics.export.export", interrupted)
    assert cli(monkeypatch, "export") == 130


def test_a_signal_inside_a_query_ends_as_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    # DuckDB tells what a signal's handler raises inside a query as a RuntimeError of its own
    def interrupted(*_: object, **__: object) -> None:
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr("analytics.export.export", interrupted)
    monkeypatch.setattr("flows.cli._told", [signal.SIGTERM])
    assert cli(monkeypatch, "export") == 143
    monkeypatch.setattr("flows.cli._told", [])
    assert cli(monkeypatch, "export") == 130


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("analytics.export.export", broken)
    monkeypatch.setattr(sys, "argv", ["seqscale", "export"])
    with pytest.raises(RuntimeError, match="ours"):
        main()


def test_settings_leave_the_users_own_values(tmp_path: Path) -> None:
    from flows.settings import configured_api_url, set_environment

    given = {"DO_NOT_TRACK": "1", "HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path / "mine")}
    set_environment(tmp_path / "runs", given)
    assert given["DO_NOT_TRACK"] == "1"
    assert given["PREFECT_HOME"] == str(tmp_path / "mine")
    assert given["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "profiles.toml").write_text(
        'active = "a"\n[profiles.a]\nPREFECT_API_URL = "http://prefect.example/api"\n'
    )
    assert configured_api_url(given) == "http://prefect.example/api"
    assert configured_api_url({"PREFECT_HOME": str(tmp_path / "none")}) is None


def test_told_to_end_it_says_so_and_leaves_nothing_begun(tmp_path: Path) -> None:
    source = write(tmp_path / "small.csv", rows(20, 8))
    command = [sys.executable, "-m", "flows.cli", "run", "--interactions", source]
    command += ["--user", "uid", "--item", "sku", "--time", "ts", "--recipe", "smoke_cpu"]
    command += ["--runs-dir", str(tmp_path / "runs"), "--pipeline-id", "told"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        seen = []
        for line in child.stderr:  # its first words come while Prefect's server still starts
            seen.append(line)
            if "rows kept" in line:
                child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 143
    assert "ended by SIGTERM" in "".join(seen)
    assert not (tmp_path / "runs" / "told").exists()
    assert not list((tmp_path / "runs" / ".work" / "prefect").glob("port-*"))


def test_a_dashboard_that_is_told_to_end_takes_streamlit_with_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flows.cli", "dashboard", "--runs-dir", str(tmp_path)]
    command += ["--port", str(port), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = next(line for line in child.stdout if str(port) in line)  # it serves
        assert "127.0.0.1" in line
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 143
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_the_dashboard_is_bound_to_this_host_and_tells_nobody() -> None:
    from flows.dashboard_child import dashboard_command

    command = dashboard_command(port=8600, open_browser=False)
    assert command[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert command[command.index("--server.address") + 1] == "127.0.0.1"
    assert command[command.index("--browser.gatherUsageStats") + 1] == "false"
    assert Path(command[4]).name == "app.py"
