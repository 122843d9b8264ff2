"""Sorts the events of a trace into columns, piece by piece.

Before: events.py gives a piece.   After: reading.py joins the columns.
Price: a dictionary look-up or two for each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analytics.kineto.events import Piece
from analytics.kineto.kernels import COMMUNICATION, COPY, kernel_class
from analytics.kineto.marks import Mark, bytes_told, what_it_marks
from analytics.kineto.times import TextNeededError, is_time, to_ns

DEVICE, LAUNCH, OPERATOR, NOTE, UNUSED = "device", "launch", "operator", "note", "unused"
_COPY = "copy"
_KIND = {
    "kernel": DEVICE, "gpu_memcpy": _COPY, "memcpy": _COPY, "gpu_memset": _COPY, "memset": _COPY,
    "cpu_op": OPERATOR, "operator": OPERATOR, "trace": UNUSED, "cuda_sync": UNUSED,
    "gpu_user_annotation": UNUSED, "overhead": UNUSED,
}  # fmt: skip
_TOLD = (
    "Collective name", "Process Group Name", "Process Group Ranks", "Group size",
    "In msg nelems", "dtype", "Seq",
)  # fmt: skip
_COLUMNS = {
    DEVICE: (
        "start", "end", "name_id", "its_class", "stream", "device", "correlation", "blocks",
        "occupancy",
    ),
    LAUNCH: ("start", "end", "correlation", "thread"),
    OPERATOR: ("start", "end"),
}  # fmt: skip
_NUMBERS: frozenset[Any] = frozenset({int, float})
_LARGEST = 2**52


class Collected:
    """The columns of a trace so far."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.told: dict[int, dict[str, Any]] = {}
        self.marks: list[Mark] = []
        self.rejects: list[tuple[int, str, str]] = []
        self.num_read = self.num_timed = self.num_clamped = 0
        self.first_ns, self.last_ns = 2**63 - 1, -(2**63)
        self._kinds: dict[str, str] = {}
        self._ids: dict[tuple[str, str], tuple[int, int]] = {}
        self._marking: dict[str, tuple[str, str] | None] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._blocks: dict[str, list[np.ndarray]] = {kind: [] for kind in _COLUMNS}
        self._num_device = 0
        self._needs_text = False

    def add(self, piece: Piece) -> None:
        """Take in the events of a piece."""
        if not self._needs_text:
            try:
                self._add(piece.events)
                return
            except TextNeededError:
                self._needs_text = True
        self._add(piece.with_times_as_text())

    def joined(self, kind: str) -> dict[str, np.ndarray]:
        """The columns of device events or of launches."""
        names = _COLUMNS[kind]
        blocks = self._blocks[kind]
        table = np.concatenate(blocks) if blocks else np.empty((0, len(names)), np.int64)
        return {name: table[:, place] for place, name in enumerate(names)}

    def operators(self) -> np.ndarray:
        """Start and end of the host's operators, shape (N, 2)."""
        blocks = self._blocks[OPERATOR]
        return np.concatenate(blocks) if blocks else np.empty((0, 2), np.int64)

    def _add(self, events: Sequence[Any]) -> None:
        rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in (*_COLUMNS, NOTE)}
        told: list[dict[str, Any] | None] = []
        rejects: list[tuple[int, str, str]] = []
        for line, event in enumerate(events, self.num_read + 1):
            try:
                if event["ph"] != "X":
                    continue
                kind = self._kinds.get(event["cat"]) or self._kind(event["cat"])
                ts, dur = event["ts"], event["dur"]
                if not (
                    ts.__class__ in _NUMBERS
                    and dur.__class__ in _NUMBERS
                    and -_LARGEST < ts < _LARGEST
                    and -_LARGEST < dur < _LARGEST
                ) and not (is_time(ts) and is_time(dur)):
                    rejects.append((line, "bad_time", _shown(event)))
                elif kind is DEVICE or kind is _COPY:
                    row = self._device(event, kind)
                    rows[DEVICE].append((ts, dur, *row))
                    told.append(_told(event) if row[1] == COMMUNICATION else None)
                elif kind is LAUNCH:
                    args = event.get("args")
                    correlation = _whole(args.get("correlation")) if args.__class__ is dict else -1
                    rows[LAUNCH].append((ts, dur, correlation, self._thread(event)))
                elif kind is OPERATOR or kind is NOTE:
                    marking = self._mark(event["name"])
                    if marking is not None:
                        rows[NOTE].append((ts, dur, marking, event))
                    elif kind is OPERATOR:
                        rows[OPERATOR].append((ts, dur))
                    else:
                        rows[NOTE].append((ts, dur, None, None))
            except (KeyError, TypeError, AttributeError):
                if not isinstance(event, dict):
                    rejects.append((line, "not_an_event", _shown(event)))
                elif event.get("ph") == "X":
                    rejects.append((line, "incomplete", _shown(event)))
        self._keep(rows, told)
        self.rejects += rejects
        self.num_read += len(events)

    def _keep(
        self, rows: dict[str, list[tuple[Any, ...]]], told: list[dict[str, Any] | None]
    ) -> None:
        """Turn rows into arrays; nothing is kept when a time needs its text."""
        made = {kind: _table(found) for kind, found in rows.items() if found}
        for kind, (table, num_clamped) in made.items():
            self.num_clamped += num_clamped
            self.num_timed += len(table)
            self.first_ns = min(self.first_ns, int(table[:, 0].min()))
            self.last_ns = max(self.last_ns, int(table[:, 1].max()))
            if kind != NOTE:
                self._blocks[kind].append(table)
        for place, said in enumerate(told, self._num_device):
            if said is not None:
                self.told[place] = said
        self._num_device += len(told)
        if NOTE in made:
            self._keep_marks(rows[NOTE], made[NOTE][0])

    def _keep_marks(self, rows: list[tuple[Any, ...]], table: np.ndarray) -> None:
        for (_, _, marking, event), (start, end) in zip(rows, table.tolist(), strict=True):
            if marking is not None:
                args = event.get("args")
                args = args if isinstance(args, dict) else {}
                name = args.get("Collective name")
                if isinstance(name, str) and marking[1] == "other":
                    marking = what_it_marks(f"c10d:{name}") or marking
                group = args.get("Process Group Name")
                self.marks.append(
                    Mark(
                        what=marking[0],
                        label=marking[1],
                        start_ns=start,
                        end_ns=end,
                        thread=self._thread(event),
                        sent_bytes=bytes_told(args),
                        group=group if isinstance(group, str) else None,
                    )
                )

    def _kind(self, category: str) -> str:
        name = category.lower()
        kind = _KIND.get(name) or (LAUNCH if name.endswith(("runtime", "driver")) else NOTE)
        self._kinds[category] = kind
        return kind

    def _device(self, event: dict[str, Any], kind: str) -> tuple[int, ...]:
        """What ran on the device: the columns after start and end."""
        name = event["name"]
        found = self._ids.get((kind, name))
        if found is None:
            if not isinstance(name, str):
                raise TypeError("a name is a text")
            found = len(self.names), COPY if kind is _COPY else kernel_class(name)
            self._ids[kind, name] = found
            self.names.append(name)
        args = event.get("args")
        if args.__class__ is not dict:
            return (*found, -1, -1, -1, -1, -1)
        stream = args.get("stream", event.get("tid"))
        return (
            *found, _whole(stream), _whole(args.get("device")), _whole(args.get("correlation")),
            _billionths(args.get("blocks per SM")),
            _billionths(args.get("est. achieved occupancy %")),
        )  # fmt: skip

    def _mark(self, name: str) -> tuple[str, str] | None:
        try:
            return self._marking[name]
        except KeyError:
            found = self._marking[name] = what_it_marks(name)
            return found

    def _thread(self, event: dict[str, Any]) -> int:
        # ids of old traces are texts or numbers
        key = (str(event.get("pid"))[:40], str(event.get("tid"))[:40])
        return self._threads.setdefault(key, len(self._threads))


