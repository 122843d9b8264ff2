"""Names the device of a row: its UUID, else its index as gpu-N, else its PCI bus; with its slice.

A UUID of zeros only has been masked by whoever published the log, and tells nothing. A MIG slice is
UUID/gi/ci, and UUID/gi where the source does not tell the compute instance.

Before: an importer's cells.   After: fact_device_sample.device_id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from analytics.telemetry.cells import NOTHING, bare
from analytics.telemetry.nvidia_smi_fields import (
    BUS,
    COMPUTE_INSTANCE,
    GPU_INSTANCE,
    INDEX,
    UUID,
)

LONE = "gpu-0"  # the device of a log that names none
_MASKED = re.compile(r"(GPU|MIG)?[-0]*", re.IGNORECASE)
_INDEX = re.compile(r"(?:gpu|nvidia|cuda)?[\s_:-]*(\d{1,4})", re.IGNORECASE)
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")


def device_id(cells: Mapping[str, str]) -> str | None:
    """The device that a row's cells name; LONE when it has none, None when they say nothing.

    cells: of UUID, INDEX, BUS, GPU_INSTANCE and COMPUTE_INSTANCE those that the row has.
    """
    if not {UUID, INDEX, BUS} & set(cells):
        base: str | None = LONE
    else:
        base = (
            _matching(_UUID, cells.get(UUID))
            or _index(cells.get(INDEX))
            or _matching(_BUS, cells.get(BUS))
        )
    if base is None:
        return None
    for name in (GPU_INSTANCE, COMPUTE_INSTANCE):
        number = whole(cells.get(name))
        if number is None:
            break
        base = f"{base}/{number}"
    return base


def whole(cell: str | None) -> int | None:
    """A small whole number, or None."""
    text = (cell or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def words(cell: str | None) -> str | None:
    """A name as it stands, or None when it says nothing."""
    if cell is None or bare(cell) in NOTHING:
        return None
    return cell.strip().encode("utf-8", "replace").decode("utf-8")[:200]


def _matching(pattern: re.Pattern[str], cell: str | None) -> str | None:
    text = (cell or "").strip()
    return text if pattern.fullmatch(text) and not _MASKED.fullmatch(text) else None


def _index(cell: str | None) -> str | None:
    match = _INDEX.fullmatch((cell or "").strip())
    return None if match is None else f"gpu-{int(match[1])}"
