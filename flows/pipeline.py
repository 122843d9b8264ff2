"""The pipeline as one Prefect flow: a task for each step, each with retries, time-out, cache key.

Before: flows/run.py has checked what can be checked at once.   After: the receipt.
A task only calls a plain function (flows/steps.py, flows/training_steps.py, flows/receipt.py) and
turns its result into plain values. Only prepare, profile and plan are cached, as JSON, by the hash
of the file and of the configuration; what they made on disk must still be there.
Price: about 0.1 s a task.

A user's mistake is never tried again. A training that ended badly is tried again as a new attempt,
as often as was asked for; whatever it recorded is loaded and published before the flow fails.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext

from analytics.errors import LaunchError, SeqscaleError, WarehouseError
from analytics.interactions import PreparedData
from analytics.profile import Profile
from analytics.schema import DimModel
from flows import calibration, receipt, steps, tracking, training_steps
from flows.allocation import allocated
from flows.request import RunRequest
from flows.spans import reporting_span, spanned
from training.config import TrainJob, content_hash, from_json, to_json

LOGGER = logging.getLogger("seqscale.pipeline")
Json = dict[str, Any]
MakeTask = Callable[[Callable[..., Any]], Any]


def _is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether a failure may pass by itself, as a busy warehouse or a lost child; what a user or a
    file causes does not.
    """
    error = state.result(raise_on_failure=False)
    return not isinstance(error, SeqscaleError) or isinstance(error, WarehouseError | LaunchError)


def _is_lost_training(_task: Any, _task_run: Any, state: Any) -> bool:
    return isinstance(state.result(raise_on_failure=False), LaunchError)


def _cached_task(name: str, timeout_s: float, key: Callable[[Json], str]) -> MakeTask:
    """A task whose JSON result is taken again for equal keys; retried once when it may pass."""

    def cache_key(_context: TaskRunContext, parameters: Json) -> str:
        return f"seqscale-{name}-{key(parameters)}"

    return task(
        name=name,
        cache_key_fn=cache_key,
        persist_result=True,
        result_serializer="json",
        retries=1,
        retry_condition_fn=_is_transient,
        timeout_seconds=timeout_s,
    )


def _task(name: str, timeout_s: float, retries: int = 0) -> MakeTask:
    """A task that always runs; its result stays in memory."""
    return task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=retries,
        retry_condition_fn=_is_transient,
        timeout_seconds=timeout_s,
    )


def _request(raw: Json) -> RunRequest:
    return from_json(RunRequest, json.dumps(raw, allow_nan=False))


def _prepare_key(parameters: Json) -> str:
    request = _request(parameters["raw"])
    key = steps.pseudonym_key(request)
    return content_hash(f"{request.runs} {steps.prepare_key(request, key)}")


def _profile_key(parameters: Json) -> str:
    request, prepared = _request(parameters["raw"]), parameters["prepared"]
    price = to_json(dataclasses.replace(request.price, pipeline_id=""))
    cost = to_json(calibration.calibrated_cost(request.config, request.work))
    train = request.config.train
    sizes = [request.sequences_per_rank, train.global_batch_sequences, train.num_negatives]
    sizes += [request.min_group_users, request.config.model.max_trained_events]
    return content_hash(
        f"{request.runs} {prepared['dataset_id']} {sizes} {train.seed} {price} {cost}"
    )


def _plan_key(parameters: Json) -> str:
    request, prepared = _request(parameters["raw"]), PreparedData(**parameters["prepared"])
    cost = calibration.calibrated_cost(request.config, request.work)
    return content_hash(f"{request.runs} {steps.plan_key(request, prepared, cost)}")


@_cached_task("prepare", 3600, _prepare_key)
def prepare(raw: Json) -> Json:
    """Interactions to sequences."""
    return dataclasses.asdict(steps.prepare_step(_request(raw)))


@_cached_task("profile", 3600, _profile_key)
def profile(raw: Json, prepared: Json) -> Json:
    """Lengths, skew and the forecast in money."""
    made = steps.profile_step(_request(raw), PreparedData(**prepared))
    plain: Json = json.loads(json.dumps(dataclasses.asdict(made), allow_nan=False))
    return plain


@_cached_task("plan", 3600, _plan_key)
def plan(raw: Json, prepared: Json) -> str:
    """Every global batch of every arm."""
    request = _request(raw)
    cost = calibration.calibrated_cost(request.config, request.work)
    return str(steps.plan_step(request, PreparedData(**prepared), cost))


@_task("train", 86_400 * 7)
def train(raw: Json, prepared: Json, plan_dir: str) -> TrainJob:
    """Both arms, as a new attempt; its own time-out is the launcher's, which ends the ranks."""
    return training_steps.train_step(_request(raw), PreparedData(**prepared), Path(plan_dir))


