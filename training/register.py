"""Writes a pipeline into MLflow and registers its balanced arm: `python -m training.register`.

Before: ranks trained and evaluated; their journals and parameters lie in the attempt's folder.
After: an MLflow parent run with a child run for each arm, left RUNNING for flows/tracking.py, which
adds the efficiency figures; the model `seqscale` with the alias `challenger`.
Price: about 10 s, most of them MLflow's import and a fresh database; metrics go in batches of
1,000, because a single one takes 10 ms.

The model is this project's own code (training/serving.py) with safetensors beside it. It can be
loaded with MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shutil
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
from torch.distributed.elastic.multiprocessing.errors import record

from analytics.journal import read_journal
from analytics.schema import FactEvaluation, FactStep
from training.config import TrainJob, read_job, to_json

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow looks while it is imported
import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array

EXPERIMENT = "seqscale"
MODEL_NAME = "seqscale"
ALIAS = "challenger"
REGISTERED_ARM = "balanced"
BATCH_METRICS = 1000  # MLflow's own limit for one call
_PARENT_TAG = "mlflow.parentRunId"
_ROOT = Path(__file__).resolve().parent.parent
# what serving.py needs, and no more; the copy makes the model independent of an installed seqscale
_CODE = (
    "analytics/__init__.py",
    "analytics/errors.py",
    "training/__init__.py",
    "training/config.py",
    "training/model.py",
    "training/parameters.py",
    "training/randomness.py",
    "training/embeddings",
)


def register(job: TrainJob, runs_dir: Path) -> dict[str, Any]:
    """Write the runs, log and register the model; where each of them stands, as plain values."""
    mlflow.set_tracking_uri(f"sqlite:///{runs_dir / 'mlflow.db'}")
    client = MlflowClient()
    experiment_id = _experiment(client, runs_dir)
    mlflow.set_experiment(experiment_id=experiment_id)  # a logged model asks for the active one
    parent = client.create_run(experiment_id, run_name=job.pipeline_id)
    parent_id = parent.info.run_id
    client.log_batch(parent_id, params=_params(job), tags=_tags(job))
    steps = read_journal(job.journal_dir, FactStep).records
    evaluations = read_journal(job.journal_dir, FactEvaluation).records
    run_ids: dict[str, str] = {}
    try:
        for arm in job.config.arms:
            run_id = job.run_id(arm.name)
            tags = {_PARENT_TAG: parent_id}
            child = client.create_run(experiment_id, run_name=run_id, tags=tags)
            run_ids[arm.name] = child.info.run_id
            own = [Param("arm", arm.name), Param("placement", arm.placement)]
            own += [Param("schedule", arm.schedule)]
            client.log_batch(child.info.run_id, params=_params(job) + own, tags=_tags(job))
            metrics = loss_metrics(steps, run_id) + quality_metrics(evaluations, run_id)
            for start in range(0, len(metrics), BATCH_METRICS):
                client.log_batch(child.info.run_id, metrics=metrics[start : start + BATCH_METRICS])
        arm_name = REGISTERED_ARM if REGISTERED_ARM in run_ids else job.config.arms[-1].name
        version = _log_model(client, job, arm_name, run_ids[arm_name])
    except BaseException:
        for failed_id in (*run_ids.values(), parent_id):  # nobody else knows of them yet
            client.set_terminated(failed_id, status="FAILED")
        raise
    return {
        "mlflow_parent_run_id": parent_id,
        "arms": run_ids,
        "model_name": MODEL_NAME,
        "model_version": version,
        "model_alias": ALIAS,
        "registered_arm": arm_name,
    }


def loss_metrics(steps: list[FactStep], run_id: str) -> list[Metric]:
    """The loss of each step: sum of loss_sum / sum of num_targets over its ranks."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for step in steps:
        if step.run_id == run_id and step.loss_sum is not None and step.num_targets is not None:
            total = sums[step.step]
            total[0] += step.loss_sum
            total[1] += step.num_targets
            total[2] = max(total[2], step.started_unix_ns + step.window_s * 1e9)
    return [
        Metric("loss", loss / targets, int(ended_ns / 1e6), step)
        for step, (loss, targets, ended_ns) in sorted(sums.items())
        if targets
    ]


def quality_metrics(evaluations: list[FactEvaluation], run_id: str) -> list[Metric]:
    """The quality of each ranker on each split, such as `test/model/ndcg_at_10`."""
    now_ms, metrics = int(time.time() * 1000), {}
    for found in evaluations:  # a repeated evaluation replaces the one before
        if found.run_id == run_id:
            for name in ("hr_at_10", "ndcg_at_10", "mrr", "num_cold_targets"):
                key = f"{found.split}/{found.ranker}/{name}"
                metrics[key] = Metric(key, float(getattr(found, name)), now_ms, 0)
    return list(metrics.values())


