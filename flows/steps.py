"""The steps before and after training, each a plain function that needs no Prefect.

Before: flows/request.py says what is asked.   After: flows/pipeline.py makes a task of each; the
three that start ranks or children are in flows/training_steps.py.
Price: prepare and plan find their own earlier work again by content hash, so a second call is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from analytics.errors import ConfigError, InputError, PlanError, StoreError
from analytics.export import ExportReport, export
from analytics.interactions import PreparedData, dataset_records, num_bytes, prepare
from analytics.journal import JournalWriter
from analytics.memory import shape_of
from analytics.prepared import prepared_of
from analytics.profile import Profile, profile_records, profile_store
from analytics.pseudonyms import PseudonymKey, load_key
from analytics.schema import DimModel
from analytics.sources.scan import source_sha256
from analytics.store import HEADER_NAME, open_store, read_header
from analytics.warehouse import LoadReport, load, publish
from flows.calibration import calibrated_cost
from flows.private import close_files, private_folder, write_json
from flows.request import RunRequest
from training.config import content_hash
from training.planning.cost import CostModel
from training.planning.forecast import FORECAST_RANKS
from training.planning.plan import make_plan, make_run_plan, read_plan, write_plan

LOGGER = logging.getLogger("seqscale.steps")
MIN_FREE_BYTES = 256 * 2**20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_ANOTHER_PLACE = "choose another place with --runs-dir"


def check_runs_dir(runs_dir: Path, source: str | None = None) -> None:
    """Make the runs folder and see that a run will fit, before any work starts.

    source: what is to be read; its store and the work on it take about three times its size.
    Raises ConfigError when it cannot be written or is too full.
    """
    try:
        private_folder(runs_dir / ".work")
        with tempfile.TemporaryFile(dir=runs_dir / ".work") as file:
            file.write(b"written to see whether it can be")
        free_bytes = shutil.disk_usage(runs_dir).free
    except OSError as error:
        raise ConfigError(_unwritable(runs_dir, error, _ANOTHER_PLACE)) from error
    reads = source is not None and not is_store(source)
    needed_bytes = MIN_FREE_BYTES + (3 * num_bytes([source]) if reads and source else 0)
    if free_bytes < needed_bytes:
        raise ConfigError(
            f"{runs_dir}: {free_bytes / 2**20:.0f} MiB are free, but a run needs about "
            f"{needed_bytes / 2**20:.0f} MiB. Free some space, or {_ANOTHER_PLACE}."
        )


@contextlib.contextmanager
def writing_under(place: Path, *, otherwise: str = _ANOTHER_PLACE) -> Iterator[None]:
    """Say of a full or read-only disk what a user can do, as ConfigError.

    otherwise: how another place is chosen, in words.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (*_NO_SPACE, errno.EROFS, errno.EACCES, errno.EPERM):
            raise ConfigError(_unwritable(place, error, otherwise)) from error
        raise


def check_source(request: RunRequest) -> str:
    """The file, folder or pattern to read.

    Raises InputError when a plain path leads nowhere.
    """
    source = request.interactions
    is_pattern = any(mark in source for mark in "*?[") or ".zip:" in source
    if not is_pattern and not Path(source).exists():
        raise InputError(
            f"{source} does not exist; give a file, a folder or a pattern of interactions with "
            "--interactions."
        )
    return source


def is_store(path: str | Path) -> bool:
    """Whether a folder is a sequence store."""
    return (Path(path) / HEADER_NAME).is_file()


def check_for_store(source: Path | str, given: Sequence[str]) -> None:
    """Raise ConfigError when a sequence store comes with options that only files can follow."""
    if given and is_store(source):
        raise ConfigError(
            f"{', '.join(given)}: {source} is a sequence store, which was read and split when it "
            "was prepared. Leave these options out, or give the files it was made from."
        )


def pseudonym_key(request: RunRequest) -> PseudonymKey | None:
    """The key of this start's pseudonyms; one is made where there was none. None: ids are kept.

    Raises ConfigError when the key cannot be read or made.
    """
    if request.keep_user_ids or is_store(request.interactions):
        return None
    found = load_key()
    if found.is_new:
        LOGGER.info("pseudonyms: a key was made in %s; keep it, and keep it safe", found.key.where)
    return found.key


