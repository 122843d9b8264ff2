"""The whole command on a small file, and one whose rank is killed half-way."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analytics.errors import ConfigError, LaunchError
from analytics.pseudonyms import find_key
from analytics.traces import files_with
from analytics.warehouse import load, open_published, publish

TIMEOUT_S = 300
KILL_TIMEOUT_S = 60
COLUMNS = ("--user", "uid", "--item", "sku", "--time", "ts")

# another process, which has neither this repository on its path nor leave to unpickle
LOAD_MODEL = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow, pandas
mlflow.set_tracking_uri(sys.argv[1])
client = mlflow.MlflowClient()
version = client.get_model_version_by_alias("seqscale", "challenger")
model = mlflow.pyfunc.load_model("models:/seqscale@challenger")
histories = pandas.DataFrame({"history": [["i1", "i2", "i3"], ["never seen"]]})
runs = client.search_runs([client.get_experiment_by_name("seqscale").experiment_id])
print(json.dumps({
    "version": version.version,
    "items": model.predict(histories, params={"k": 5})["items"].tolist(),
    "runs": {run.info.run_id: [run.info.status, run.data.metrics] for run in runs},
    "losses": {run.info.run_id: len(client.get_metric_history(run.info.run_id, "loss"))
               for run in runs},
}))
"""


def command(interactions: Path, runs: Path, *options: str) -> list[str]:
    base = [sys.executable, "-m", "flows.cli", "run", "--recipe", "smoke_cpu", *COLUMNS]
    return [*base, "--interactions", str(interactions), "--runs-dir", str(runs), *options]


