"""One start of the pipeline from end to end: checks, the head start, Prefect's server, the flow.

Before: flows/cli.py has made a request.   After: flows/pipeline.py runs the tasks.
What can be found wrong at once is found before anything is started. Then three slow things run side
by side: Prefect's server comes up, the cost model is calibrated, the data is prepared.
Price: the server, 8 to 20 s, is the longest of the three.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import shutil
import time
from collections.abc import Iterator
from typing import Any

from analytics.errors import ConfigError, LaunchError
from flows.calibration import head_start
from flows.request import RunRequest, check_free, claim
from flows.server import api_server, drain
from flows.settings import set_environment
from flows.spans import spanned, write_span
from flows.steps import check_ranks, check_runs_dir, check_source, prepare_step, writing_under
from training.config import to_json

LOGGER = logging.getLogger("seqscale.run")
NEEDED = {"torch": "training", "psutil": "telemetry", "prefect": "flows", "mlflow": "flows"}


def require(modules: dict[str, str], command: str) -> None:
    """Raise ConfigError naming the extras that a command lacks; nothing is imported."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"'seqscale {command}' needs {', '.join(missing)}, not part of the base install. "
            f"Install the rest: pip install 'seqscale[all]' (or only "
            f"'seqscale[{','.join(sorted({modules[name] for name in missing}))}]')."
        )


def run(request: RunRequest) -> dict[str, Any]:
    """Run the whole pipeline; the receipt.

    Raises a SeqscaleError for whatever a user, a file or the machine causes.
    """
    require(NEEDED, "run")
    check_free(request)
    check_runs_dir(request.runs, check_source(request))
    set_environment(request.runs)
    with writing_under(request.runs), _prepared(request) as ready:
        LOGGER.info("flow: waiting for Prefect's server and the calibration of this host")
        with spanned(request, "start_up", "Prefect's server"):
            from flows.pipeline import pipeline  # imports Prefect while its server comes up

            ready()
        LOGGER.info("flow: %s, everything it makes is in %s", request.pipeline_id, request.runs)
        try:
            named = pipeline.with_options(flow_run_name=request.pipeline_id)
            receipt: dict[str, Any] = named(json.loads(to_json(request)))
        except TimeoutError as error:
            raise LaunchError(
                f"A step of {request.pipeline_id} did not end within its time-out ({error}). Look "
                f"into {request.pipeline_dir} for its logs, and run again."
            ) from error
        finally:
            drain()
    return receipt


@contextlib.contextmanager
def _prepared(request: RunRequest) -> Iterator[Any]:
    """Everything that runs beside the preparation; its folder is claimed once the data is good."""
    began_ns = time.time_ns()
    with api_server(request.runs) as ready, head_start(request.config, request.work):
        LOGGER.info("prepare: %s", request.interactions)
        prepared = prepare_step(request)
        check_ranks(request, prepared)
        LOGGER.info(
            "prepare: %s, %d users, %d items, %d of %d rows kept",
            prepared.dataset_name,
            prepared.num_users,
            prepared.num_items,
            prepared.num_rows_kept,
            prepared.num_rows_read,
        )
        is_ours = True
        try:  # begins before the folder is made: a signal may come right after
            try:
                claim(request)
            except ConfigError:  # it is another start's
                is_ours = False
                raise
            write_span(request, "data", "interactions read and prepared", began_ns)
            yield ready
        finally:
            if is_ours:
                _discard_if_empty(request)


def _discard_if_empty(request: RunRequest) -> None:
    """Remove the folder of a start that failed before it trained: there is nothing in it."""
    if not any(request.pipeline_dir.glob("attempt-*")):
        shutil.rmtree(request.pipeline_dir, ignore_errors=True)