def _experiment(client: MlflowClient, runs_dir: Path) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    location = (runs_dir / "mlartifacts").as_uri()
    return str(client.create_experiment(EXPERIMENT, artifact_location=location))


def _params(job: TrainJob) -> list[Param]:
    """Every setting of the run by its dotted name."""
    config = dataclasses.asdict(job.config)
    arms = config.pop("arms")
    flat = {name: value for name, value in config.items() if not isinstance(value, dict)}
    for part in ("model", "train"):
        flat |= {f"{part}.{name}": value for name, value in config[part].items()}
    flat |= {"arms": ",".join(arm["name"] for arm in arms), "dataset_id": job.dataset_id}
    flat |= {"instance_type": job.instance_type, "device_hour_cost": job.device_hour_cost}
    flat |= {"currency": job.currency, "config_sha256": job.config.sha256()}
    return [Param(name, str(value)) for name, value in flat.items()]


def _tags(job: TrainJob) -> list[RunTag]:
    tags = {"pipeline_id": job.pipeline_id, "attempt": str(job.attempt)}
    return [RunTag(name, value) for name, value in tags.items()]


def _log_model(client: MlflowClient, job: TrainJob, arm: str, mlflow_run_id: str) -> str:
    """Log one arm's model to its run and register it; the version."""
    with tempfile.TemporaryDirectory(dir=job.attempt_dir) as folder:
        files = _model_files(job, arm, Path(folder))
        # what pyfunc.log_model calls; only here a run can be named without making it the active one
        info = Model.log(
            artifact_path=None,
            name="model",
            flavor=mlflow.pyfunc,
            python_model=str(Path(__file__).with_name("serving.py")),
            artifacts={name: str(path) for name, path in files.items()},
            code_paths=_code_copy(Path(folder) / "code"),
            signature=model_signature(),
            pip_requirements=_requirements(),
            run_id=mlflow_run_id,
        )
    if not any(model.name == MODEL_NAME for model in client.search_registered_models()):
        client.create_registered_model(MODEL_NAME)
    version = client.create_model_version(
        MODEL_NAME, source=info.model_uri, run_id=mlflow_run_id, model_id=info.model_id
    )
    client.set_registered_model_alias(MODEL_NAME, ALIAS, version.version)
    return str(version.version)


def model_signature() -> ModelSignature:
    """Histories of item ids in, the best next items and their scores out."""
    return ModelSignature(
        inputs=Schema([ColSpec(Array(DataType.string), "history")]),
        outputs=Schema(
            [ColSpec(Array(DataType.string), "items"), ColSpec(Array(DataType.double), "scores")]
        ),
        params=ParamSchema([ParamSpec("k", DataType.long, 10)]),
    )


def _model_files(job: TrainJob, arm: str, folder: Path) -> dict[str, Path]:
    """Parameters, item ids in the order of item_index, and the model's configuration."""
    items = pd.read_parquet(Path(job.store_dir) / "item_map.parquet").sort_values("item_index")
    items_path, config_path = folder / "items.json", folder / "config.json"
    items_path.write_text(json.dumps(items["item_id"].astype(str).tolist()), encoding="utf-8")
    config_path.write_text(to_json(job.config.model), encoding="utf-8")
    return {"parameters": job.parameters_path(arm), "items": items_path, "config": config_path}


def _code_copy(folder: Path) -> list[str]:
    """The few modules that serving needs, copied; what MLflow takes as code paths."""
    for name in _CODE:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (_ROOT / name).is_dir():
            shutil.copytree(_ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(_ROOT / name, target)
    return [str(path) for path in sorted(folder.iterdir())]


def _requirements() -> list[str]:
    """What serving imports, at the versions of this installation."""
    names = ("mlflow", "numpy", "pandas", "safetensors", "torch")
    # 2.13.0+cpu is a build, not a version that an index serves
    versions = {name: importlib.metadata.version(name).split("+")[0] for name in names}
    return [f"{name}=={version}" for name, version in versions.items()]


@record
def main() -> None:
    """Register the job named on the command line and write where its runs stand."""
    parser = argparse.ArgumentParser(prog="python -m training.register")
    parser.add_argument("--job", type=Path, required=True, help="job file written by the flow")
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out = register(read_job(arguments.job), arguments.runs_dir.resolve())
    aside = arguments.out.with_name(arguments.out.name + ".part")
    aside.write_text(json.dumps(out, indent=2) + "\n", encoding="utf-8")
    aside.replace(arguments.out)


if __name__ == "__main__":
    main()