@pytest.fixture(scope="module")
def finished(
    interactions: Path, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """`seqscale run --json` in a folder of its own; `args[-1]` is the runs folder."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    arguments = command(interactions, runs, "--pipeline-id", "whole", "--json")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S)
    done.args = runs
    return done


@pytest.fixture(scope="module")
def runs(finished: subprocess.CompletedProcess[str]) -> Path:
    assert finished.returncode == 0, finished.stderr
    path: Path = finished.args
    return path


@pytest.fixture(scope="module")
def receipt(finished: subprocess.CompletedProcess[str], runs: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(finished.stdout)
    return made


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_standard_output_is_one_json_document_and_the_console_is_quiet(
    finished: subprocess.CompletedProcess[str], receipt: dict[str, Any]
) -> None:
    assert receipt["pipeline_id"] == "whole"
    for word in ("Traceback", "Error logging to API", "Warning", "prefect"):
        assert word not in finished.stderr
    for phase in ("prepare", "train", "evaluate", "register", "export"):
        assert phase in finished.stderr


def test_the_receipt_holds_both_arms_beside_each_other(receipt: dict[str, Any], runs: Path) -> None:
    baseline, balanced = receipt["arms"]
    assert (baseline["arm"], balanced["arm"]) == ("baseline", "balanced")
    for arm in (baseline, balanced):
        assert arm["step_s"] > 0
        assert arm["samples_per_s"] > 0
        assert 0 <= arm["bubble_share"] <= 1
        assert 0 <= arm["hr_at_10"] <= 1
        assert arm["cost"] > 0
        assert arm["currency"] == "USD"
    # the bound is what whole sequences allow; lpt on a few dozen sequences comes close to it
    assert balanced["predicted_straggler_share"] - balanced["bound_straggler_share"] <= 0.01
    # both arms trained the same batches to the same parameters
    assert balanced["hr_at_10"] == pytest.approx(baseline["hr_at_10"], abs=0.04)
    assert json.loads((runs / "whole" / "receipt.json").read_text()) == receipt
    assert "| figure | baseline | balanced |" in (runs / "whole" / "receipt.md").read_text()


def test_the_published_view_has_one_row_an_arm(receipt: dict[str, Any], runs: Path) -> None:
    with open_published(runs) as con:
        rows = con.execute(
            "SELECT run_id, arm, step_s, bubble_share, straggler_share, samples_per_s, hr_at_10, "
            "ndcg_at_10, cost, currency FROM run_efficiency ORDER BY run_id"
        ).fetchall()
        samples = con.execute("SELECT count(*) FROM fact_device_sample").fetchone()
        forecasts = con.execute("SELECT count(*) FROM fact_straggler_forecast").fetchone()
    assert [row[0] for row in rows] == ["whole-balanced", "whole-baseline"]
    assert all(value is not None for row in rows for value in row)
    assert samples is not None and samples[0] > 0
    # 2, 8, 64, 256 ranks x 4 sizes of batch x random, equal, free and look-ahead placement
    assert forecasts == (64,)


def test_one_sampler_watches_the_host_for_all_ranks_and_arms(
    receipt: dict[str, Any], runs: Path
) -> None:
    # wandb#8359, kedro-mlflow#647: one monitor a process or a call, whose own cost nobody saw
    segments = list(runs.glob("whole/attempt-*/journal/fact_device_sample/*"))
    assert len(segments) == 2  # of the training, and then of the evaluation
    with open_published(runs) as con:
        spans = con.execute(
            "SELECT span_kind, count(s.sampled_unix_ns) FROM fact_span AS f "
            "LEFT JOIN fact_device_sample AS s ON s.sampled_unix_ns BETWEEN f.began_unix_ns "
            "AND f.began_unix_ns + CAST(f.duration_s * 1e9 AS BIGINT) "
            "WHERE span_kind = 'evaluation' AND label = 'full ranking of every arm' GROUP BY ALL"
        ).fetchall()
        used = con.execute(
            "SELECT device_id, sampler_cpu_share FROM device_use WHERE device_id = 'cpu'"
        ).fetchall()
        ranks = con.execute("SELECT min(world_size), count(*) FROM dim_run").fetchone()
    assert ranks == (2, 2)
    assert [kind for kind, num_samples in spans if num_samples] == ["evaluation"]
    [told] = [one for one in receipt["devices"] if one["device_id"] == "cpu"]
    assert used == [("cpu", told["sampler_cpu_share"])]
    assert 0 < told["sampler_cpu_share"] < 1


def rounded(value: Any) -> Any:
    """Sums of floats differ in their last digits from load to load."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_a_later_load_takes_up_what_reporting_took_and_changes_nothing_else(
    receipt: dict[str, Any], runs: Path, tmp_path: Path
) -> None:
    def content() -> dict[str, list[tuple[Any, ...]]]:
        load(later)
        publish(later)
        with open_published(later) as con:
            names = [row[0] for row in con.execute("SHOW TABLES").fetchall()]
            told = {}
            for name in names:
                but = "EXCLUDE (reporting_s)" if name == "run_goodput" else ""
                rows = con.execute(f"SELECT * {but} FROM {name}").fetchall()
                told[name] = sorted((tuple(map(rounded, row)) for row in rows), key=str)
        return told

    later = tmp_path / "later"
    shutil.copytree(runs / "whole", later / "whole")
    hidden = [
        path
        for path in (later / "whole" / "journal" / "fact_span").iterdir()
        if '"reporting"' in path.read_text(encoding="utf-8")
    ]
    assert len(hidden) == 5
    kept = {path: path.read_bytes() for path in hidden}
    for path in hidden:
        path.unlink()
    before = content()
    for path, text in kept.items():
        path.write_bytes(text)
    after = content()
    assert [name for name in before if before[name] != after[name]] == ["fact_span"]
    labels = ["load", "publish", "figures into MLflow", "export"]
    assert [part["label"] for part in receipt["reporting"]] == labels
    with open_published(later) as con:
        new = con.execute(
            "SELECT label, duration_s FROM fact_span WHERE span_kind = 'reporting' "
            "ORDER BY began_unix_ns"
        ).fetchall()
    told = [(part["label"], part["duration_s"]) for part in receipt["reporting"]]
    assert new[:4] == told
    assert [label for label, _ in new[4:]] == ["receipt"]


def test_spans_and_steps_tile_the_time_of_the_job(receipt: dict[str, Any], runs: Path) -> None:
    load(runs, ["whole"])  # takes up what came after the run's own load
    publish(runs)
    with open_published(runs) as con:
        spans = con.execute(
            "SELECT span_kind, began_unix_ns, duration_s FROM fact_span ORDER BY began_unix_ns"
        ).fetchall()
        steps = con.execute(
            "SELECT 'step', started_unix_ns, window_s FROM fact_step WHERE rank = 0"
        ).fetchall()
        pool = con.execute(
            "SELECT device_id, event FROM fact_pool_event ORDER BY event_unix_ns"
        ).fetchall()
        ranks = con.execute("SELECT count(DISTINCT device_id), count(*) FROM dim_rank").fetchall()
        waits = con.execute(
            "SELECT abs(sum(straggler_wait_s) - (SELECT sum(straggler_wait_s) FROM fact_step)), "
            "count(*) FROM fact_collective"
        ).fetchall()
    kinds = {kind for kind, _, _ in spans}
    assert kinds == {
        "start_up", "data", "other", "checkpoint", "evaluation", "registration", "reporting"
    }  # fmt: skip
    pieces = sorted((began, began + round(s * 1e9)) for _, began, s in (*spans, *steps))
    # no moment is told twice, but for the rounding of a float of seconds
    assert all(after[0] >= before[1] - 1_000_000 for before, after in itertools.pairwise(pieces))
    wall_ns = pieces[-1][1] - pieces[0][0]
    covered_ns = sum(ended - began for began, ended in pieces)
    print(f"told: {covered_ns / wall_ns:.1%} of {wall_ns / 1e9:.1f} s")
    assert covered_ns > 0.5 * wall_ns  # the rest is unknown: Prefect's own time, the ranks' end
    assert pool == [("cpu", "allocated"), ("cpu", "released")] * 2  # training, evaluation
    assert ranks == [(1, 4)]
    assert waits[0][0] < 1e-6 and waits[0][1] > len(steps)


