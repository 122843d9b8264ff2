"""Imports `nvidia-smi -q -x`: one document, or one after the other as `-l` writes them.

Every <gpu> is a row, and every <mig_device> in it one of its own: a GPU that is cut into slices has
no utilisation, and none is made up for it. A row is named by its number in the file, since a whole
document may stand on one line; the line on which it begins is in its text. The document type is
named and never fetched; one that defines entities is refused before any is expanded.

Before: recognising.py found the form.   After: fact_device_sample.
Price: streamed through expat; memory holds one GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from xml.parsers import expat

from analytics.errors import InputError
from analytics.telemetry.bounded_text import LINE_CHARS, ZERO_BYTE
from analytics.telemetry.cells import CellReader
from analytics.telemetry.device_names import device_id, whole, words
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.instants import find_instants
from analytics.telemetry.nvidia_smi_csv import ask_times, ask_zone
from analytics.telemetry.nvidia_smi_fields import (
    BUS,
    COMPUTE_INSTANCE,
    GPU_INSTANCE,
    INDEX,
    UUID,
)

_BEGIN = re.compile(r"(?=<\?xml)")
_TEXT_CHARS = 10_000
_MOST_DEPTH = 40
_MOST_SLICES = 64
# path below <gpu> -> column of the warehouse; of several with a value the first is taken
_GPU_PATHS = {
    "utilization/gpu_util": "utilization_share",
    "utilization/memory_util": "memory_busy_share",
    "fb_memory_usage/used": "memory_used_bytes",
    "fb_memory_usage/total": "memory_total_bytes",
    "gpu_power_readings/power_draw": "power_w",
    "gpu_power_readings/instant_power_draw": "power_w",
    "gpu_power_readings/average_power_draw": "power_w",
    "power_readings/power_draw": "power_w",
    "gpu_power_readings/current_power_limit": "power_limit_w",
    "power_readings/enforced_power_limit": "power_limit_w",
    "power_readings/power_limit": "power_limit_w",
    "temperature/gpu_temp": "temperature_c",
    "clocks/sm_clock": "sm_clock_mhz",
    "clocks/mem_clock": "memory_clock_mhz",
    "pci/tx_util": "pcie_sent_bytes_per_s",
    "pci/rx_util": "pcie_received_bytes_per_s",
}
_SLICE_PATHS = {
    "fb_memory_usage/used": "memory_used_bytes",
    "fb_memory_usage/total": "memory_total_bytes",
}
_UNITS = {
    "utilization_share": "%", "memory_busy_share": "%", "memory_used_bytes": "mib",
    "memory_total_bytes": "mib", "power_w": "w", "power_limit_w": "w", "temperature_c": "c",
    "sm_clock_mhz": "mhz", "memory_clock_mhz": "mhz", "pcie_sent_bytes_per_s": "kb/s",
    "pcie_received_bytes_per_s": "kb/s",
}  # fmt: skip


@dataclasses.dataclass
class _Element:
    """What was read of a <gpu> or a <mig_device>."""

    number: int  # which row of the file it is, from 1
    line: int
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    num_processes: int | None = None


def import_xml(lines: Iterable[tuple[int, str, str]], gathering: Gathering, where: str) -> None:
    """Gather every GPU and slice of every document.

    Raises InputError when it is no such XML, is cut off or damaged, defines entities, or a question
    is open.
    """
    document: _Document | None = None
    numbers = itertools.count(1)
    for number, text, fault in lines:
        if fault == ZERO_BYTE:
            raise InputError(
                f"{where} line {number}: a zero byte stands in the document: it is damaged. Take "
                "the log of nvidia-smi -q -x again, or cut the damaged document out."
            )
        if fault:
            raise InputError(
                f"{where} line {number}: the line has more than {LINE_CHARS:,} characters. Write "
                "the document with a line for each element, as nvidia-smi -q -x does; 'xmllint "
                "--format FILE' makes one of it."
            )
        # one that begins where another ends, in the middle of a line or behind blanks
        for piece in _BEGIN.split(text):
            is_first = piece.lstrip().startswith("<?xml")
            if is_first or (document is None and piece.strip()):
                if document is not None:
                    document.end(number)
                document = _Document(gathering, where, number, numbers)
                piece = piece.lstrip()
            if document is not None:
                document.feed(piece, number)
        if document is not None:
            document.feed("\n", number)
    if document is not None:
        document.end(-1)


class _Document:
    """One document on its way through expat."""

    def __init__(
        self, gathering: Gathering, where: str, first_line: int, numbers: Iterator[int]
    ) -> None:
        self._gathering = gathering
        self._where = where
        self._first_line = first_line
        self._numbers = numbers
        self._readers = {name: CellReader(name, unit) for name, unit in _UNITS.items()}
        self._path: list[str] = []
        self._text: list[str] = []
        self._about: dict[str, str] = {}
        self._gpu: _Element | None = None
        self._slices: list[_Element] = []
        self._slice_depth = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._entity

    def feed(self, text: str, number: int) -> None:
        """The next line."""
        self._parse(text, number, is_last=False)

    def end(self, number: int) -> None:
        """See that the document is whole."""
        self._parse("", number, is_last=True)

    def _parse(self, text: str, number: int, *, is_last: bool) -> None:
        try:
            # a document that says it is UTF-16 has been decoded already
            data = text.replace('encoding="UTF-16"', "").encode("utf-8", "replace")
            self._parser.Parse(data, is_last)
        except expat.ExpatError as error:
            at = "at its end" if number < 0 else f"in line {number}"
            raise InputError(
                f"{self._where}: this is not whole XML, {at} ({error}). It may be cut off; take "
                "the log of nvidia-smi -q -x again, or cut the damaged document out."
            ) from error

    def _entity(self, name: str, *_rest: object) -> None:
        raise InputError(
            f"{self._where}: the document defines the entity {name[:40]!r}, which nvidia-smi never "
            "does and which can be made to fill memory. It was not read."
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "nvidia_smi_log":
            raise InputError(
                f"{self._where}: the document is <{name[:40]}>, not <nvidia_smi_log> as "
                "nvidia-smi -q -x writes it."
            )
        self._path.append(name)
        if len(self._path) > _MOST_DEPTH:
            raise InputError(f"{self._where}: the elements are nested too deeply for nvidia-smi.")
        self._text = []
        line = self._first_line + self._parser.CurrentLineNumber - 1
        if len(self._path) == 2 and name == "gpu":
            self._gpu, self._slices = _Element(next(self._numbers), line), []
            self._gpu.texts["pci/pci_bus_id"] = attributes.get("id", "")
        elif self._gpu is not None and name == "mig_device":
            if len(self._slices) >= _MOST_SLICES:
                raise InputError(
                    f"{self._where} line {line}: a GPU of more than {_MOST_SLICES} MIG devices, "
                    "which no GPU has. It was not read."
                )
            self._slices.append(_Element(next(self._numbers), line))
            self._slice_depth = len(self._path)
        elif self._gpu is not None and name == "processes" and len(self._path) == 3:
            self._gpu.num_processes = 0
        elif (
            self._gpu is not None and name == "process_info" and self._gpu.num_processes is not None
        ):
            self._gpu.num_processes += 1

    def _characters(self, text: str) -> None:
        if sum(map(len, self._text)) < _TEXT_CHARS:
            self._text.append(text)

    def _end(self, name: str) -> None:
        text = "".join(self._text).strip()
        self._text = []
        if self._gpu is None:
            if len(self._path) == 2:
                self._about.setdefault(name, text)
        elif self._slice_depth and len(self._path) > self._slice_depth:
            self._slices[-1].texts.setdefault("/".join(self._path[self._slice_depth :]), text)
        elif self._slice_depth and len(self._path) == self._slice_depth:
            self._slice_depth = 0
        elif len(self._path) > 2:
            self._keep(self._gpu, "/".join(self._path[2:]), text)
        elif name == "gpu":
            self._emit(self._gpu)
            self._gpu = None
        self._path.pop()

    def _keep(self, gpu: _Element, path: str, text: str) -> None:
        if path == "processes" and words(text):
            gpu.num_processes = None  # 'N/A': the driver does not tell
        gpu.texts.setdefault(path, text)

    def _emit(self, gpu: _Element) -> None:
        """The rows of a GPU and its slices."""
        gathering = self._gathering
        driver = words(self._about.get("driver_version"))
        gathering.collector = driver and f"nvidia-smi, driver {driver}"
        time_ns, is_local = self._time()
        named = {UUID: gpu.texts.get("uuid", ""), BUS: gpu.texts.get("pci/pci_bus_id", "")}
        if "minor_number" in gpu.texts:
            named[INDEX] = gpu.texts["minor_number"]
        shared = {
            "host": gathering.host(self._about.get("hostname")),
            "device_name": words(gpu.texts.get("product_name")),
        }
        device = device_id(named)
        bus = gpu.texts.get("pci/pci_bus_id", "")
        text = f"line {gpu.line}: gpu {bus}"
        if device is None:
            gathering.reject(gpu.number, "device_untold", text)
        else:
            row = self._figures(gpu, _GPU_PATHS) | {
                "num_processes": gpu.num_processes, "device_id": device, **shared,
            }  # fmt: skip
            gathering.add_row(gpu.number, text, time_ns, row, is_local=is_local)
        for part in self._slices:
            numbers = {name: part.texts.get(name, "") for name in (GPU_INSTANCE, COMPUTE_INSTANCE)}
            instance = whole(numbers[GPU_INSTANCE])
            text = f"line {part.line}: gpu {bus}, a MIG device"
            if device is None or instance is None:
                gathering.reject(part.number, "device_untold", text)
                continue
            row = self._figures(part, _SLICE_PATHS) | {
                GPU_INSTANCE: instance, COMPUTE_INSTANCE: whole(numbers[COMPUTE_INSTANCE]),
                "device_id": device_id(named | numbers), **shared,
            }  # fmt: skip
            gathering.add_row(part.number, text, time_ns, row, is_local=is_local)
        self._slices = []

    def _figures(self, element: _Element, paths: dict[str, str]) -> dict[str, object]:
        row: dict[str, object] = {}
        for path, name in paths.items():
            cell = element.texts.get(path)
            if cell is not None and row.get(name) is None:
                row[name] = self._gathering.figure(self._readers[name], name, cell, element.number)
        return row

    def _time(self) -> tuple[int | None, bool]:
        """When the document was written, and whether that is by a wall clock."""
        told = self._about.get("timestamp", "")
        if not told:
            if self._gathering.options.taken_unix_ns is None:
                raise ask_times(self._where)
            return self._gathering.options.taken_unix_ns, False
        instants = find_instants([told], day_first=None, where=self._where)
        if instants.is_local and self._gathering.zone is None:
            raise ask_zone(self._where)
        return instants.read(told), instants.is_local
