"""The steps that start ranks or children: train, evaluate, register. They need no Prefect.

Before: a store and a plan on disk.   After: journals, parameters, and runs in MLflow.
Price: torch's imports at each start of the ranks; this process never imports torch, so it survives
a crash of theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from analytics.group_size import rounded_up
from analytics.interactions import PreparedData
from analytics.schema import DimModel
from flows.allocation import allocated, last_end_unix_ns
from flows.console import report
from flows.private import FOLDER_MODE, write_json
from flows.request import RunRequest
from flows.spans import write_span
from infra.launchers.local import background_child, run_child, run_ranks
from training.config import RunConfig, TrainJob, to_json

LOGGER = logging.getLogger("seqscale.training")
SAMPLE_INTERVAL_S = 1.0
EVALUATE_TIMEOUT_S = 7200.0
REGISTER_TIMEOUT_S = 900.0


def new_job(request: RunRequest, prepared: PreparedData, plan_dir: Path) -> TrainJob:
    """A new attempt: its folder, claimed, and its job file in it."""
    attempt = len(attempts(request))
    attempt_dir = request.pipeline_dir / f"attempt-{attempt}"
    attempt_dir.mkdir(exist_ok=False, mode=FOLDER_MODE)
    job = TrainJob(
        pipeline_id=request.pipeline_id,
        attempt=attempt,
        config=fitted(request.config, prepared),
        dataset_id=prepared.dataset_id,
        store_dir=prepared.store_dir,
        plan_dir=str(plan_dir),
        attempt_dir=str(attempt_dir),
        instance_type=request.price.instance_type,
        device_hour_cost=request.price.device_hour_cost,
        currency=request.price.currency,
        launched_unix_ns=time.time_ns(),
    )
    write_json(job_path(job), json.loads(to_json(job)))
    return job


def fitted(config: RunConfig, prepared: PreparedData) -> RunConfig:
    """The configuration with no more positions than the longest history has events to read.

    Positions are dense parameters: every rank reduces their gradient in every step, used or not
    (4 % of the demo's step time for 4,096 positions instead of 736).
    """
    # a power of two: the exact length of the longest history would tell of one person
    longest = rounded_up(max(2, prepared.max_length - 1))
    model = config.model
    return dataclasses.replace(
        config, model=dataclasses.replace(model, max_length=min(model.max_length, longest))
    )


def attempts(request: RunRequest) -> list[Path]:
    """The folders of the attempts so far, oldest first."""
    found = request.pipeline_dir.glob("attempt-*")
    return sorted(found, key=lambda path: int(path.name.removeprefix("attempt-")))


def job_path(job: TrainJob) -> Path:
    """The file that hands a job to the ranks."""
    return Path(job.attempt_dir) / "job.json"


def train_step(request: RunRequest, prepared: PreparedData, plan_dir: Path) -> TrainJob:
    """Train every arm as a new attempt, with the host's sampler beside the ranks.

    Raises LaunchError that names the rank which failed first, and why.
    """
    job = new_job(request, prepared, plan_dir)
    LOGGER.info(
        "train: attempt %d, %d arms on %d ranks",
        job.attempt,
        len(job.config.arms),
        job.config.num_ranks,
    )
    _tell_disruption(request, job)
    with allocated(request, f"training, attempt {job.attempt}"), _sampled(job, "sampler"):
        run_ranks(
            "training",
            ["--job", str(job_path(job))],
            num_ranks=job.config.num_ranks,
            log_dir=Path(job.attempt_dir) / "logs",
            timeout_s=request.train_timeout_s,
            on_poll=_watching(Path(job.attempt_dir) / "progress.json"),
        )
    return job


def _tell_disruption(request: RunRequest, job: TrainJob) -> None:
    """The time between the end of the attempt before and this one, if there was one."""
    ended_ns = last_end_unix_ns(request) if job.attempt else None
    if ended_ns is not None:
        write_span(
            request,
            "disruption",
            "between two attempts",
            ended_ns,
            ended_unix_ns=job.launched_unix_ns,
            attempt=job.attempt,
        )


def evaluate_step(job: TrainJob) -> None:
    """Full ranking on validation and test for every arm, by all ranks, with the host's sampler.

    Raises LaunchError when a rank fails.
    """
    LOGGER.info("evaluate: every user once, against all items")
    with _sampled(job, "sampler-evaluation"):
        run_ranks(
            "training.evaluate",
            ["--job", str(job_path(job))],
            num_ranks=job.config.num_ranks,
            log_dir=Path(job.attempt_dir) / "logs",
            timeout_s=EVALUATE_TIMEOUT_S,
            on_poll=_watching(Path(job.attempt_dir) / "progress.json", phase="evaluate"),
        )


def register_step(request: RunRequest, job: TrainJob) -> list[DimModel]:
    """Write the runs into MLflow and register the balanced arm; where each run stands there.

    Raises LaunchError when the child fails.
    """
    LOGGER.info("register: runs and model into MLflow")
    out_path = Path(job.attempt_dir) / "register.json"
    command = [sys.executable, "-m", "training.register", "--job", str(job_path(job))]
    command += ["--runs-dir", str(request.runs), "--out", str(out_path)]
    run_child(
        command,
        what="the registration",
        log_path=_log(job, "register"),
        timeout_s=REGISTER_TIMEOUT_S,
    )
    return registered_models(job, json.loads(out_path.read_text(encoding="utf-8")))


def registered_models(job: TrainJob, out: dict[str, object]) -> list[DimModel]:
    """The answer of `python -m training.register` as records, one an arm."""
    run_ids = out["arms"]
    assert isinstance(run_ids, dict)
    models = []
    for arm, mlflow_run_id in run_ids.items():
        mine = arm == out["registered_arm"]
        models.append(
            DimModel(
                run_id=job.run_id(arm),
                pipeline_id=job.pipeline_id,
                mlflow_run_id=mlflow_run_id,
                mlflow_parent_run_id=str(out["mlflow_parent_run_id"]),
                model_name=str(out["model_name"]) if mine else None,
                model_version=str(out["model_version"]) if mine else None,
                model_alias=str(out["model_alias"]) if mine else None,
            )
        )
    return models


def _sampled(job: TrainJob, log_name: str) -> contextlib.AbstractContextManager[object]:
    """The host's sampler beside what is done meanwhile."""
    command = [sys.executable, "-m", "analytics.telemetry.sampler"]
    command += ["--journal", str(job.journal_dir), "--pipeline-id", job.pipeline_id]
    command += ["--attempt", str(job.attempt), "--interval-s", str(SAMPLE_INTERVAL_S)]
    # ranks take the host's GPUs in turn; those of a shared host that none takes are not this run's
    most_gpus = job.config.num_ranks if job.config.train.device == "cuda" else 0
    command += ["--max-gpus", str(most_gpus)]
    return background_child(command, what="the sampler", log_path=_log(job, log_name))


def _log(job: TrainJob, name: str) -> Path:
    return Path(job.attempt_dir) / "logs" / f"{name}.log"


def _watching(path: Path, phase: str = "train") -> Callable[[], None]:
    """A poll that reports the ranks' progress file whenever it has changed."""
    last = ""

    def poll() -> None:
        nonlocal last
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return  # the ranks are still starting
        if text == last:
            return
        last = text
        progress = json.loads(text)
        if progress["phase"] == phase:
            unit = "blocks of steps" if phase == "train" else "rankings"
            loss = "" if progress.get("loss") is None else f", loss {progress['loss']:.3f}"
            note = f"{unit}, {progress['arm']}{loss}"
            report(phase, progress["done"], progress["total"], note)

    return poll
