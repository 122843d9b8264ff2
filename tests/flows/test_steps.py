"""Each step as a plain function, without Prefect: caches, claims, attempts and clear failures."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analytics.errors import ConfigError, InputError, LaunchError, PlanError
from analytics.journal import read_journal
from analytics.preparation import Preparation
from analytics.pseudonyms import PseudonymKey
from analytics.rules import HistoryRules
from analytics.schema import DimDataset, DimModel, DimPrice, FactStragglerForecast
from analytics.sources.options import ReadingOptions
from analytics.traces import files_with
from analytics.warehouse import open_published
from flows import calibration, console, private, receipt, request, steps, tracking, training_steps
from flows import run as run_module
from infra.prices import price
from training.config import from_json, read_job, to_json
from training.planning.cost import NAMED_COSTS
from training.planning.plan import read_plan
from training.recipes import recipe

Request = Callable[..., request.RunRequest]
COST = NAMED_COSTS["hstu-8x1024@h100"]


def with_cost(made: request.RunRequest) -> None:
    """Put a cost model into the calibration's cache."""
    path = made.work / "cost" / f"{calibration.cost_key(made.config)}.json"
    private.write_json(path, json.loads(to_json(COST)))


def test_a_request_survives_json(request_for: Request) -> None:
    made = request_for()
    assert from_json(request.RunRequest, to_json(made)) == made


def test_pipeline_ids_are_valid_and_differ() -> None:
    names = {request.new_pipeline_id() for _ in range(20)}
    assert len(names) == 20
    assert all(name[8] == "T" and name[15] == "Z" for name in names)


def test_command_line_overrides_change_only_what_they_name() -> None:
    base = recipe("smoke_cpu")
    changed = request.configure(base, batch=16, seed=0)
    assert (changed.train.global_batch_sequences, changed.train.seed) == (16, 0)
    assert changed.train.num_epochs == base.train.num_epochs
    assert changed.model == base.model


def test_a_folder_is_claimed_once(request_for: Request) -> None:
    made = request_for()
    assert request.claim(made).is_dir()
    with pytest.raises(ConfigError, match="is already there"):
        request.claim(made)


def test_prepare_takes_its_store_again_until_it_is_deleted(request_for: Request) -> None:
    made = request_for()
    first = steps.prepare_step(made)
    assert (first.num_users, first.dataset_name) == (60, "small.csv")
    header = Path(first.store_dir) / "store.json"
    written = header.stat().st_mtime_ns
    assert steps.prepare_step(made) == first
    assert header.stat().st_mtime_ns == written
    shutil.rmtree(first.store_dir)
    assert not steps.is_prepared(made)
    assert steps.prepare_step(made) == first
    assert header.is_file()


def test_other_columns_or_content_are_another_preparation(
    request_for: Request, interactions: Path, tmp_path: Path
) -> None:
    made = request_for()
    key = steps.prepare_key(made, None)
    assert key == steps.prepare_key(request_for(), None)
    assert key != steps.prepare_key(request_for(reading=ReadingOptions(user="uid")), None)
    shorter = Preparation(history=HistoryRules(min_history=6))
    assert key != steps.prepare_key(request_for(preparation=shorter), None)
    secret = PseudonymKey(secret=b"0123456789abcdef", where="a test")
    assert key != steps.prepare_key(made, secret)
    longer = tmp_path / "small.csv"
    longer.write_text(interactions.read_text() + "u0,i0,1\n")
    assert key != steps.prepare_key(request_for(interactions=str(longer)), None)


