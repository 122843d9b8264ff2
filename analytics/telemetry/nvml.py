"""Reads one NVIDIA GPU, or one MIG slice, through NVML, figure by figure.

One figure that fails is None and never stops the others: a single unsupported one has silenced
whole monitors elsewhere. What a device cannot tell is not asked again; what failed for once is.
Of a slice NVML tells memory and processes, and the performance counters (gpm.py) its activity;
utilisation it does not have, and power, energy and clocks are the whole GPU's, so they are None.

Before: devices.py says which.   After: fact_device_sample.
Price: about fifteen calls into the driver a reading; PCIe rates, where gpm.py cannot tell them,
take NVML 20 ms each to measure, which it sleeps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from analytics.telemetry.counters import Energy, Rate, in_range, share_of_percent
from analytics.telemetry.devices import Device, as_text
from analytics.telemetry.gpm import GpmReader

logger = logging.getLogger(__name__)

# Codes of NVMLError that asking again does not change.
_FOR_GOOD = (
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
_MOST_W = 10_000
_MOST_MHZ = 100_000
_MOST_C = 200
_MOST_BYTES_PER_S = 1e14
_ALL_LINKS = 0xFFFFFFFF  # the scope of a field that adds up all NVLinks
Row = dict[str, Any]


class Teller:
    """Asks NVML about one handle and remembers what it will never tell."""

    def __init__(self, nvml: Any, handle: Any, name: str) -> None:
        """name: the device's, for the log."""
        self._nvml = nvml
        self._handle = handle
        self._name = name
        self._never: set[tuple[Any, ...]] = set()
        self._codes = {getattr(nvml, code, None) for code in _FOR_GOOD} - {None}

    def ask(self, function: str, *arguments: Any) -> Any | None:
        """What a function of NVML says of the device; None when it does not."""
        key = (function, *arguments)
        if key in self._never:
            return None
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except Exception as error:  # bindings raise more than their own kind of error
            is_own = isinstance(error, self._nvml.NVMLError)
            if not is_own or getattr(error, "value", None) in self._codes:
                self._never.add(key)
                logger.info("%s does not tell %s: %s", self._name, function, error)
            return None

    def first(self, *calls: tuple[Any, ...]) -> Any | None:
        """What the first of several functions says that says anything."""
        return next((told for call in calls if (told := self.ask(*call)) is not None), None)


