"""The schedules against each other on a GPU that two ranks share, tensors by way of the host.

The program is that of bench/gpu_check.py, which tries larger sizes; on a CPU it runs in
tests/bench/test_schedules_on_device.py.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from training.config import TABLE_OPTIMIZERS

PROGRAM = Path(__file__).parents[2] / "bench" / "schedules_on_device.py"
NUM_SCHEDULES = 4  # `synchronous` once more among them


def differences(rank: int, world_size: int, init_method: str, device: str) -> dict[str, float]:
    """What the bench's program finds on this device."""
    spec = importlib.util.spec_from_file_location(PROGRAM.stem, PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = program  # where its dataclasses look for their module
    spec.loader.exec_module(program)
    found: dict[str, float] = program.differences(
        rank, world_size, init_method, torch.device(device), True
    )
    return found


@pytest.mark.gpu
def test_every_schedule_and_optimizer_equals_synchronous_on_a_gpu(on_ranks: Any) -> None:
    for found in on_ranks(differences, 2, "cuda:0"):
        assert len(found) == NUM_SCHEDULES * len(TABLE_OPTIMIZERS)
        assert set(found.values()) == {0.0}, found
