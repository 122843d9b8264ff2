"""What the columns of a device log are called, and which column of the warehouse each one fills.

The names are those of `nvidia-smi --query-gpu`, of `nvidia-smi dmon`, and those that scripts around
them write (`gpu_util(%)`, `mem_used_mb`, `temperature_C`). A name is compared in lower case, its
unit taken off, dots and blanks as underscores. `memory_util` of such scripts is left alone: they
mean used / total by it, not the memory's activity, which is `utilization.memory`.

Before: a header.   After: nvidia_smi_csv.py, nvidia_smi_dmon.py read the columns by it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from analytics.telemetry.cells import FIGURES

TIME, DATE, CLOCK, ELAPSED = "time", "date", "clock", "elapsed"
INDEX, UUID, BUS, NAME, HOST, COLLECTOR = (
    "index", "uuid", "pci_bus_id", "device_name", "host", "collector",
)  # fmt: skip
GPU_INSTANCE, COMPUTE_INSTANCE = "gpu_instance_id", "compute_instance_id"

# Names in the order of preference: of several that fill one column the first is taken.
_NAMES: dict[str, tuple[str, ...]] = {
    TIME: ("timestamp", "time_utc", "datetime", "unix_time", "epoch", "ts"),
    DATE: ("date",),
    CLOCK: ("time",),
    ELAPSED: ("elapsed", "elapsed_sec", "elapsed_s", "elapsed_seconds"),
    INDEX: ("index", "gpu_index", "gpu_id", "gpu", "device_index", "idx"),
    UUID: ("uuid", "gpu_uuid"),
    BUS: ("pci_bus_id", "gpu_bus_id"),
    NAME: ("name", "gpu_name", "product_name"),
    HOST: ("hostname", "host", "node", "nodename"),
    COLLECTOR: ("driver_version",),
    GPU_INSTANCE: ("gi", "gpu_instance_id"),
    COMPUTE_INSTANCE: ("ci", "compute_instance_id"),
    "utilization_share": (
        "utilization_gpu", "gpu_utilization", "gpu_util", "gpu_utilisation", "utilization", "sm",
    ),
    "memory_busy_share": ("utilization_memory", "mem"),
    "memory_used_bytes": ("memory_used", "mem_used", "gpu_memory_used", "fb"),
    "memory_total_bytes": ("memory_total", "mem_total", "memory_max", "gpu_memory_total"),
    "power_w": (
        "power_draw", "power_draw_instant", "power_draw_average", "power", "power_used", "pwr",
    ),
    "power_limit_w": ("enforced_power_limit", "power_limit", "power_max"),
    "temperature_c": ("temperature_gpu", "temperature", "temp", "gpu_temp", "gtemp"),
    "sm_clock_mhz": ("clocks_sm", "clocks_current_sm", "pclk"),
    "memory_clock_mhz": (
        "clocks_mem", "clocks_current_memory", "clocks_memory", "mclk",
    ),
    "pcie_sent_bytes_per_s": ("txpci",),
    "pcie_received_bytes_per_s": ("rxpci",),
}  # fmt: skip
_PLACES = {
    name: (target, order) for target, names in _NAMES.items() for order, name in enumerate(names)
}
FIGURE_UNITS = {
    "utilization_share": "%",
    "memory_busy_share": "%",
    "memory_used_bytes": "mib",
    "memory_total_bytes": "mib",
    "power_w": "w",
    "power_limit_w": "w",
    "temperature_c": "c",
    "sm_clock_mhz": "mhz",
    "memory_clock_mhz": "mhz",
    "pcie_sent_bytes_per_s": "mb/s",
    "pcie_received_bytes_per_s": "mb/s",
}
_BRACKETS = re.compile(r"\s*[\[(]([^\])]*)[\])]\s*$")
_ENDINGS = {
    "_percent": "%", "_pct": "%", "_mib": "mib", "_mb": "mb", "_gib": "gib", "_gb": "gb",
    "_watts": "w", "_w": "w", "_celsius": "c", "_c": "c", "_mhz": "mhz",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Which cell of a row tells what.

    places: a target of _NAMES -> the cell's place. units: figure -> unit of a plain number.
    unused: columns that have no place here, by their own names.
    """

    places: dict[str, int]
    units: dict[str, str]
    num_cells: int
    unused: tuple[str, ...]

    @property
    def figures(self) -> dict[str, int]:
        """The columns of the warehouse that the row fills, and the places of their cells."""
        return {name: place for name, place in self.places.items() if name in FIGURE_UNITS}

    @property
    def has_time(self) -> bool:
        """Whether a cell tells when."""
        return bool({TIME, CLOCK, DATE, ELAPSED} & set(self.places))


def plain_name(header: str) -> tuple[str, str]:
    """A header's name as it is compared, and the unit it tells, '' for none."""
    text, unit = header.strip().strip("\ufeff\"'# ").strip(), ""
    match = _BRACKETS.search(text)
    if match is not None:
        text, unit = text[: match.start()], match[1].strip().lower()
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    for ending, told in _ENDINGS.items():
        if name.endswith(ending) and not unit and name not in _PLACES:
            name, unit = name[: -len(ending)], told
            break
    return name, unit


def layout(headers: Sequence[str], renamed: Sequence[tuple[str, str]] = ()) -> Layout:
    """What the columns of a header are; unknown ones are unused.

    renamed: column as it is written -> the field that it is.
    """
    told = dict(renamed)
    best: dict[str, tuple[int, int]] = {}  # target -> (preference, place)
    units: dict[int, str] = {}
    for place, header in enumerate(headers):
        name, unit = plain_name(told.get(header.strip(), header))
        target, order = _PLACES.get(name, ("", 0))
        is_known = not unit or target not in FIGURES or unit in FIGURES[target].factors
        if target and is_known and order < best.get(target, (len(_PLACES), 0))[0]:
            best[target] = (order, place)
            units[place] = unit
    places = {target: place for target, (_, place) in best.items()}
    if CLOCK in places and DATE not in places:
        # a column called 'time' without one called 'date' tells the whole instant
        clock = places.pop(CLOCK)
        places.setdefault(TIME, clock)
    used = set(places.values())
    return Layout(
        places=places,
        units={
            name: units[place] or FIGURE_UNITS[name]
            for name, place in places.items()
            if name in FIGURE_UNITS
        },
        num_cells=len(headers),
        unused=tuple(h.strip() for place, h in enumerate(headers) if place not in used),
    )
