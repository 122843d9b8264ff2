"""Which DCGM fields fill which columns of the warehouse, and what their labels tell.

PROF_* are ratios of 0 to 1, although the exporter's own help text says per cent; GPU_UTIL and
MEM_COPY_UTIL are 0 to 100. Memory is in MiB, the energy counter in mJ, PROF_PCIE and PROF_NVLINK
bytes a second. Every value from DCGM's blanks upward is nothing, see cells.py.

Before: dcgm_text.py, promql_json.py read name, labels and value.   After: gathering.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from analytics.telemetry.cells import CellReader
from analytics.telemetry.device_names import device_id, whole, words
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.nvidia_smi_fields import BUS, GPU_INSTANCE, INDEX, UUID

PREFIX = "DCGM_FI_"
# field without its prefix -> (column, unit of its values)
_FIELDS = {
    "DEV_GPU_UTIL": ("utilization_share", "%"),
    "DEV_MEM_COPY_UTIL": ("memory_busy_share", "%"),
    "DEV_FB_USED": ("memory_used_bytes", "mib"),
    "DEV_FB_TOTAL": ("memory_total_bytes", "mib"),
    "DEV_POWER_USAGE": ("power_w", "w"),
    "DEV_POWER_USAGE_INSTANT": ("power_w", "w"),
    "DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", "w"),
    "DEV_POWER_MGMT_LIMIT": ("power_limit_w", "w"),
    "DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", "mj"),
    "DEV_GPU_TEMP": ("temperature_c", "c"),
    "DEV_SM_CLOCK": ("sm_clock_mhz", "mhz"),
    "DEV_MEM_CLOCK": ("memory_clock_mhz", "mhz"),
    "PROF_GR_ENGINE_ACTIVE": ("engine_active_share", "ratio"),
    "PROF_SM_ACTIVE": ("sm_active_share", "ratio"),
    "PROF_SM_OCCUPANCY": ("sm_occupancy_share", "ratio"),
    "PROF_PIPE_TENSOR_ACTIVE": ("tensor_active_share", "ratio"),
    "PROF_DRAM_ACTIVE": ("dram_active_share", "ratio"),
    "PROF_PCIE_TX_BYTES": ("pcie_sent_bytes_per_s", "bytes/s"),
    "PROF_PCIE_RX_BYTES": ("pcie_received_bytes_per_s", "bytes/s"),
    "PROF_NVLINK_TX_BYTES": ("nvlink_sent_bytes_per_s", "bytes/s"),
    "PROF_NVLINK_RX_BYTES": ("nvlink_received_bytes_per_s", "bytes/s"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One value of one series: where it stood, what it is of, and when; None is untold.

    time_ns: UTC.
    """

    line: int
    text: str
    name: str
    labels: Mapping[str, str]
    value: str
    time_ns: int | None


class Series:
    """Gathers points; those of one device and time become one row when they are landed."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._readers = {name: CellReader(column, unit) for name, (column, unit) in _FIELDS.items()}

    def take(self, point: Point) -> None:
        """Gather a point, or reject it with its reason."""
        gathering = self._gathering
        field = point.name.removeprefix(PREFIX)
        if field not in _FIELDS:
            gathering.unused[point.name[:80]] = None
            gathering.reject(point.line, "metric_not_kept", point.text)
            return
        device = _device(point.labels)
        if device is None:
            gathering.reject(point.line, "device_untold", point.text)
            return
        column = _FIELDS[field][0]
        version = words(point.labels.get("DCGM_FI_DRIVER_VERSION"))
        gathering.collector = f"dcgm-exporter, driver {version}" if version else "dcgm-exporter"
        row: dict[str, Any] = {
            "host": gathering.host(words(point.labels.get("Hostname"))),
            "device_id": device,
            "device_name": words(point.labels.get("modelName")),
            GPU_INSTANCE: whole(point.labels.get("GPU_I_ID")),
            column: gathering.figure(self._readers[field], column, point.value, point.line),
        }
        gathering.add_row(point.line, point.text, point.time_ns, row, is_local=False)


def _device(labels: Mapping[str, str]) -> str | None:
    named = {
        name: labels[label]
        for name, label in (
            (UUID, "UUID"), (INDEX, "gpu"), (BUS, "pci_bus_id"), (GPU_INSTANCE, "GPU_I_ID"),
        )
        if labels.get(label)
    }  # fmt: skip
    if UUID not in named and INDEX not in named and labels.get("device"):
        named[INDEX] = labels["device"]
    return device_id(named) if {UUID, INDEX, BUS} & set(named) else None