def test_loading_again_changes_nothing(receipt: dict[str, Any], runs: Path) -> None:
    def content() -> dict[str, list[tuple[Any, ...]]]:
        with open_published(runs) as con:
            names = ("dim_run", "fact_step", "fact_evaluation", "dim_model", "dim_dataset")
            return {name: con.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in names}

    before = content()
    load(runs, ["whole"])
    publish(runs)
    assert content() == before


def test_exports_agree_with_their_manifest(receipt: dict[str, Any], runs: Path) -> None:
    assert (runs / "export" / "manifest.json").is_file()
    path = runs / "export" / "csv" / "run_efficiency" / "run_efficiency.csv"
    with path.open(newline="", encoding="utf-8") as file:
        exported = {row["run_id"]: row for row in csv.DictReader(file)}
    for arm in receipt["arms"]:
        assert float(exported[arm["run_id"]]["step_s"]) == pytest.approx(arm["step_s"])


@pytest.mark.timeout(240)
def test_the_registered_model_answers_in_another_process(
    receipt: dict[str, Any], runs: Path, tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD_MODEL, f"sqlite:///{runs / 'mlflow.db'}"],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    known, unknown = found["items"]
    assert found["version"] == int(receipt["mlflow"]["model_version"])
    assert len(set(known)) == 5
    assert not {"i1", "i2", "i3"} & set(known)
    assert unknown == []
    assert len(found["runs"]) == 3
    for status, _ in found["runs"].values():
        assert status == "FINISHED"
    balanced = receipt["mlflow"]["runs"]["whole-balanced"]
    metrics = found["runs"][balanced][1]
    arm = receipt["arms"][1]
    assert metrics["test/model/hr_at_10"] == pytest.approx(arm["hr_at_10"])
    assert metrics["efficiency/step_s"] == pytest.approx(arm["step_s"])
    assert found["losses"][balanced] == arm["num_steps"]
    # nothing in the store needs unpickling
    suffixes = {path.suffix for path in (runs / "mlartifacts").rglob("*") if path.is_file()}
    assert not suffixes & {".pkl", ".pickle", ".pt", ".pth"}


def test_no_user_id_leaves_the_source_file_and_pseudonyms_stay_in_the_store(
    finished: subprocess.CompletedProcess[str], runs: Path, interactions: Path
) -> None:
    with interactions.open(newline="", encoding="utf-8") as file:
        ids = sorted({row["uid"] for row in csv.DictReader(file)})
    assert len(ids) == 60
    # the search finds what is there
    assert files_with([interactions.parent], ids).holding == [interactions]
    # stores, journals, logs, warehouse, MLflow, Prefect
    assert files_with([runs], ids).holding == []
    assert not any(one in finished.stdout + finished.stderr for one in ids)
    key = find_key()
    assert key is not None and str(key.where) in finished.stderr
    holders = {
        path.name for path in files_with([runs], [key.pseudonym(one) for one in ids]).holding
    }
    assert holders == {"user_map.parquet"}
    assert files_with([runs], [Path(key.where).read_text().strip()]).holding == []


