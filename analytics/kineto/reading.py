"""Takes a trace apart into arrays: what ran on the device, what launched it, what the host marked.

All times are whole nanoseconds on the trace's own clock; `base_unix_ns` added to one makes it UTC.
Categories of before are read like today's (Kernel, Memcpy, Memset, Runtime, Operator), AMD's like
NVIDIA's. `cuda_sync` is a host waiting, not a kernel. An event that is broken is refused with a
reason and its place; all others are used, counted or known to be of no use here.

Before: events.py gives the events.   After: breakdown.py, parts.py and collectives.py measure.
Price: one look at every event, and about 60 bytes for each that is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from analytics.errors import InputError
from analytics.kineto import files
from analytics.kineto.collecting import DEVICE, Collected
from analytics.kineto.events import pieces
from analytics.kineto.json_text import parse
from analytics.kineto.marks import Mark

_MOST_NS, _YEAR_NS = 2**62, 365.25 * 86400e9  # 146 years
_RANK = re.compile(r"(?:rank|worker|trainer)[-_]?(\d+)", re.IGNORECASE)
_LOOK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's trace. Device events are sorted by their start."""

    name: str
    rank: int | None  # NULL when neither the trace nor its name tells it
    world_size: int | None
    backend: str | None
    groups: dict[str, list[int]]  # ranks of each process group that the trace tells
    base_unix_ns: int
    device_names: tuple[str, ...]  # of every device of the host, by index
    names: tuple[str, ...]  # of kernels and copies
    spans: np.ndarray  # int64 (N, 2), start and end of each device event [ns]
    name_id: np.ndarray  # place in names
    its_class: np.ndarray  # kernels.COMPUTE, COMMUNICATION or COPY
    stream: np.ndarray  # -1 where untold
    device: np.ndarray  # index of the device, -1 where untold
    correlation: np.ndarray  # joins a kernel and its launch, -1 where untold
    blocks: np.ndarray  # of a kernel for each SM [1e-9], -1 where untold
    occupancy: np.ndarray  # estimated, achieved [1e-9 %], -1 where untold
    told: dict[int, dict[str, Any]]  # of device events by place: what collectives tell
    launch_correlation: np.ndarray
    launch_ns: np.ndarray  # start of the call on the host [ns]
    launch_thread: np.ndarray  # place in threads
    marks: tuple[Mark, ...]  # steps, waits for data, collectives on the host, by start
    operators: np.ndarray  # int64 (N, 2), operators on the host [ns]
    first_ns: int  # earliest start of anything in the trace
    last_ns: int  # latest end
    num_read: int
    rejects: tuple[tuple[int, str, str], ...]  # (event from 1, reason, text)
    num_clamped: int  # durations below 0 that were taken as 0

    @property
    def has_device(self) -> bool:
        """Whether anything ran on a device."""
        return len(self.spans) > 0

    def of_class(self, its_class: int) -> np.ndarray:
        """Start and end of the device events of one class."""
        spans: np.ndarray = self.spans[self.its_class == its_class]
        return spans


def read(path: Path, *, max_bytes: int = files.MAX_BYTES) -> Iterator[Trace]:
    """The traces in a file: one, or one for each JSON file of a tar.

    Raises InputError naming the file and what is wrong with it.
    """
    is_found = False
    for source in files.sources(path, max_bytes=max_bytes):
        is_found = True
        yield read_source(source)
    if not is_found:
        raise InputError(f"{path.name}: the archive holds no .json file. Name one that does.")


def read_source(source: files.Source) -> Trace:
    """The trace that these bytes are.

    Raises InputError naming it when it is none, or holds no event with a time.
    """
    about: dict[str, Any] = {}
    collected = Collected()
    with files.guarded(source.name), _no_collector():
        for piece in pieces(source.blocks, source.name, about):
            try:
                collected.add(piece)
            except orjson.JSONDecodeError as error:
                raise InputError(
                    f"{source.name}: the JSON of an event soon after the first "
                    f"{collected.num_read:,} is broken ({error}). Copy the file again, or write "
                    "it again with prof.export_chrome_trace."
                ) from error
    if not collected.num_timed:
        why = "its entries are no events" if collected.rejects else "there is no event with a time"
        raise InputError(
            f"{source.name}: {why}, so it is no trace of the PyTorch profiler. Name a file that "
            "prof.export_chrome_trace or tensorboard_trace_handler wrote."
        )
    return _trace(source.name, about, collected)


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python from looking for cycles in the events of a piece: JSON has none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def looks_like_trace(path: Path) -> bool:
    """Whether a file seems to be a trace of the profiler, by its first bytes.

    A tar is one when its first JSON file is. Never raises for what a file holds.
    """
    try:
        for source in files.sources(path, max_bytes=files.BLOCK_BYTES * 64):
            text = b""
            for block in source.blocks:
                text += block
                if b'"traceEvents"' in text:
                    return True
                if len(text) > _LOOK_BYTES:
                    break
            start = text.lstrip()[:64].replace(b" ", b"")
            return start.startswith(b"[{") and b'"ph"' in text[:4096] and b'"ts"' in text[:4096]
    except InputError:
        return False
    return False


