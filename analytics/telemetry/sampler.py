"""Samples what the host and its GPUs do, at low priority, until the run ends.

Run as `python -m analytics.telemetry.sampler`; one per host and attempt. It stops on SIGTERM or
when its parent is gone, and closes its journal, so the segment is whole.

Before: a run has started.   After: fact_device_sample in the journal; the warehouse loads it.
Price: niced to 19; its own CPU time stands in every record as `sampler_cpu_s`. A device that tells
nothing, as after its driver was unloaded, has no sample then, and the others go on; only devices
that the run was given are sampled (devices.py).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from analytics.hosts import host_name
from analytics.journal import JournalWriter
from analytics.schema import FactDeviceSample
from analytics.telemetry.devices import devices_here, open_nvml
from analytics.telemetry.host_probe import HostProbe
from analytics.telemetry.nvml import GpuProbe, driver_versions

logger = logging.getLogger(__name__)

SOURCE_KIND = "sampler"
_LOWEST_PRIORITY = 19


class Probe(Protocol):
    """One device that is sampled."""

    def read(self, now_s: float) -> dict[str, Any] | None:
        """Columns of fact_device_sample; None when the device tells nothing."""

    def close(self) -> None:
        """End the reading."""


def gpu_probes(nvml: Any | None, most: int | None = None) -> list[GpuProbe]:
    """A probe for every NVIDIA device that the run was given.

    nvml: as devices.open_nvml gives it; most: how many of them the run uses; None: all.
    """
    if nvml is None:
        return []
    collector = driver_versions(nvml)
    return [GpuProbe(nvml, device, collector) for device in devices_here(nvml)[:most]]


def sample_until(
    stop: threading.Event,
    writer: JournalWriter,
    probes: Sequence[Probe],
    *,
    pipeline_id: str,
    attempt: int,
    interval_s: float,
    is_orphan: Callable[[], bool],
) -> None:
    """Write one record per device and interval until told to stop or the parent is gone."""
    host, silent = host_name(), set[int]()
    read_at = dict.fromkeys(range(len(probes)), time.monotonic())
    while not stop.wait(interval_s) and not is_orphan():
        records = []
        for place, probe in enumerate(probes):
            now_s, now_ns = time.monotonic(), time.time_ns()
            told = probe.read(now_s)
            _tell_silence(silent, place, told is None)
            if told is None:
                continue
            records.append(
                FactDeviceSample(
                    pipeline_id=pipeline_id,
                    attempt=attempt,
                    host=host,
                    sampled_unix_ns=now_ns,
                    interval_s=now_s - read_at[place],
                    sampler_cpu_s=time.process_time(),
                    source_kind=SOURCE_KIND,
                    ingested_unix_ns=time.time_ns(),
                    **told,
                )
            )
            read_at[place] = now_s
        writer.write_many(records)


def _tell_silence(silent: set[int], place: int, is_silent: bool) -> None:
    """One line when a device falls silent, and one when it is back."""
    if is_silent and place not in silent:
        silent.add(place)
        logger.warning("device %d tells nothing any more; it has no samples until it does", place)
    elif not is_silent and place in silent:
        silent.discard(place)
        logger.warning("device %d tells something again", place)


def main(arguments: list[str] | None = None) -> None:
    """The sampler's process."""
    parent = os.getppid()
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s sampler %(message)s")
    os.nice(_LOWEST_PRIORITY)
    stop = threading.Event()

    def on_signal(number: int, frame: types.FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    nvml = None if options.max_gpus == 0 else open_nvml()
    probes: list[Probe] = [HostProbe(time.monotonic()), *gpu_probes(nvml, options.max_gpus)]
    with JournalWriter(options.journal, f"sampler-{host_name()}") as writer:
        sample_until(
            stop,
            writer,
            probes,
            pipeline_id=options.pipeline_id,
            attempt=options.attempt,
            interval_s=options.interval_s,
            is_orphan=lambda: os.getppid() != parent,
        )
    for probe in probes:
        probe.close()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analytics.telemetry.sampler")
    parser.add_argument("--journal", type=Path, required=True, help="the attempt's journal folder")
    parser.add_argument("--pipeline-id", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--max-gpus", type=int, help="GPUs that the run uses; all it was given")
    options = parser.parse_args(arguments)
    if not options.interval_s >= 0.05:
        parser.error(f"--interval-s is {options.interval_s:g}; the least is 0.05")
    if options.max_gpus is not None and options.max_gpus < 0:
        parser.error(f"--max-gpus is {options.max_gpus}; it is 0 or more")
    return options


if __name__ == "__main__":
    main()
