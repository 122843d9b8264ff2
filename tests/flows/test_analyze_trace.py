"""`seqscale analyze-trace` shows what traces say, as text or as one JSON document."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from analytics.errors import ConfigError, InputError
from flows.cli import app
from flows.starting import quick_to_start
from tests.analytics.test_kineto_parts import note
from tests.analytics.test_kineto_reading import kernel, launch, write


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "traces").mkdir()
    for rank, arrived in ((0, 10), (1, 40)):
        found = [note("ProfilerStep#1", 0, 100), launch(1, 1), launch(0, 2)]
        found += [kernel(arrived, 50 - arrived, "ncclKernel_AllReduce", device=rank)]
        found += [kernel(0, 10, correlation=2, device=rank)]
        about = {"distributedInfo": {"rank": rank, "world_size": 2}}
        about["deviceProperties"] = [{"name": "paper"}] * 2
        write(tmp_path / "traces" / f"rank{rank}.json", found, **about)
    return tmp_path / "traces"


def run(*args):
    return CliRunner().invoke(app, ["analyze-trace", *map(str, args)])


def test_json_is_one_document_with_the_figures_of_each_rank(folder):
    done = run(folder, "--json")
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)["ranks"]
    assert (first["idle_us"], first["compute_us"], first["non_compute_us"]) == (0, 10, 40)
    assert first["overlap_share"] == 0
    assert first["straggler_wait_s"] == pytest.approx(30e-6)
    assert second["straggler_wait_s"] == 0


def test_json_tells_who_waited_in_which_collective_and_for_whom(folder):
    told = json.loads(run(folder, "--json").stdout)
    (one,) = told["collectives"]
    # rank 0 arrives at 10, rank 1 at 40
    assert one == {
        "step": 1, "collective": 0, "kind": "all_reduce", "process_group": None, "last_rank": 1,
        "waits_us": {"0": 30.0, "1": 0.0},
    }  # fmt: skip
    assert told["waits_by_kind"] == [
        {"kind": "all_reduce", "num_collectives": 1, "wait_us": 30.0, "most_often_last": 1,
         "num_last": 1}
    ]  # fmt: skip


def test_a_rank_alone_tells_of_no_wait(folder):
    told = json.loads(run(folder / "rank0.json", "--json").stdout)
    assert told["collectives"] == told["waits_by_kind"] == []


def test_the_table_tells_the_waits_of_each_kind(folder):
    assert (
        "all_reduce: all ranks together waited 0.030 ms for the last one in 1 collective; most "
        "often for rank 1 (1 time)"
    ) in run(folder).stdout.splitlines()


def test_the_table_has_a_line_for_each_rank(folder):
    lines = run(folder).stdout.splitlines()
    assert lines[0] == "2 of 2 ranks"
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert "30.0%" in lines[2]
    # kernels 0-10 and 10-50 of the step's 100 us; these tell no blocks
    assert "device of rank 0: a kernel ran 50.0%" in lines


def test_a_mistake_is_told_in_one_message(folder):
    assert isinstance(run(folder / "nothing.json").exception, InputError)
    half = run(folder, "--runs-dir", folder / "runs", "--currency", "EUR")
    assert isinstance(half.exception, ConfigError)


@pytest.mark.parametrize(
    ("cost", "currency", "message"),
    [("1e20", "USD", "--device-hour-cost is 1e.20"), ("5", "zzzz", "--currency is 'zzzz'")],
)
def test_a_price_that_is_none_never_reaches_the_warehouse(folder, cost, currency, message):
    done = run(folder, "--runs-dir", folder / "runs", "--device-hour-cost", cost,
               "--currency", currency)  # fmt: skip
    assert isinstance(done.exception, ConfigError)
    assert re.search(message, str(done.exception))
    assert not list((folder / "runs").rglob("manifest.json"))


def test_the_same_traces_at_another_price_are_refused(folder):
    def stored(cost):
        return run(folder, "--runs-dir", folder.parent / "runs", "--device-hour-cost", cost,
                   "--currency", "USD")  # fmt: skip

    assert stored("2").exit_code == stored("2").exit_code == 0
    again = stored("4")
    assert isinstance(again.exception, InputError)
    assert "device_hour_cost=2.0" in str(again.exception)
    assert "device_hour_cost=4.0" in str(again.exception)


def test_durations_below_nothing_are_told_in_the_text_too(tmp_path):
    write(tmp_path / "rank0.json", [kernel(0, 5), kernel(10, -3)])
    assert "1 events last less than nothing" in run(tmp_path / "rank0.json").stdout


HEAVY = (
    "duckdb", "mlflow", "numpy.ma", "numpy.testing", "pandas", "prefect", "pyarrow", "streamlit",
    "torch",
)  # fmt: skip
PROGRAM = f"""
import os, sys
from flows.cli import main
sys.argv = ["seqscale", "analyze-trace", sys.argv[1]]
try:
    main()