class GpuProbe:
    """One device that was given to the run."""

    def __init__(self, nvml: Any, device: Device, collector: str) -> None:
        """collector: the versions of driver and library, in words."""
        part = device.part
        handle = device.gpu.handle if part is None else part.handle
        self._nvml = nvml
        self._teller = Teller(nvml, handle, device.device_id)
        self._gpm = GpmReader.of(
            nvml, device.gpu.handle, None if part is None else part.gpu_instance_id
        )
        self._energy = Energy()
        self._links = {"sent": Rate(), "received": Rate()}
        self._is_whole = part is None
        name = self._teller.ask("nvmlDeviceGetName")
        self._fixed: Row = {
            "device_id": device.device_id,
            "device_name": None if name is None else as_text(name),
            "collector": collector,
            "gpu_instance_id": None if part is None else part.gpu_instance_id,
            "compute_instance_id": None if part is None else part.compute_instance_id,
        }

    def read(self, now_s: float) -> Row | None:
        """The device's columns; what is not told is None. None when nothing at all is told.

        now_s: a clock that never goes back. A device that tells nothing was not observed, which is
        another thing than one at rest.
        """
        told: Row = dict(self._every_device())
        told.update(self._gpm.read())
        if self._is_whole:
            told.update(self._whole_gpu(now_s))
            told.update(self._traffic(now_s, told))
        if all(value is None for value in told.values()):
            return None
        return {**_UNTOLD, **self._fixed, **told}

    def close(self) -> None:
        """Free what the driver holds for this probe."""
        self._gpm.close()

    def _every_device(self) -> Iterator[tuple[str, int | None]]:
        """Memory and processes, which slices tell as well."""
        memory = self._teller.ask("nvmlDeviceGetMemoryInfo")
        total = None if memory is None else in_range(memory.total, float("inf"))
        used = None if memory is None else in_range(memory.used, total or float("inf"))
        yield "memory_total_bytes", None if total is None else int(total)
        yield "memory_used_bytes", None if used is None else int(used)
        processes = self._teller.first(
            ("nvmlDeviceGetComputeRunningProcesses",), ("nvmlDeviceGetComputeRunningProcesses_v2",)
        )
        yield "num_processes", None if processes is None else len(processes)

    def _whole_gpu(self, now_s: float) -> Row:
        """What only a whole GPU tells: use, power, energy, clocks, temperature."""
        ask, nvml = self._teller.ask, self._nvml
        rates = ask("nvmlDeviceGetUtilizationRates")
        limit_w = _scaled(
            self._teller.first(
                ("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)
            ),
            1000,
            _MOST_W,
        )
        energy_mj = ask("nvmlDeviceGetTotalEnergyConsumption")
        energy_j = _scaled(energy_mj, 1000, float("inf"))
        return {
            "utilization_share": share_of_percent(None if rates is None else rates.gpu),
            "memory_busy_share": share_of_percent(None if rates is None else rates.memory),
            "power_w": _scaled(ask("nvmlDeviceGetPowerUsage"), 1000, _MOST_W),
            "power_limit_w": limit_w,
            "energy_j": self._energy.take(energy_j, now_s, limit_w),
            "temperature_c": _scaled(
                self._teller.first(
                    ("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU),
                    ("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
                ),
                1,
                _MOST_C,
            ),
            "sm_clock_mhz": _scaled(
                ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1, _MOST_MHZ
            ),
            "memory_clock_mhz": _scaled(
                ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM), 1, _MOST_MHZ
            ),
        }

    def _traffic(self, now_s: float, told: Row) -> Row:
        """PCIe and NVLink, where the performance counters have not told them."""
        nvml, ways = self._nvml, {"sent": "TX", "received": "RX"}
        found: Row = {}
        for way, short in ways.items():
            column = f"pcie_{way}_bytes_per_s"
            if told.get(column) is None:
                counter = getattr(nvml, f"NVML_PCIE_UTIL_{short}_BYTES", None)
                kilobytes = self._teller.ask("nvmlDeviceGetPcieThroughput", counter)
                found[column] = _scaled(kilobytes, 1 / 1000, _MOST_BYTES_PER_S)
            column = f"nvlink_{way}_bytes_per_s"
            if told.get(column) is None:
                kibibytes = self._field(f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{short}")
                rate = self._links[way].take(kibibytes, now_s)
                found[column] = _scaled(rate, 1 / 1024, _MOST_BYTES_PER_S)
        return found

    def _field(self, name: str) -> float | None:
        """A counter that NVML keeps as a field, summed over all links."""
        field = getattr(self._nvml, name, None)
        values = self._teller.ask("nvmlDeviceGetFieldValues", ((field, _ALL_LINKS),))
        if values is None or values[0].nvmlReturn != 0:
            return None
        return in_range(values[0].value.ullVal, float("inf"))


def driver_versions(nvml: Any) -> str:
    """The versions of library and driver, in words."""
    told = []
    for what, function in (
        ("NVML", "nvmlSystemGetNVMLVersion"),
        ("driver", "nvmlSystemGetDriverVersion"),
    ):
        try:
            told.append(f"{what} {as_text(getattr(nvml, function)())}")
        except (nvml.NVMLError, AttributeError):
            told.append(f"{what} of unknown version")
    return ", ".join(told)


def _scaled(value: float | None, divisor: float, upper: float) -> float | None:
    """The value in our unit, or None where it cannot be; upper: in our unit."""
    told = in_range(value, float("inf"))
    return None if told is None else in_range(told / divisor, upper)


_UNTOLD: Row = dict.fromkeys(
    ("utilization_share", "memory_used_bytes", "memory_total_bytes", "power_w")
)
