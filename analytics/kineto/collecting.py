"""Sorts the events of a trace into columns, piece by piece.

Before: events.py gives a piece.   After: reading.py joins the columns.
Price: a dictionary look-up or two for each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from analytics.kineto.arguments import (
    DEVICE_COLUMNS,
    args_of,
    device_columns,
    told_by_collective,
    whole,
)
from analytics.kineto.events import Piece
from analytics.kineto.kernels import COMMUNICATION, COPY, kernel_class
from analytics.kineto.lines import Lines, parsed_heads
from analytics.kineto.marks import Mark, bytes_told, what_it_marks
from analytics.kineto.times import TextNeededError, is_time, to_ns

DEVICE, LAUNCH, OPERATOR, NOTE, UNUSED = "device", "launch", "operator", "note", "unused"
_COPY = "copy"
_KIND = {
    "kernel": DEVICE, "gpu_memcpy": _COPY, "memcpy": _COPY, "gpu_memset": _COPY, "memset": _COPY,
    "cpu_op": OPERATOR, "operator": OPERATOR, "trace": UNUSED, "cuda_sync": UNUSED,
    "gpu_user_annotation": UNUSED, "overhead": UNUSED,
}  # fmt: skip
_COLUMNS = {
    DEVICE: ("start", "end", "name_id", "its_class", *DEVICE_COLUMNS),
    LAUNCH: ("start", "end", "correlation", "thread"),
    OPERATOR: ("start", "end"),
}  # fmt: skip
_NUMBERS: frozenset[Any] = frozenset({int, float})
_LARGEST = 2**52
_MOST_HEADS = 1 << 16  # a trace of stacks may have a name for each line of a program


class _Head(NamedTuple):
    """What the first line of an event tells."""

    event: dict[str, Any]  # name, pid and tid
    thread: int
    marking: tuple[str, str] | None


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
        self._heads: dict[bytes, _Head] = {}
        self._blocks: dict[str, list[np.ndarray]] = {kind: [] for kind in _COLUMNS}
        self._num_device = 0
        self._needs_text = False

    def add(self, piece: Piece) -> None:
        """Take in the events of a piece.

        Raises ValueError when an event whose lines were found is broken inside.
        """
        if piece.lines is not None:
            self._add_lines(piece.lines)
            return
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
        device: list[dict[str, Any]] = []
        kinds: list[str] = []
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
                    if not isinstance(event["name"], str):
                        raise TypeError("a name is a text")
                    rows[DEVICE].append((ts, dur))
                    device.append(event)
                    kinds.append(kind)
                elif kind is LAUNCH:
                    correlation = whole(args_of(event).get("correlation"))
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
        made = {kind: _table(found) for kind, found in rows.items() if found}
        tables = {kind: table for kind, (table, _) in made.items()}
        columns, told = self._device_columns(kinds, device)
        if device:
            tables[DEVICE] = np.concatenate([tables[DEVICE], columns], axis=1)
        self._keep(tables, told, [row[2:] for row in rows[NOTE]])
        self.num_clamped += sum(num_clamped for _, num_clamped in made.values())
        self.rejects += rejects
        self.num_read += len(events)

    def _add_lines(self, found: Lines) -> None:
        """The same from lines: what no figure needs is not parsed."""
        if len(self._heads) > _MOST_HEADS:
            self._heads.clear()
        places: dict[str, list[np.ndarray]] = {
            kind: [] for kind in (*_COLUMNS, _COPY, NOTE, UNUSED)
        }
        for category, which in found.categories:
            places[self._kinds.get(category) or self._kind(category)].append(which)
        of = {kind: _sorted(which) for kind, which in places.items()}
        marked = {kind: self._marked(found, of[kind]) for kind in (NOTE, OPERATOR)}
        both = _sorted(list(marked.values()))
        is_marked = _mask(found, both)
        unmarked = {kind: of[kind][~is_marked[of[kind]]] for kind in marked}
        device, told = self._device_rows(found, of[DEVICE], of[_COPY])
        tables = {
            DEVICE: device,
            LAUNCH: self._launch_rows(found, of[LAUNCH]),
            OPERATOR: found.spans[unmarked[OPERATOR]],
            NOTE: found.spans[np.concatenate([both, unmarked[NOTE]])],
        }
        notes = self._notes(found, both)
        self._keep({kind: table for kind, table in tables.items() if len(table)}, told, notes)
        self.num_read += found.num_events

    def _device_rows(
        self, found: Lines, kernels: np.ndarray, copies: np.ndarray
    ) -> tuple[np.ndarray, list[dict[str, Any] | None]]:
        """(the table of what ran on the device, what its collectives tell)."""
        which = _sorted([kernels, copies])
        is_copy = _mask(found, copies)[which].tolist()
        kinds = [_COPY if copy else DEVICE for copy in is_copy]
        heads = self._heads_of(found, which)
        events = [
            head.event | event for head, event in zip(heads, found.others(which), strict=True)
        ]
        columns, told = self._device_columns(kinds, events)
        return np.concatenate([found.spans[which], columns], axis=1), told

    def _launch_rows(self, found: Lines, which: np.ndarray) -> np.ndarray:
        correlations = found.whole_numbers("correlation", which)
        if correlations is None:
            told = [args_of(event).get("correlation") for event in found.others(which)]
            correlations = list(map(whole, told))
        threads = [head.thread for head in self._heads_of(found, which)]
        return np.concatenate(
            [found.spans[which], np.array([correlations, threads], np.int64).T], axis=1
        )

    def _heads_of(self, found: Lines, which: np.ndarray) -> list[_Head]:
        """Name and thread of events, each text parsed once."""
        texts = found.heads(which)
        self._learned(texts)
        return [self._heads[text] for text in texts]

    def _learned(self, texts: list[bytes]) -> dict[bytes, None]:
        """The distinct ones of these texts; all of them are known then."""
        distinct = dict.fromkeys(texts)
        new = [text for text in distinct if text not in self._heads]
        for text, event in zip(new, parsed_heads(new), strict=True):
            self._heads[text] = _Head(event, self._thread(event), self._mark(event["name"]))
        return distinct

    def _marked(self, found: Lines, which: np.ndarray) -> np.ndarray:
        """Those whose name marks something."""
        texts = found.heads(which)
        marking = {text for text in self._learned(texts) if self._heads[text].marking is not None}
        if not marking:
            return which[:0]
        marked: np.ndarray = which[np.array([text in marking for text in texts], bool)]
        return marked

    def _notes(self, found: Lines, which: np.ndarray) -> list[tuple[Any, ...]]:
        heads = self._heads_of(found, which)
        return [
            (head.marking, head.event | event)
            for head, event in zip(heads, found.others(which), strict=True)
        ]

    def _keep(
        self,
        tables: dict[str, np.ndarray],
        told: list[dict[str, Any] | None],
        notes: list[tuple[Any, ...]],
    ) -> None:
        """Keep the tables of a piece.

        notes: of the first rows of the table of notes, what each marks and its event.
        """
        for kind, table in tables.items():
            self.num_timed += len(table)
            self.first_ns = min(self.first_ns, int(table[:, 0].min()))
            self.last_ns = max(self.last_ns, int(table[:, 1].max()))
            if kind != NOTE:
                self._blocks[kind].append(table)
        for place, said in enumerate(told, self._num_device):
            if said is not None:
                self.told[place] = said
        self._num_device += len(told)
        if notes:
            self._keep_marks(notes, tables[NOTE][: len(notes)])

    def _keep_marks(self, notes: list[tuple[Any, ...]], table: np.ndarray) -> None:
        for (marking, event), (start, end) in zip(notes, table.tolist(), strict=True):
            if marking is not None:
                args = args_of(event)
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

    def _device_columns(
        self, kinds: list[str], events: list[dict[str, Any]]
    ) -> tuple[np.ndarray, list[dict[str, Any] | None]]:
        """(the columns of device events after start and end, what each collective tells)."""
        ids = []
        for kind, event in zip(kinds, events, strict=True):
            name = event["name"]
            found = self._ids.get((kind, name))
            if found is None:
                found = len(self.names), COPY if kind is _COPY else kernel_class(name)
                self._ids[kind, name] = found
                self.names.append(name)
            ids.append(found)
        told = [
            told_by_collective(event) if its_class == COMMUNICATION else None
            for event, (_, its_class) in zip(events, ids, strict=True)
        ]
        pairs = np.array(ids, np.int64).reshape(-1, 2)
        return np.concatenate([pairs, device_columns(events)], axis=1), told

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


def _sorted(places: list[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate([np.empty(0, np.int64), *places]))


def _mask(found: Lines, places: np.ndarray) -> np.ndarray:
    mask = np.zeros(len(found.spans), bool)
    mask[places] = True
    return mask


def _table(rows: list[tuple[Any, ...]]) -> tuple[np.ndarray, int]:
    """(start, end and the whole numbers after them as int64, durations below 0)."""
    ts, dur, *others = zip(*rows, strict=True)
    start, length = to_ns(ts), to_ns(dur)
    num_clamped = int((length < 0).sum())
    columns = [start, start + np.maximum(length, 0)]
    columns += [np.array(column, np.int64) for column in others if column[0].__class__ is int]
    return np.stack(columns, axis=1), num_clamped


def _shown(event: object) -> str:
    """The start of an event as a reject keeps it."""
    try:
        return str(event)[:200]
    except RecursionError:
        return f"{type(event).__name__}, nested too deep to be shown"