def prepare_key(request: RunRequest, key: PseudonymKey | None) -> str:
    """Names a prepared set: the files' content and every rule by which they are read."""
    parts = [check_source(request)]
    if is_store(parts[0]):
        return content_hash(read_header(Path(parts[0])).content_sha256)[:32]
    if request.split_files is not None:
        parts += [request.split_files.validation, request.split_files.test]
    keep_days = request.preparation.keep_days
    rules = {
        "reading": dataclasses.asdict(request.reading),
        "preparation": request.preparation.plain(),
        "naming": dataclasses.asdict(request.naming),
        "names": [Path(part).name for part in parts],
        "hashes": [source_sha256(part) for part in parts],
        "key_id": None if key is None else key.key_id,
        # retention moves on with the days
        "day": None if keep_days is None else f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }
    return content_hash(json.dumps(rules, sort_keys=True))[:32]


def prepared_path(request: RunRequest, key: PseudonymKey | None) -> Path:
    """Where the answer of an earlier, equal preparation lies, if there was one."""
    return request.work / "prepared" / f"{prepare_key(request, key)}.json"


def is_prepared(request: RunRequest) -> bool:
    """Whether an equal preparation was made before and its store is still whole."""
    if is_store(request.interactions):
        return False  # it is only opened, and may have been appended to
    return _read_prepared(prepared_path(request, pseudonym_key(request))) is not None


def prepare_step(request: RunRequest) -> PreparedData:
    """Interactions to sequences; a store that is already there is taken again.

    Raises InputError for a file that cannot be used.
    """
    if is_store(request.interactions):
        LOGGER.info("prepare: %s is a sequence store and taken as it is", request.interactions)
        return prepared_of(open_store(Path(request.interactions)))
    key = pseudonym_key(request)
    path = prepared_path(request, key)
    found = _read_prepared(path)
    if found is not None:
        return found
    private_folder(request.work)
    prepared = prepare(
        check_source(request),
        request.work / "stores",
        reading=request.reading,
        preparation=request.preparation,
        key=key,
        naming=request.naming,
        split_files=request.split_files,
    )
    if key is not None:
        LOGGER.info("prepare: user ids became pseudonyms under the key of %s", key.where)
    for line in preparation_lines(prepared):
        LOGGER.info("prepare: %s", line)
    write_json(path, dataclasses.asdict(prepared))
    return prepared


def preparation_lines(prepared: PreparedData) -> list[str]:
    """How each file was read, and what a person should know of it."""
    lines = []
    for decision in prepared.decisions:
        lines.append(", ".join(f"{name} {value}" for name, value in decision.items()))
    return lines + [f"WARNING: {warning}" for warning in prepared.warnings]


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
        shape=shape_of(request.config.model),
        max_trained_events=request.config.model.max_trained_events,
        min_group_users=request.min_group_users,
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
        "lookahead_batches": train.lookahead_batches,
        "split_giants": train.split_giants,
        "max_tokens_per_rank": train.max_tokens_per_rank,
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
    plan = make_run_plan(store.training_lengths(), cost, request.config)
    private_folder(request.work)
    private_folder(folder.parent)
    aside = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        write_plan(plan, aside)
        close_files(aside)
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
    dataset = dataset_records(prepared, min_group_users=request.min_group_users)
    profiled = profile_records(
        profile, pipeline_id=request.pipeline_id, dataset_id=prepared.dataset_id
    )
    with JournalWriter(request.journal_dir, "flow") as journal:
        for record in (*dataset, price, *profiled):
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


def _read_prepared(path: Path) -> PreparedData | None:
    try:
        prepared = PreparedData(**json.loads(path.read_text(encoding="utf-8")))
        read_header(Path(prepared.store_dir))
    except (OSError, ValueError, TypeError, StoreError):
        return None  # never made, by another version, or its store was deleted: prepare again
    return prepared


def _unwritable(place: Path, error: OSError, otherwise: str) -> str:
    what = "is full" if error.errno in _NO_SPACE else "cannot be written"
    return (
        f"{error.filename or place} {what} ({error.strerror}). Nothing half-written is taken "
        f"for whole. Free some space or mend the permissions, or {otherwise}."
    )