def test_a_person_is_erased_from_everything_a_run_has_left(
    runs: Path, interactions: Path, tmp_path: Path
) -> None:
    with interactions.open(newline="", encoding="utf-8") as file:
        person = next(csv.DictReader(file))["uid"]
    key = find_key()
    assert key is not None
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    assert files_with([copy], [key.pseudonym(person)]).holding != []
    command = [sys.executable, "-m", "flows.cli", "forget", "--user", "-", "--runs-dir", str(copy)]
    done = subprocess.run(
        [*command, "--json"], input=f"{person}\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["run_ids"] == ["whole-balanced", "whole-baseline"]
    (erasure,) = report["erasures"]
    with open_published(copy) as con:
        (trained,) = con.execute("SELECT DISTINCT dataset_id FROM dim_run").fetchall()
        recorded = con.execute("SELECT dataset_id, num_users FROM fact_erasure").fetchall()
    assert recorded == [(erasure["dataset_id"], 1)] == [(trained[0], 1)]
    assert files_with([copy], [person, key.pseudonym(person)]).holding == []
    assert person not in done.stdout + done.stderr
    again = subprocess.run(
        command, input=f"{person}\n", capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 0, again.stderr


def test_nothing_but_the_known_folders_is_left(receipt: dict[str, Any], runs: Path) -> None:
    names = {path.name for path in runs.iterdir()}
    assert names == {".work", "export", "mlartifacts", "mlflow.db", "warehouse.duckdb", "whole"}
    assert not list(runs.rglob("*.part"))


@pytest.fixture(scope="module")
def killed(interactions: Path, runs: Path) -> Iterator[tuple[int, str, float]]:
    """(exit code, standard error, seconds it took to end) of a run whose rank 1 was killed."""
    arguments = command(interactions, runs, "--epochs", "2000", "--pipeline-id", "killed")
    attempt = runs / "killed" / "attempt-0"
    # a file, not a pipe: nobody reads while the run is being watched
    with (runs.parent / "killed.err").open("w+", encoding="utf-8") as errors:
        child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            wait_for_steps(attempt, child)
            os.kill(int((attempt / "rank-00001.pid").read_text()), signal.SIGKILL)
            began = time.monotonic()
            code = child.wait(timeout=KILL_TIMEOUT_S + 60)
            took_s = time.monotonic() - began
        finally:
            child.kill()
            child.wait(timeout=30)
        errors.seek(0)
        yield code, errors.read(), took_s


def wait_for_steps(attempt: Path, child: subprocess.Popen[bytes]) -> None:
    """Return once the ranks report that they have trained a while."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert child.poll() is None, "the run ended before its rank could be killed"
        try:
            if json.loads((attempt / "progress.json").read_text())["done"] >= 4:
                return
        except FileNotFoundError:
            pass  # not training yet
        time.sleep(0.1)
    pytest.fail("no progress within the time-out")


@pytest.mark.timeout(TIMEOUT_S + KILL_TIMEOUT_S + 120)
def test_a_killed_rank_ends_the_run_with_the_reason(killed: tuple[int, str, float]) -> None:
    code, errors, took_s = killed
    assert code == 2
    assert took_s < KILL_TIMEOUT_S
    assert "LaunchError" in errors
    assert "rank 1 of 2" in errors
    assert "SIGKILL" in errors
    assert "Traceback" not in errors.split("Log: ")[0]


def test_a_second_run_on_the_same_file_takes_store_and_profile_from_the_cache(
    killed: tuple[int, str, float], finished: subprocess.CompletedProcess[str], runs: Path
) -> None:
    # only its number of epochs differs, so its plan is a new one and its profile is not
    for words, count in (("profile: lengths", 0), ("plan: ", 1)):
        assert words in finished.stderr
        assert killed[1].count(words) == count
    assert len(list((runs / ".work" / "stores").iterdir())) == 1
    assert len(list((runs / ".work" / "plans").iterdir())) == 2


def test_what_a_killed_run_recorded_stays_readable(
    killed: tuple[int, str, float], runs: Path
) -> None:
    with open_published(runs) as con:
        steps = con.execute(
            "SELECT arm, count(*) FROM fact_step JOIN dim_run USING (run_id) "
            "WHERE dim_run.pipeline_id = 'killed' GROUP BY arm ORDER BY arm"
        ).fetchall()
        others = con.execute("SELECT count(*) FROM dim_run WHERE pipeline_id = 'whole'").fetchone()
    assert [arm for arm, _ in steps] == ["balanced", "baseline"]
    assert all(count > 0 for _, count in steps)
    assert others == (2,)  # an earlier run is untouched


def test_a_users_mistake_is_not_tried_again() -> None:
    from prefect.states import Failed

    from flows.pipeline import _is_lost_training, _is_transient

    def failed(error: Exception) -> Any:
        return Failed(data=error)

    assert not _is_transient(None, None, failed(ConfigError("mend me")))
    assert _is_transient(None, None, failed(OSError("may pass")))
    assert _is_lost_training(None, None, failed(LaunchError("rank 1 was killed")))
    assert not _is_lost_training(None, None, failed(ConfigError("mend me")))