def test_a_missing_file_is_told(request_for: Request, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        steps.prepare_step(request_for(interactions=str(tmp_path / "nowhere.csv")))


def test_a_full_disk_is_told_before_work_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = types.SimpleNamespace(free=5 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(ConfigError, match=r"5 MiB are free, but a run needs about 256 MiB"):
        steps.check_runs_dir(tmp_path / "runs")


def test_a_disk_that_fills_up_is_told(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device", str(tmp_path / "items.npy"))
    with pytest.raises(ConfigError, match=r"is full .*--runs-dir\."), steps.writing_under(tmp_path):
        raise full
    with pytest.raises(ConfigError) as told, steps.writing_under(tmp_path, otherwise="go away"):
        raise full
    assert str(told.value).endswith("or mend the permissions, or go away.")
    with pytest.raises(FileNotFoundError), steps.writing_under(tmp_path):
        raise FileNotFoundError("ours")


def test_both_arms_are_planned_from_the_same_batches_and_the_plan_is_taken_again(
    request_for: Request,
) -> None:
    made = request_for()
    prepared = steps.prepare_step(made)
    folder = steps.plan_step(made, prepared, COST)
    plan = read_plan(folder)
    assert set(plan.arms) == {"baseline", "balanced"}
    for step in range(plan.num_steps):
        of_arms = [sorted(arm.of_step(step).tolist()) for arm in plan.arms.values()]
        assert of_arms[0] == of_arms[1]
    written = (folder / "plan.json").stat().st_mtime_ns
    assert steps.plan_step(made, prepared, COST) == folder
    assert (folder / "plan.json").stat().st_mtime_ns == written
    (folder / "plan.json").unlink()
    assert not steps.is_planned(made, prepared, COST)
    assert read_plan(steps.plan_step(made, prepared, COST)).num_steps == plan.num_steps


def test_what_tells_of_people_is_closed_to_others_under_any_umask(request_for: Request) -> None:
    made = request_for()
    (made.runs / ".work").mkdir(parents=True)
    (made.runs / ".work").chmod(0o755)  # as an earlier version made it
    umask = os.umask(0)
    try:
        steps.check_runs_dir(made.runs)
        prepared = steps.prepare_step(made)
        plan_dir = steps.plan_step(made, prepared, COST)
        request.claim(made)
        job = training_steps.new_job(made, prepared, plan_dir)
    finally:
        os.umask(umask)
    found = [made.work, *made.work.rglob("*"), made.pipeline_dir, *made.pipeline_dir.rglob("*")]
    modes = {path: f"{path.stat().st_mode & 0o777:o}" for path in found}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {"700"}
    assert {mode for path, mode in modes.items() if path.is_file()} == {"600"}
    assert {plan_dir, plan_dir / "plan.json", training_steps.job_path(job)} <= set(modes)
    assert modes[steps.prepared_path(made, None)] == "600"


def test_user_ids_become_pseudonyms_unless_a_request_says_otherwise(
    request_for: Request, interactions: Path
) -> None:
    said = {f.name: getattr(request_for(), f.name) for f in dataclasses.fields(request.RunRequest)}
    del said["keep_user_ids"]
    made = request.RunRequest(**said)
    prepared = steps.prepare_step(made)
    assert prepared.is_pseudonymised
    assert files_with([Path(prepared.store_dir)], ["klara."]).holding == []


def test_fewer_users_than_ranks_cannot_be_planned(request_for: Request) -> None:
    many = request.configure(recipe("smoke_cpu"), ranks=61, batch=61)
    made = request_for(config=many)
    prepared = steps.prepare_step(made)
    with pytest.raises(PlanError, match="60 users for 61 ranks"):
        steps.check_ranks(made, prepared)
    with pytest.raises(PlanError, match="60 users for 61 ranks"):
        steps.plan_step(made, prepared, COST)


def test_the_flow_records_data_price_and_forecasts(request_for: Request) -> None:
    made = request_for()
    with_cost(made)
    prepared = steps.prepare_step(made)
    profile = steps.profile_step(made, prepared)
    request.claim(made)
    steps.record_inputs(made, prepared, profile)
    assert read_journal(made.journal_dir, DimDataset).records[0].num_users == 60
    assert read_journal(made.journal_dir, DimPrice).records[0].pipeline_id == "p1"
    forecasts = read_journal(made.journal_dir, FactStragglerForecast).records
    assert {(f.num_ranks, f.placement) for f in forecasts} == {
        (ranks, placement)
        for ranks in (2, 8, 64, 256)
        for placement in ("random_equal", "lpt_equal", "lpt_free", "lookahead")
    }
    steps.load_step(made)
    steps.publish_step(made)
    with open_published(made.runs) as con:
        assert con.execute("SELECT num_users FROM dim_dataset").fetchall() == [(60,)]
    assert "dim_dataset" in steps.export_step(made).rows


def test_a_cached_calibration_starts_no_child(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = request_for()
    with_cost(made)
    monkeypatch.setattr(calibration, "run_child", lambda *_, **__: pytest.fail("a child began"))
    assert calibration.calibrated_cost(made.config, made.work) == COST
    # what a sequence costs does not depend on how many ranks share the work; it does on the model
    alone = request.configure(recipe("smoke_cpu"), ranks=1)
    assert calibration.calibrated_cost(alone, made.work) == COST
    other = calibration.cost_key(recipe("demo_cpu"))
    assert other != calibration.cost_key(made.config)


def test_a_head_start_that_is_not_wanted_any_more_ends_its_child(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, began, ended = request_for(), threading.Event(), threading.Event()

    def child(*_: Any, on_poll: Any, **__: Any) -> None:
        began.set()
        try:
            while True:
                on_poll()
        finally:
            ended.set()

    monkeypatch.setattr(calibration, "run_child", child)
    with calibration.head_start(made.config, made.work):
        assert began.wait(10)
    assert ended.is_set()


def test_a_calibration_that_fails_is_told(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = request_for()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LaunchError, match="calibration"):
        calibration.calibrated_cost(made.config, made.work)


def test_every_training_is_a_new_attempt(request_for: Request) -> None:
    made = request_for()
    prepared = steps.prepare_step(made)
    plan_dir = steps.plan_step(made, prepared, COST)
    request.claim(made)
    jobs = [training_steps.new_job(made, prepared, plan_dir) for _ in range(2)]
    assert [job.attempt for job in jobs] == [0, 1]
    assert [path.name for path in training_steps.attempts(made)] == ["attempt-0", "attempt-1"]
    read = read_job(training_steps.job_path(jobs[1]))
    assert read == jobs[1]
    assert read.device_hour_cost == price("p5.48xlarge").device_hour_cost
    with pytest.raises(ConfigError, match="the job cannot be read"):
        read_job(made.pipeline_dir / "attempt-7" / "job.json")


def test_a_model_has_no_more_positions_than_the_data_has_events(request_for: Request) -> None:
    made = request_for()
    prepared = steps.prepare_step(made)
    # the longest history has 60 events; at test time all but its last are read: 59, told as 64
    fitted = training_steps.fitted(made.config, prepared).model.max_length
    assert (prepared.max_length, fitted) == (60, 64)
    assert fitted < made.config.model.max_length
    short = dataclasses.replace(
        made.config, model=dataclasses.replace(made.config.model, max_length=4)
    )
    assert training_steps.fitted(short, prepared).model.max_length == 4


def test_only_the_registered_arm_has_a_version(request_for: Request) -> None:
    made = request_for()
    prepared = steps.prepare_step(made)
    request.claim(made)
    job = training_steps.new_job(made, prepared, Path("plan"))
    out = {
        "mlflow_parent_run_id": "m0",
        "arms": {"baseline": "m1", "balanced": "m2"},
        "model_name": "seqscale",
        "model_version": "3",
        "model_alias": "challenger",
        "registered_arm": "balanced",
    }
    models = training_steps.registered_models(job, out)
    assert [(m.run_id, m.mlflow_run_id, m.model_version) for m in models] == [
        ("p1-baseline", "m1", None),
        ("p1-balanced", "m2", "3"),
    ]
    steps.record_models(made, models)
    assert read_journal(made.journal_dir, DimModel).records == models


def test_efficiency_figures_are_numbers_only() -> None:
    row = {"run_id": "r", "step_s": 0.5, "mrr": None, "num_steps": 4, "started_unix_ns": 9}
    assert tracking.efficiency_figures(row) == {"step_s": 0.5, "num_steps": 4.0}


def test_progress_is_reported_once_a_change(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int, str]] = []
    before, console._sink = console._sink, lambda *told: seen.append(told)
    try:
        poll = training_steps._watching(tmp_path / "progress.json")
        poll()  # the ranks have not written yet
        progress = {"phase": "train", "done": 3, "total": 30, "arm": "balanced", "loss": 4.5}
        private.write_json(tmp_path / "progress.json", progress)
        poll()
        poll()
    finally:
        console._sink = before
    assert seen == [("train", 3, 30, "blocks of steps, balanced, loss 4.500")]


def test_without_a_terminal_a_phase_is_a_few_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.reporting():
        for done in range(1, 101):
            console.report("train", done, 100)
        logging.getLogger("seqscale.x").info("an event")
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line.split(" ", 1)[1].strip() for line in err.splitlines()]
    assert lines == ["train 1/100", "train 100/100", "an event"]


def test_efficiency_rows_need_a_published_warehouse(request_for: Request) -> None:
    from analytics.errors import WarehouseError

    with pytest.raises(WarehouseError, match="seqscale"):
        receipt.efficiency_rows(request_for())


def test_a_start_that_ends_while_it_claims_its_folder_leaves_none_and_none_of_anothers(
    request_for: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = request_for()

    def claim_and_end(asked: Any) -> None:
        request.claim(asked)
        raise SystemExit(143)

    monkeypatch.setattr(run_module, "api_server", lambda _: contextlib.nullcontext(lambda: None))
    monkeypatch.setattr(run_module, "head_start", lambda *_: contextlib.nullcontext())
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(run_module, "claim", claim_and_end)
        with run_module._prepared(made):
            pytest.fail("the claim ended the start")
    assert not made.pipeline_dir.exists()
    made.pipeline_dir.mkdir()  # another start's
    with pytest.raises(ConfigError, match="already there"), run_module._prepared(made):
        pytest.fail("the folder is taken")
    assert made.pipeline_dir.exists()
