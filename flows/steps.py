"""The steps before and after training, each a plain function that needs no Prefect.

Before: flows/request.py says what is asked.   After: flows/pipeline.py makes a task of each; the
three that start ranks or children are in flows/training_steps.py.
Price: prepare and plan find their own earlier work again by content hash, so a second call is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from analytics.errors import ConfigError, InputError, PlanError, StoreError
from analytics.export import ExportReport, export
from analytics.interactions import (
    InteractionColumns,
    PreparedData,
    dataset_records,
    file_sha256,
    prepare,
)
from analytics.journal import JournalWriter
from analytics.profile import Profile, forecast_records, profile_store
from analytics.schema import DimModel
from analytics.store import open_store, read_header
from analytics.warehouse import LoadReport, load, publish
from flows.calibration import calibrated_cost
from flows.request import RunRequest
from training.config import content_hash
from training.planning.cost import CostModel
from training.planning.forecast import FORECAST_RANKS
from training.planning.plan import make_plan, read_plan, write_plan

LOGGER = logging.getLogger("seqscale.steps")
MIN_FREE_BYTES = 256 * 2**20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def check_runs_dir(runs_dir: Path, source: Path | None = None) -> None:
    """Make the runs folder and see that a run will fit, before any work starts.

    source: the file to be read; its store takes about twice its size.
    Raises ConfigError when it cannot be written or is too full.
    """
    try:
        (runs_dir / ".work").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs_dir / ".work") as file:
            file.write(b"written to see whether it can be")
        free_bytes = shutil.disk_usage(runs_dir).free
    except OSError as error:
        raise ConfigError(_unwritable(runs_dir, error)) from error
    needed_bytes = MIN_FREE_BYTES + (3 * source.stat().st_size if source is not None else 0)
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"{runs_dir}: {free_bytes / 2**20:.0f} MiB are free, but a run needs about "
            f"{needed_bytes / 2**20:.0f} MiB. Free some space, or choose another place with "
            "--runs-dir."
        )


@contextlib.contextmanager
def writing_under(runs_dir: Path) -> Iterator[None]:
    """Say of a full or read-only disk what a user can do, as ConfigError."""
    try:
        yield
    except OSError as error:
        if error.errno in (*_NO_SPACE, errno.EROFS, errno.EACCES, errno.EPERM):
            raise ConfigError(_unwritable(runs_dir, error)) from error
        raise


def check_source(request: RunRequest) -> Path:
    """The file to read.

    Raises InputError when there is none.
    """
    source = Path(request.interactions)
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise InputError(
            f"{source} {what}; give a CSV or Parquet file of interactions with --interactions."
        )
    return source


def prepare_key(request: RunRequest) -> str:
    """Names a prepared set: the file's content and every rule by which it is read."""
    source = check_source(request)
    rules: list[str | int | None] = [request.user_column, request.item_column, request.time_column]
    rules += [request.terms, request.config.min_history, request.config.model.max_history]
    rules += [request.drop_unparsable_times]
    rules += [source.suffix, request.dataset_name or source.name, file_sha256(source)]
    return content_hash(json.dumps(rules))[:32]


def prepared_path(request: RunRequest) -> Path:
    """Where the answer of an earlier, equal preparation lies, if there was one."""
    return request.work / "prepared" / f"{prepare_key(request)}.json"


def is_prepared(request: RunRequest) -> bool:
    """Whether an equal preparation was made before and its store is still whole."""
    return _read_prepared(prepared_path(request)) is not None


def prepare_step(request: RunRequest) -> PreparedData:
    """Interactions to sequences; a store that is already there is taken again.

    Raises InputError for a file that cannot be used.
    """
    path = prepared_path(request)
    found = _read_prepared(path)
    if found is not None:
        return found
    columns = InteractionColumns(
        user=request.user_column, item=request.item_column, time=request.time_column
    )
    prepared = prepare(
        check_source(request),
        request.work / "stores",
        columns=columns,
        min_history=request.config.min_history,
        max_history=request.config.model.max_history,
        dataset_name=request.dataset_name,
        terms=request.terms,
        drop_unparsable_times=request.drop_unparsable_times,
    )
    write_json(path, dataclasses.asdict(prepared))
    return prepared


def check_ranks(request: RunRequest, prepared: PreparedData) -> None:
    """Raise PlanError when there are fewer users than ranks."""
    train = request.config.train
    make_plan(
        open_store(Path(prepared.store_dir)).training_lengths(),
        CostModel(t_step_s=0.0, c0_s=1.0, a_s=0.0, b_s=0.0, source="equal"),
        (),
        num_ranks=request.config.num_ranks,
        batch_sequences=train.global_batch_sequences,
        num_epochs=1,
        seed=train.seed,
    )


