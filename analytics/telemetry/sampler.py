"""Samples what the host and its GPUs do, at low priority, until the run ends.

Run as `python -m analytics.telemetry.sampler`; one per host and attempt. It stops on SIGTERM or
when its parent is gone, and closes its journal, so the segment is whole.

Before: a run has started.   After: fact_device_sample in the journal; the warehouse loads it.
Price: niced to 19; its own CPU time stands in every record as `sampler_cpu_s`. One metric that
fails is NULL and never stops the others (a single unsupported NVML metric has silenced whole
monitors elsewhere); only GPUs that the run may see are sampled, not all of a shared host's.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import socket
import threading
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from analytics.journal import JournalWriter
from analytics.schema import FactDeviceSample

_LOWEST_PRIORITY = 19
# Values that drivers report for "no value": all are at or above this (2**47).
_BLANK = 140_737_488_355_328

Value = TypeVar("Value")


class CpuProbe:
    """The host's CPUs as one device."""

    def __init__(self) -> None:
        self._name = _cpu_name()
        psutil.cpu_percent(interval=None)  # the first call only sets the reference

    def read(self) -> dict[str, Any]:
        """The device's columns, use since the call before."""
        memory = psutil.virtual_memory()
        return {
            "device_id": "cpu",
            "device_name": self._name,
            "utilization_share": min(1.0, psutil.cpu_percent(interval=None) / 100),
            "memory_used_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
            "power_w": None,
        }


class GpuProbe:
    """One NVIDIA GPU through NVML."""

    def __init__(self, nvml: Any, handle: Any, device_id: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self._device_id = device_id
        self._name = _as_text(self._metric(nvml.nvmlDeviceGetName) or "unknown")

    def read(self) -> dict[str, Any]:
        """The device's columns; what NVML cannot tell is None."""
        rates = self._metric(self._nvml.nvmlDeviceGetUtilizationRates)
        memory = self._metric(self._nvml.nvmlDeviceGetMemoryInfo)
        milliwatts = in_range(self._metric(self._nvml.nvmlDeviceGetPowerUsage), _BLANK)
        percent = in_range(None if rates is None else int(rates.gpu), 100)
        return {
            "device_id": self._device_id,
            "device_name": self._name,
            "utilization_share": None if percent is None else percent / 100,
            "memory_used_bytes": in_range(None if memory is None else int(memory.used), _BLANK),
            "memory_total_bytes": in_range(None if memory is None else int(memory.total), _BLANK),
            "power_w": None if milliwatts is None else milliwatts / 1000,
        }

    def _metric(self, call: Callable[[Any], Value]) -> Value | None:
        try:
            return call(self._handle)
        except self._nvml.NVMLError:
            return None


def in_range(value: int | None, upper: int) -> int | None:
    """The value, or None when a driver reports a blank or nonsense (negative, above `upper`)."""
    return value if value is not None and 0 <= value <= upper and value < _BLANK else None


def visible_devices(setting: str | None, uuids: list[str]) -> list[int]:
    """Indices of the GPUs a run may see, from CUDA_VISIBLE_DEVICES and all UUIDs of the host.

    Unset means all; an unknown entry ends the list, as CUDA does it.
    """
    if setting is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        named = [i for i, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if entry.isdigit() and int(entry) < len(uuids):
            found.append(int(entry))
        elif len(named) == 1:
            found.append(named[0])
        else:
            break
    return found


def gpu_probes() -> list[GpuProbe]:
    """A probe for every visible NVIDIA GPU; none without the driver or its Python binding."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [_as_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError:
        return []
    visible = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
    return [GpuProbe(pynvml, handles[i], uuids[i]) for i in visible]


def sample_until(
    stop: threading.Event,
    writer: JournalWriter,
    probes: Iterable[CpuProbe | GpuProbe],
    *,
    pipeline_id: str,
    attempt: int,
    interval_s: float,
    is_orphan: Callable[[], bool],
) -> None:
    """Write one record per device and interval until told to stop or the parent is gone."""
    host = socket.gethostname()
    probes = list(probes)
    before = time.monotonic()
    while not stop.wait(interval_s) and not is_orphan():
        now = time.monotonic()
        for probe in probes:
            writer.write(
                FactDeviceSample(
                    pipeline_id=pipeline_id,
                    attempt=attempt,
                    host=host,
                    sampled_unix_ns=time.time_ns(),
                    interval_s=now - before,
                    sampler_cpu_s=time.process_time(),
                    **probe.read(),
                )
            )
        before = now


def main(arguments: list[str] | None = None) -> None:
    """The sampler's process."""
    parent = os.getppid()
    options = _parse(arguments)
    os.nice(_LOWEST_PRIORITY)
    stop = threading.Event()

    def on_signal(number: int, frame: types.FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    with JournalWriter(options.journal, f"sampler-{socket.gethostname()}") as writer:
        sample_until(
            stop,
            writer,
            [CpuProbe(), *gpu_probes()],
            pipeline_id=options.pipeline_id,
            attempt=options.attempt,
            interval_s=options.interval_s,
            is_orphan=lambda: os.getppid() != parent,
        )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analytics.telemetry.sampler")
    parser.add_argument("--journal", type=Path, required=True, help="the attempt's journal folder")
    parser.add_argument("--pipeline-id", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds between samples")
    options = parser.parse_args(arguments)
    if not options.interval_s >= 0.05:
        parser.error(f"--interval-s is {options.interval_s:g}; the least is 0.05")
    return options


def _cpu_name() -> str:
    """The CPU's model as Linux tells it, or the machine's architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
