"""What the arguments of a trace's events tell, one by one or as columns.

Before: collecting.py has sorted events by their kind.   After: its columns hold whole numbers.
Price: a look-up for each figure; columns are checked at once where all are of one kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DEVICE_COLUMNS = ("stream", "device", "correlation", "blocks", "occupancy")
_TOLD = (
    "Collective name", "Process Group Name", "Process Group Ranks", "Group size",
    "In msg nelems", "dtype", "Seq",
)  # fmt: skip
_NUMBERS: frozenset[Any] = frozenset({int, float})
_UNTOLD: dict[str, Any] = {}


def device_columns(events: list[dict[str, Any]]) -> np.ndarray:
    """DEVICE_COLUMNS of what ran on a device, shape (N, 5); -1 where untold."""
    args = [args_of(event) for event in events]
    streams = [
        None if said is _UNTOLD else said.get("stream", event.get("tid"))
        for said, event in zip(args, events, strict=True)
    ]
    columns = [_wholes(streams)]
    columns += [_wholes([said.get(key) for said in args]) for key in ("device", "correlation")]
    columns += [
        _billionths([said.get(key) for said in args])
        for key in ("blocks per SM", "est. achieved occupancy %")
    ]
    return np.stack(columns, axis=1)


def told_by_collective(event: dict[str, Any]) -> dict[str, Any] | None:
    """What a collective's kernel tells of it; None when nothing."""
    args = args_of(event)
    return {key: args[key] for key in _TOLD if key in args} or None


def args_of(event: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an event, none where they are no object."""
    args = event.get("args")
    return args if isinstance(args, dict) else _UNTOLD


def whole(value: object) -> int:
    """A whole number of an event, also as text such as 'stream 7'; -1 where there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -1 <= value < 2**62 else -1
    if isinstance(value, str):
        digits = value.rpartition(" ")[2]
        return int(digits) if digits.isdecimal() and len(digits) < 18 else -1
    return -1


def _wholes(values: list[Any]) -> np.ndarray:
    """The same of many."""
    if set(map(type, values)) <= {int} and (not values or -1 <= min(values) <= max(values) < 2**62):
        return np.array(values, np.int64)
    return np.array([whole(value) for value in values], np.int64)


def _billionths(values: list[Any]) -> np.ndarray:
    """Figures of kernels in billionths, whole numbers as all columns are; -1 where untold."""
    known = [
        value if value.__class__ in _NUMBERS and 0 <= value < 2**31 else -1e-9 for value in values
    ]
    return np.rint(np.array(known, np.float64) * 1e9).astype(np.int64)