def _trace(name: str, about: dict[str, Any], collected: Collected) -> Trace:
    device = collected.joined(DEVICE)
    base = about.get("baseTimeNanoseconds")
    base_unix_ns = base if isinstance(base, int) and 0 < base < 2**62 else 0
    _check_times(name, base_unix_ns, collected, device["end"] - device["start"])
    order = np.lexsort((device["end"], device["start"]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    launch = collected.joined("launch")
    info = _distributed_info(about.get("distributedInfo"), name)
    return Trace(
        name=name,
        rank=info["rank"] if info["rank"] is not None else _rank_of_name(name),
        world_size=info["world_size"],
        backend=info["backend"] if isinstance(info.get("backend"), str) else None,
        groups=_groups(info),
        base_unix_ns=base_unix_ns,
        device_names=_device_names(about.get("deviceProperties")),
        names=tuple(collected.names),
        spans=np.stack([device["start"], device["end"]], axis=1)[order],
        name_id=device["name_id"][order],
        its_class=device["its_class"][order],
        stream=device["stream"][order],
        device=device["device"][order],
        correlation=device["correlation"][order],
        blocks=device["blocks"][order],
        occupancy=device["occupancy"][order],
        told={int(place[row]): told for row, told in collected.told.items()},
        launch_correlation=launch["correlation"],
        launch_ns=launch["start"],
        launch_thread=launch["thread"],
        marks=tuple(sorted(collected.marks, key=lambda mark: (mark.start_ns, -mark.end_ns))),
        operators=collected.operators(),
        first_ns=collected.first_ns,
        last_ns=collected.last_ns,
        num_read=collected.num_read,
        rejects=tuple(collected.rejects),
        num_clamped=collected.num_clamped,
    )


def _check_times(name: str, base_unix_ns: int, collected: Collected, lengths: np.ndarray) -> None:
    """Raise InputError where 64 bits of nanoseconds would not hold a sum over the trace's times."""
    first, last = base_unix_ns + collected.first_ns, base_unix_ns + collected.last_ns
    device_ns = float(lengths.sum(dtype=np.float64))
    if first > -_MOST_NS and max(last, last - first, device_ns) < _MOST_NS:
        return
    raise InputError(
        f"{name}: its events begin {first / _YEAR_NS:.0f} and end {last / _YEAR_NS:.0f} years "
        f"after 1970, and its kernels last {device_ns / _YEAR_NS:.0f} years in all, which cannot "
        "be. Look for a `ts`, a `dur` or a `baseTimeNanoseconds` that is too large."
    )


def _distributed_info(told: object, name: str) -> dict[str, Any]:
    """What a trace tells of its job; rank and world_size are checked, None when untold.

    Raises InputError when one of them cannot be: taken for untold, the trace would be of rank 0.
    """
    info: dict[str, Any] = {"rank": None, "world_size": None}
    if told is not None:
        if not isinstance(told, dict):
            raise _impossible(name, "distributedInfo", told, "an object with rank and world_size")
        info |= told
    for key, least in (("rank", 0), ("world_size", 1)):
        if info[key] is not None:
            whole = _whole(info[key], least=least)
            if whole is None:
                expected = f"a whole number from {least} to {2**31 - 1}"
                raise _impossible(name, f"{key} of distributedInfo", info[key], expected)
            info[key] = whole
    if None not in (info["rank"], info["world_size"]) and info["rank"] >= info["world_size"]:
        expected = f"less than its world_size, {info['world_size']}"
        raise _impossible(name, "rank of distributedInfo", info["rank"], expected)
    return info


def _impossible(name: str, what: str, value: object, expected: str) -> InputError:
    return InputError(
        f"{name}: the trace's {what} is {str(value)[:60]!r}; expected {expected}. Mend it, or take "
        "distributedInfo out of the trace and name the file rank-N.json."
    )


def _rank_of_name(name: str) -> int | None:
    found = _RANK.search(name.rsplit(":", 1)[-1])
    return int(found.group(1)) if found and len(found.group(1)) < 8 else None


def _whole(value: object, *, least: int) -> int | None:
    """A whole number that a trace tells, or None when it tells none that can be."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31:
        return value
    return None


def _groups(info: dict[str, Any]) -> dict[str, list[int]]:
    """Process group -> its ranks, of the groups whose ranks are told."""
    found: dict[str, list[int]] = {}
    config = info.get("pg_config")
    for group in config if isinstance(config, list) else []:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            try:
                ranks = parse(ranks.encode())
            except ValueError:
                continue
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) and ranks:
            found[str(group.get("pg_name"))] = ranks
    return found


def _device_names(properties: object) -> tuple[str, ...]:
    if not isinstance(properties, list):
        return ()
    return tuple(
        str(device.get("name", "")) if isinstance(device, dict) else "" for device in properties
    )
