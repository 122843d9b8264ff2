"""A figure with the bound it must keep, as the parts of gpu_check.py give it, and their clock."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of the table."""

    what: str
    value: float | None  # None: could not be had, see note
    unit: str
    at_most: float | None = None  # None: told, not judged
    note: str = ""

    @property
    def verdict(self) -> str:
        """ok or FAILED by its bound; told without one, absent without a value."""
        if self.value is None:
            return "absent"
        if self.at_most is None:
            return "told"
        return "ok" if self.value <= self.at_most else "FAILED"

    def as_json(self) -> dict[str, Any]:
        """For the report: every field and the verdict."""
        return dataclasses.asdict(self) | {"verdict": self.verdict}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What a part found."""

    figures: list[Figure]
    curves: dict[str, list[float]] = dataclasses.field(default_factory=dict)


def settle(device: torch.device) -> None:
    """Wait until the device has done everything it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_s(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of the work, until the device is done with it [s]."""
    settle(device)
    begin = time.perf_counter()
    work()
    settle(device)
    return time.perf_counter() - begin


def interleaved_medians(
    works: Mapping[str, Callable[[], float]], num_repeats: int
) -> dict[str, float]:
    """Median of what each returns, all taking turns, so that a drift of the machine meets all."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(num_repeats):
        for name, work in works.items():
            found[name].append(work())
    return {name: statistics.median(values) for name, values in found.items()}