finally:
    told = os.environ.get("OPENBLAS_NUM_THREADS"), [m for m in {HEAVY} if m in sys.modules]
    print(*told, file=sys.stderr)
"""


@pytest.mark.parametrize("threads", [None, "3"])
def test_nothing_is_imported_that_traces_do_not_need(folder, threads):
    env = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    env |= {} if threads is None else {"OPENBLAS_NUM_THREADS": threads}
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], env=env, capture_output=True,
                          text=True, timeout=60, check=True)  # fmt: skip
    assert done.stdout.startswith("2 of 2 ranks")
    assert done.stderr.strip() == f"{threads} []"  # what was said of threads is said after it


@pytest.mark.parametrize("name", list(typer.main.get_command(app).commands))
def test_a_command_is_the_same_when_it_is_made_alone(name, monkeypatch):
    whole = typer.main.get_command(app).commands[name]
    monkeypatch.setattr("gc.set_threshold", lambda objects: None)
    made = typer.main.get_command(quick_to_start(app, [name])).commands
    assert len(made) == 2 and made[name].callback.__name__ == whole.callback.__name__
    assert [param.opts for param in made[name].params] == [param.opts for param in whole.params]


@pytest.mark.parametrize("asked", [[], ["--help"], ["no-such-command"], ["analyze_trace"]])
def test_all_commands_are_made_when_none_is_asked_for(asked, monkeypatch):
    monkeypatch.setattr("gc.set_threshold", lambda objects: None)
    assert quick_to_start(app, asked) is app


def test_what_a_folder_holds_besides_traces_is_named(folder):
    (folder / "deeper").mkdir()
    (folder / "notes.txt").write_text("no trace")
    told = run(folder)
    assert told.exit_code == 0
    assert f"{folder / 'deeper'}, {folder / 'notes.txt'}" in told.stdout
    assert json.loads(run(folder, "--json").stdout)["not_looked_at"] == [
        str(folder / "deeper"), str(folder / "notes.txt"),
    ]  # fmt: skip
    assert json.loads(run(*sorted(folder.glob("*.json")), "--json").stdout)["not_looked_at"] == []


def test_another_gap_of_kernels_than_the_stored_one_is_never_passed_over(folder, tmp_path):
    where = ("--runs-dir", tmp_path / "runs")
    assert run(folder, "--kernel-gap-us", "5", *where).exit_code == 0
    told = run(folder, *where)
    assert "it was stored before with --kernel-gap-us 5, and stays so" in told.stdout
    assert json.loads(run(folder, "--json", *where).stdout)["stored_kernel_gap_us"] == 5
    other = run(folder, "--kernel-gap-us", "7", *where)
    assert isinstance(other.exception, InputError)
    assert "with other options (kernel_gap_us=5; now kernel_gap_us=7)" in str(other.exception)
    same = run(folder, "--kernel-gap-us", "5", *where)
    assert same.exit_code == 0 and "stored before" not in same.stdout