def _table(rows: list[tuple[Any, ...]]) -> tuple[np.ndarray, int]:
    """(start, end and the whole numbers after them as int64, durations below 0)."""
    ts, dur, *others = zip(*rows, strict=True)
    start, length = to_ns(ts), to_ns(dur)
    num_clamped = int((length < 0).sum())
    columns = [start, start + np.maximum(length, 0)]
    columns += [np.array(column, np.int64) for column in others if column[0].__class__ is int]
    return np.stack(columns, axis=1), num_clamped


def _told(event: dict[str, Any]) -> dict[str, Any] | None:
    args = event.get("args")
    found = {key: args[key] for key in _TOLD if key in args} if isinstance(args, dict) else {}
    return found or None


def _whole(value: object) -> int:
    """A whole number of an event, also as text such as 'stream 7'; -1 where there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -1 <= value < 2**62 else -1
    if isinstance(value, str):
        digits = value.rpartition(" ")[2]
        return int(digits) if digits.isdecimal() and len(digits) < 18 else -1
    return -1


def _billionths(value: object) -> int:
    """A figure of a kernel in billionths, a whole number as all columns are; -1 when untold."""
    if value.__class__ in _NUMBERS and 0 <= value < 2**31:  # type: ignore[operator]
        return round(value * 1_000_000_000)  # type: ignore[operator]
    return -1


def _shown(event: object) -> str:
    """The start of an event as a reject keeps it."""
    try:
        return str(event)[:200]
    except RecursionError:
        return f"{type(event).__name__}, nested too deep to be shown"