def profile_step(request: RunRequest, prepared: PreparedData) -> Profile:
    """What the data looks like and what balance would be worth, on this model's cost.

    Raises LaunchError when the calibration fails.
    """
    train = request.config.train
    LOGGER.info("profile: lengths, items, and the cost of a sequence on this host")
    return profile_store(
        open_store(Path(prepared.store_dir)),
        calibrated_cost(request.config, request.work),
        price=request.price,
        sequences_per_rank=request.sequences_per_rank,
        global_batch_sequences=train.global_batch_sequences,
        ranks=FORECAST_RANKS,
        seed=train.seed,
        num_negatives=train.num_negatives,
    )


def plan_key(request: RunRequest, prepared: PreparedData, cost: CostModel) -> str:
    """Names a plan: the sequences, the cost model, and what the batches depend on."""
    train = request.config.train
    parts = {
        "dataset_id": prepared.dataset_id,
        "cost": dataclasses.asdict(cost),
        "arms": [dataclasses.asdict(arm) for arm in request.config.arms],
        "num_ranks": request.config.num_ranks,
        "batch_sequences": train.global_batch_sequences,
        "num_epochs": train.num_epochs,
        "seed": train.seed,
        "max_length": request.config.model.max_length,
    }
    return content_hash(json.dumps(parts, sort_keys=True))[:32]


def plan_dir(request: RunRequest, prepared: PreparedData, cost: CostModel) -> Path:
    """Where the plan lies, once it is made."""
    return request.work / "plans" / plan_key(request, prepared, cost)


def is_planned(request: RunRequest, prepared: PreparedData, cost: CostModel) -> bool:
    """Whether an equal plan was made before and can be read."""
    try:
        read_plan(plan_dir(request, prepared, cost))
    except PlanError:
        return False
    return True


def plan_step(request: RunRequest, prepared: PreparedData, cost: CostModel) -> Path:
    """Place every global batch for every arm; the folder of the plan.

    Raises PlanError when there are fewer users than ranks.
    """
    folder = plan_dir(request, prepared, cost)
    if is_planned(request, prepared, cost):
        return folder
    store, train = open_store(Path(prepared.store_dir)), request.config.train
    LOGGER.info("plan: %d epochs for %d ranks", train.num_epochs, request.config.num_ranks)
    plan = make_plan(
        store.training_lengths().clip(max=request.config.model.max_trained_events),
        cost,
        request.config.arms,
        num_ranks=request.config.num_ranks,
        batch_sequences=train.global_batch_sequences,
        num_epochs=train.num_epochs,
        seed=train.seed,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        write_plan(plan, aside)
        if folder.exists() and not is_planned(request, prepared, cost):
            shutil.rmtree(folder)  # an unreadable one
        aside.rename(folder)
    except OSError:
        if not is_planned(request, prepared, cost):  # else another run was faster with the same
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def record_inputs(request: RunRequest, prepared: PreparedData, profile: Profile) -> None:
    """Write what this start read, what it costs and what was forecast into the flow's journal."""
    price = dataclasses.replace(request.price, pipeline_id=request.pipeline_id)
    forecasts = forecast_records(
        profile, pipeline_id=request.pipeline_id, dataset_id=prepared.dataset_id
    )
    with JournalWriter(request.journal_dir, "flow") as journal:
        for record in (*dataset_records(prepared), price, *forecasts):
            journal.write(record)


def record_models(request: RunRequest, models: list[DimModel]) -> None:
    """Write where the runs stand in MLflow into the flow's journal."""
    with JournalWriter(request.journal_dir, "flow-models") as journal:
        for model in models:
            journal.write(model)


def load_step(request: RunRequest) -> LoadReport:
    """The journals of this start into the working warehouse; twice changes nothing."""
    LOGGER.info("load: journals into the warehouse")
    report = load(request.runs, [request.pipeline_id])
    if report.num_torn_lines:
        LOGGER.info("load: %d half-written last lines were skipped", report.num_torn_lines)
    return report


def publish_step(request: RunRequest) -> Path:
    """The read-only warehouse that everybody else opens."""
    return publish(request.runs)


def export_step(request: RunRequest) -> ExportReport:
    """Every table and the efficiency view as CSV, with a manifest."""
    LOGGER.info("export: tables as CSV")
    return export(request.runs)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file aside and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(path)


def _read_prepared(path: Path) -> PreparedData | None:
    try:
        prepared = PreparedData(**json.loads(path.read_text(encoding="utf-8")))
        read_header(Path(prepared.store_dir))
    except (OSError, ValueError, TypeError, StoreError):
        return None  # never made, by another version, or its store was deleted: prepare again
    return prepared


def _unwritable(runs_dir: Path, error: OSError) -> str:
    what = "is full" if error.errno in _NO_SPACE else "cannot be written"
    return (
        f"{error.filename or runs_dir} {what} ({error.strerror}). Nothing half-written is taken "
        "for whole. Free some space or mend the permissions, or choose another place with "
        "--runs-dir."
    )
