"""The cost model of this model on this host, measured once by a child process and kept.

Before: `python -m training.calibrate` measures.   After: profile and plan.
Price: about ten seconds, most of them torch's import; nothing when the cache has it. The head start
lets it run beside Prefect's start and the preparation of the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from analytics.errors import LaunchError, SeqscaleError
from analytics.hosts import cpu_name
from analytics.locks import held
from flows.private import private_folder
from infra.launchers.local import run_child
from training.config import RunConfig, content_hash, to_json
from training.planning.cost import CostModel

# about ten, from a newcomer's history to a long one, so that constant, slope and square all show
LENGTHS = (8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
NUM_ITEMS = 10_000  # rows of the table that is calibrated with; a row costs the same in any table
TIMEOUT_S = 900.0


class _StoppedError(Exception):
    """The head start is no longer wanted."""


def calibrated_cost(
    config: RunConfig, work_dir: Path, *, stop: threading.Event | None = None
) -> CostModel:
    """The cost model for this model configuration and this host, measured unless it is cached.

    work_dir: `DIR/.work`; of two callers at once the second waits for what the first measures.
    stop: when set by another thread, the measuring child is ended.
    Raises LaunchError when the child fails.
    """
    folder = private_folder(work_dir / "cost")
    path = folder / f"{cost_key(config)}.json"
    lock_path = path.with_suffix(".lock")

    def late() -> LaunchError:
        return LaunchError(
            f"{lock_path}: another run has been calibrating for {TIMEOUT_S:g} s. Look into "
            f"{path.with_suffix('.log')}, end that run, and run again."
        )

    with held(lock_path, timeout_s=TIMEOUT_S + 60, late=late, on_wait=_stopping(stop)):
        cached = _read(path)
        if cached is None:
            _measure(config, path, stop)
            cached = _read(path)
    if cached is None:
        raise LaunchError(
            f"{path}: the calibration wrote no cost model; its log is {path.with_suffix('.log')}. "
            "Delete both and run again."
        )
    return cached


def cost_key(config: RunConfig) -> str:
    """Names what a calibration depends on: model, precision, lengths, negatives, and the device."""
    parts: dict[str, Any] = {
        "model": dataclasses.asdict(config.model),
        "num_negatives": config.train.num_negatives,
        "precision": config.train.precision,
        "lengths": LENGTHS,
        "num_items": NUM_ITEMS,
        "host": f"{os.cpu_count()} x {cpu_name()}",
        "device": config.train.device,
    }
    if config.train.device == "cuda":
        parts["gpus"] = host_gpus()
    return content_hash(json.dumps(parts, sort_keys=True))[:16]


def host_gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The models of this host's NVIDIA GPUs as its driver tells them; empty where it does not."""
    told = []
    for path in sorted(root.glob("*/information")):
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith("Model:"):
                    told.append(line.split(":", 1)[1].strip())
    return told


@contextlib.contextmanager
def head_start(config: RunConfig, work_dir: Path) -> Iterator[None]:
    """Calibrate in the background while the block runs; its end ends the child as well.

    A failure is not told here: whoever needs the cost model measures again and then hears of it.
    """
    stop = threading.Event()

    def measure() -> None:
        with contextlib.suppress(SeqscaleError, OSError, _StoppedError):
            calibrated_cost(config, work_dir, stop=stop)

    thread = threading.Thread(target=measure, name="calibration", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=30)


def _read(path: Path) -> CostModel | None:
    try:
        return CostModel(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # absent, or written by another version: it is measured again


def _stopping(stop: threading.Event | None) -> Callable[[], None]:
    """A check that raises once `stop` is set."""

    def check() -> None:
        if stop is not None and stop.is_set():
            raise _StoppedError

    return check


def _measure(config: RunConfig, path: Path, stop: threading.Event | None) -> None:
    config_path, out_path = path.with_suffix(".config.json"), path.with_suffix(".part.json")
    config_path.write_text(to_json(config), encoding="utf-8")
    lengths = [n for n in LENGTHS if n <= config.model.max_length] or [config.model.max_length]
    command = [sys.executable, "-m", "training.calibrate", "--config", str(config_path)]
    command += ["--lengths", ",".join(str(n) for n in lengths), "--num-items", str(NUM_ITEMS)]
    command += ["--device", config.train.device, "--out", str(out_path)]

    log_path = path.with_suffix(".log")
    run_child(
        command,
        what="the calibration",
        log_path=log_path,
        timeout_s=TIMEOUT_S,
        on_poll=_stopping(stop),
    )
    out_path.replace(path)
    config_path.unlink(missing_ok=True)
