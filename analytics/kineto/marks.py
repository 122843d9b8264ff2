"""What the host marked in a trace that matters here: steps, waits for data, collectives.

Before: collecting.py meets a name for the first time.   After: windows and collectives use them.
Price: a few searches for each distinct name.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from analytics.kineto.kernels import collective_kind

STEP, DATA, COLLECTIVE = "step", "data", "collective"
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})")
# PyTorch marks the loop's own call of next(batch) by the first; with stacks, by the second
_DATA = re.compile(r"enumerate\(DataLoader\)#|dataloader\.py\(\d+\): __next__")
_COLLECTIVE = re.compile(r"(?:nccl|rccl|gloo|mpi|ucc|c10d):|record_param_comms$")
_BYTES = {
    "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "half": 2, "bfloat16": 2,
    "c10::half": 2, "c10::bfloat16": 2, "unsigned char": 1, "signed char": 1, "byte": 1,
    "char": 1, "bool": 1, "short": 2, "short int": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float32": 4, "float64": 8, "float16": 2, "int32": 4, "int64": 8, "int8": 1, "uint8": 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mark:
    """A stretch that the host marked."""

    what: str  # STEP, DATA or COLLECTIVE
    label: str  # number of a step; kind of a collective
    start_ns: int
    end_ns: int
    thread: int
    sent_bytes: int | None = None
    group: str | None = None


@functools.lru_cache(1 << 14)
def what_it_marks(name: str) -> tuple[str, str] | None:
    """(what, label) of a name that marks something, else None."""
    step = _STEP.match(name)
    if step:
        return STEP, step.group(1)
    if _DATA.search(name):
        return DATA, ""
    if _COLLECTIVE.match(name):
        return COLLECTIVE, collective_kind(name)
    return None


def bytes_told(args: Mapping[str, Any]) -> int | None:
    """Bytes that a collective's arguments say it sends; None when they do not."""
    elements, kind = args.get("In msg nelems"), args.get("dtype")
    if isinstance(elements, int) and isinstance(kind, str):
        return _product([elements], kind)
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(kinds, list) or len(dims) != len(kinds):
        return None
    told = [
        _product(shape, kind)
        for shape, kind in zip(dims, kinds, strict=True)
        if isinstance(shape, list) and shape and isinstance(kind, str)
    ]
    return sum(size for size in told if size is not None) if told and None not in told else None


def _product(shape: list[Any], kind: str) -> int | None:
    size = _BYTES.get(kind.lower())
    if size is None or not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape[:8]):
        return None
    total = math.prod(shape[:8]) * size
    return total if total < 2**62 and len(shape) <= 8 else None