@_task("evaluate", training_steps.EVALUATE_TIMEOUT_S + 60, retries=1)
def evaluate(job: TrainJob) -> None:
    """Full ranking of every arm."""
    training_steps.evaluate_step(job)


@_task("register", training_steps.REGISTER_TIMEOUT_S + 60)
def register(raw: Json, job: TrainJob) -> list[DimModel]:
    """Runs and the balanced arm's model into MLflow; once, or the runs would stand there twice."""
    request, warming = _request(raw), tracking.warm()
    models = training_steps.register_step(request, job)
    steps.record_models(request, models)
    warming.join(timeout=120)
    return models


@_task("load", 1800, retries=1)
def load(raw: Json) -> Json:
    """Journals into the warehouse."""
    return dataclasses.asdict(steps.load_step(_request(raw)))


@_task("publish", 1800, retries=1)
def publish(raw: Json) -> str:
    """The warehouse for everybody."""
    return str(steps.publish_step(_request(raw)))


@_task("track", 600, retries=1)
def track(raw: Json, models: list[DimModel]) -> None:
    """The efficiency figures to MLflow; its runs end."""
    request = _request(raw)
    tracking.log_efficiency(request.runs, models, receipt.efficiency_rows(request))


@_task("export", 1800, retries=1)
def export(raw: Json) -> Json:
    """CSV files and their manifest."""
    return dataclasses.asdict(steps.export_step(_request(raw)))


@_task("receipt", 600)
def write_receipt(raw: Json, prepared: Json) -> Json:
    """What was done and found, as files and as an artifact."""
    made = receipt.receipt_step(_request(raw), PreparedData(**prepared))
    create_markdown_artifact(
        receipt.markdown(made), key="seqscale-receipt", description="Receipt of the run"
    )
    return made


@flow(name="seqscale", validate_parameters=False, persist_result=False)
def pipeline(raw: Json) -> Json:
    """From interactions to the receipt; `raw` is a RunRequest as plain values."""
    request = _request(raw)
    try:
        with spanned(request, "data", "preparation taken again by its hash"):
            prepared = _refreshed(prepare, not steps.is_prepared(request))(raw)
        with spanned(request, "start_up", "calibration of the cost model"):
            cost = calibration.calibrated_cost(request.config, request.work)
        with spanned(request, "data", "profile and plan"):
            profiled = profile(raw, prepared)
            planned = steps.is_planned(request, PreparedData(**prepared), cost)
            plan_dir = _refreshed(plan, not planned)(raw, prepared)
            steps.record_inputs(request, PreparedData(**prepared), Profile(**profiled))
        job = train.with_options(
            retries=request.num_train_retries, retry_condition_fn=_is_lost_training
        )(raw, prepared, plan_dir)
    except BaseException as error:
        salvage(request, [], error)
        raise
    return _after_training(request, raw, prepared, job)


def _after_training(request: RunRequest, raw: Json, prepared: Json, job: TrainJob) -> Json:
    models: list[DimModel] = []
    try:
        with (
            spanned(request, "evaluation", "full ranking of every arm", attempt=job.attempt),
            allocated(request, f"evaluation, attempt {job.attempt}"),
        ):
            evaluate(job)
        with spanned(request, "registration", "runs and model into MLflow", attempt=job.attempt):
            models = register(raw, job)
        with reporting_span(request, "load", attempt=job.attempt):
            load(raw)
        with reporting_span(request, "publish", attempt=job.attempt):
            publish(raw)
        with reporting_span(request, "figures into MLflow", attempt=job.attempt):
            track(raw, models)
        with reporting_span(request, "export", attempt=job.attempt):
            export(raw)
        with reporting_span(request, "receipt", attempt=job.attempt):
            made: Json = write_receipt(raw, prepared)
    except BaseException as error:
        salvage(request, models, error)
        raise
    return made


def salvage(request: RunRequest, models: list[DimModel], error: BaseException) -> None:
    """Load and publish what a failed start has recorded; end its MLflow runs as FAILED.

    Never raises: the failure that came first is the one to tell.
    """
    attempt = len(training_steps.attempts(request)) - 1
    if attempt < 0:
        return
    LOGGER.info("failed (%s); loading what was recorded", type(error).__name__)
    try:
        with reporting_span(request, "load", attempt=attempt):
            steps.load_step(request)
        with reporting_span(request, "publish", attempt=attempt):
            steps.publish_step(request)
        tracking.mark_failed(request.runs, models)
    except Exception as second:
        LOGGER.warning("what was recorded could not be loaded whole: %s", second)


def _refreshed(cached: Any, is_gone: bool) -> Any:
    """The task, made to run again when what it made is no longer on disk."""
    return cached.with_options(refresh_cache=True) if is_gone else cached
