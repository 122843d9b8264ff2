"""Measures what sequences cost on this host: `python -m training.calibrate ... --out COST.json`.

Times forward and backward of the configured model, in its precision, as a rank runs it, for single
long and for several short sequences, so that the cost of a step, of a sequence, of an event and of
an event pair can be told apart. The least of a few repeats: on the CPU of one thread's CPU time,
which other load does not distort; on a GPU of the time between two events of its stream.

Before: a run's model configuration.   After: training/planning/cost.py fits, the plan places.
Price: about three seconds and the import of torch; the flow caches the result by host and model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from training.config import ModelConfig, RunConfig, from_json
from training.jagged import JaggedBatch
from training.model import SASRec, autocast_for
from training.planning.cost import CostModel, fit_cost_model
from training.randomness import kept_scale

_CPU = torch.device("cpu")
_REPEATS = 3
_MOST_EVENTS = 1500  # of the batches of several sequences; keeps a calibration short


def synthetic_batch(
    model: SASRec, lengths: tuple[int, ...], num_negatives: int, num_rows: int
) -> JaggedBatch:
    """A batch with random rows; cost does not depend on which."""
    total = sum(lengths)
    generator = torch.Generator().manual_seed(total)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randint(num_rows, shape, generator=generator)

    keep = None
    if model.config.dropout > 0:
        shape = (model.num_dropout_sites, total, model.config.embedding_dim)
        keep = torch.rand(shape, generator=generator) > model.config.dropout
    return JaggedBatch(
        lengths=lengths,
        inputs_N=rows(total),
        targets_N=rows(total),
        negatives_BK=rows(len(lengths), num_negatives),
        keep_SND=keep,
    )


def step_s(
    model: SASRec,
    batch: JaggedBatch,
    num_rows: int,
    *,
    device: torch.device = _CPU,
    precision: str = "fp32",
) -> float:
    """Least time of a forward and backward pass over a few repeats [s].

    The model must be on `device`; the batch is moved there before the clock starts.
    """
    scale = kept_scale(model.config.dropout)
    batch = batch.to(device)
    rows_UD = torch.ones(num_rows, model.config.embedding_dim, device=device, requires_grad=True)

    def step() -> None:
        rows_UD.grad = None
        with autocast_for(precision, device):
            loss = model.loss_sum(rows_UD, batch, scale)
        loss.backward()  # type: ignore[no-untyped-call]

    measure = _cuda_s if device.type == "cuda" else _cpu_s
    return min(measure(step) for _ in range(_REPEATS))


def _cpu_s(step: Callable[[], None]) -> float:
    """CPU time of this process [s]."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def _cuda_s(step: Callable[[], None]) -> float:
    """Time on the current stream, launches included when they are what it waits for [s]."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def batches_to_time(lengths: list[int]) -> list[tuple[int, ...]]:
    """Each length alone, and as many of it together as stay under the event limit."""
    together = [(n,) * min(16, _MOST_EVENTS // n) for n in lengths if _MOST_EVENTS // n > 1]
    return [(n,) for n in lengths] + together


def calibrate(
    config: RunConfig, lengths: list[int], num_items: int, device: torch.device = _CPU
) -> CostModel:
    """Fit the cost model of this host to the measured times of `lengths` [events].

    Raises ValueError when the lengths give fewer than four batches, ConfigError when the configured
    attention is not available on the device.
    """
    torch.set_num_threads(1)
    model_config: ModelConfig = config.model
    model = SASRec(model_config).to(device)
    capped = sorted({min(max(n, 1), model_config.max_length) for n in lengths})
    shapes = batches_to_time(capped)
    num_rows = min(num_items, 4096)

    def time_of(shape: tuple[int, ...]) -> float:
        batch = synthetic_batch(model, shape, config.train.num_negatives, num_rows)
        return step_s(model, batch, num_rows, device=device, precision=config.train.precision)

    time_of(shapes[0])  # warm
    times = [time_of(shape) for shape in shapes]
    return fit_cost_model(
        [len(shape) for shape in shapes],
        [sum(shape) for shape in shapes],
        [sum(n * n for n in shape) for shape in shapes],
        times,
        source=f"calibrated on {platform.node()}, {_where(device)}, {len(shapes)} batches",
    )


def _where(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "one thread"


@record
def main() -> None:
    """Calibrate and write the coefficients aside, then rename."""
    parser = argparse.ArgumentParser(prog="python -m training.calibrate")
    parser.add_argument("--config", type=Path, required=True, help="RunConfig as JSON")
    parser.add_argument("--lengths", required=True, help="training lengths, comma separated")
    parser.add_argument("--num-items", type=int, required=True)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for the time on a GPU")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    config = from_json(RunConfig, given.config.read_text(encoding="utf-8"))
    lengths = [int(part) for part in given.lengths.split(",")]
    cost = calibrate(config, lengths, given.num_items, torch.device(given.device))
    aside = given.out.with_name(given.out.name + ".part")
    aside.write_text(json.dumps(dataclasses.asdict(cost)), encoding="utf-8")
    aside.replace(given.out)


if __name__ == "__main__":
    main()
