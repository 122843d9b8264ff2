"""MLflow as seen from the flow: the efficiency figures, and how each run ended.

Before: `python -m training.register` made the runs; the warehouse has the figures.   After: whoever
reads MLflow's pages.
Price: importing MLflow takes 4 to 9 s, so warm() is for a thread beside the registration. One
process at a time writes to the store: the registration has ended before anything here writes.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analytics.schema import DimModel

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOGGER = logging.getLogger("seqscale.tracking")


def tracking_uri(runs_dir: Path) -> str:
    """The address of the runs folder's own MLflow store."""
    return f"sqlite:///{runs_dir.resolve() / 'mlflow.db'}"


def warm() -> threading.Thread:
    """Import MLflow in a thread; joining it is up to the caller."""
    thread = threading.Thread(target=_client_class, name="mlflow import", daemon=True)
    thread.start()
    return thread


def log_efficiency(runs_dir: Path, models: list[DimModel], rows: list[dict[str, Any]]) -> None:
    """Log the figures of `run_efficiency` to each arm's run, and end all runs as FINISHED.

    rows: the view's rows; what is not a number, or not measured, is left out.
    """
    from mlflow.entities import Metric

    client, by_run = _client(runs_dir), {row["run_id"]: row for row in rows}
    now_ms = int(time.time() * 1000)
    for model in models:
        figures = efficiency_figures(by_run.get(model.run_id, {}))
        metrics = [Metric(f"efficiency/{k}", v, now_ms, 0) for k, v in figures.items()]
        client.log_batch(model.mlflow_run_id, metrics=metrics)
    _terminate(client, models, "FINISHED")


def efficiency_figures(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of one row of run_efficiency, by name."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and not name.endswith("_unix_ns")
    }


def mark_failed(runs_dir: Path, models: list[DimModel]) -> None:
    """End the runs of a pipeline that failed after its registration as FAILED."""
    if models:
        _terminate(_client(runs_dir), models, "FAILED")


def _terminate(client: MlflowClient, models: list[DimModel], status: str) -> None:
    run_ids = [model.mlflow_run_id for model in models]
    for run_id in (*run_ids, *{model.mlflow_parent_run_id for model in models}):
        client.set_terminated(run_id, status=status)


def _client(runs_dir: Path) -> MlflowClient:
    return _client_class()(tracking_uri=tracking_uri(runs_dir))


def _client_class() -> type[MlflowClient]:
    from mlflow import MlflowClient

    return MlflowClient
