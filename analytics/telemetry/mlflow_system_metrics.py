"""Imports the system metrics that MLflow logged: from its SQLite file, its folder of runs, the
answer of its REST API, or a CSV of key, value and timestamp.

`system/gpu_0_utilization_percentage` and its like, with `system/node_1/` before them where a run
had several nodes; megabytes are 10**6 bytes. MLflow names no host: a row's host is its run, with
its node, unless --host tells. It logs every GPU of a shared host, whatever the run was given: what
is charged comes from the allocation, never from these rows.

Before: recognising.py found the form.   After: fact_device_sample; metrics of one tick are one row.
Price: each metric's point is a row that is read.
"""

from __future__ import annotations

import re
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from analytics.errors import InputError
from analytics.telemetry.bounded_text import decoded, numbered_lines
from analytics.telemetry.cells import CellReader
from analytics.telemetry.device_names import words
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.instants import epoch_ns
from analytics.telemetry.json_documents import scalar
from analytics.telemetry.records import records

_KEY = re.compile(r"system/(?:(?P<node>[^/]{1,80})/)?(?:gpu_(?P<gpu>\d{1,4})_)?(?P<metric>\w+)")
_GPU = {
    "utilization_percentage": ("utilization_share", "%"),
    "memory_usage_megabytes": ("memory_used_bytes", "megabytes"),
    "power_usage_watts": ("power_w", "w"),
}
_CPU = {
    "cpu_utilization_percentage": ("utilization_share", "%"),
    "system_memory_usage_megabytes": ("memory_used_bytes", "megabytes"),
}
_COLUMNS = {"key", "value", "timestamp"}


def import_sqlite(path: Path, gathering: Gathering, where: str) -> None:
    """Gather the system metrics of every run in an MLflow SQLite store; it is opened read-only.

    Raises InputError when the file is no such store or is damaged.
    """
    metrics = _Metrics(gathering)
    # immutable: nothing is written beside the file, not even a lock
    uri = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    try:
        found = connection.execute(
            "SELECT rowid, run_uuid, key, CASE WHEN is_nan THEN 'nan' ELSE value END, timestamp "
            "FROM metrics WHERE key LIKE 'system/%' ORDER BY rowid"
        )
        for number, run, key, value, time_ms in found:
            metrics.take(number, str(run), str(key), str(value), str(time_ms))
    except (sqlite3.Error, UnicodeError) as error:  # a message of SQLite may hold any bytes
        raise InputError(
            f"{where}: this is not an MLflow store that can be read ({error}). Expected the table "
            "'metrics' that MLflow keeps in mlflow.db."
        ) from error
    finally:
        connection.close()


def looks_like_store(folder: Path) -> bool:
    """Whether a folder is an MLflow store of files, an experiment or a run of one."""
    return next(_metric_files(folder), None) is not None


def store_files(folder: Path) -> list[Path]:
    """The files of system metrics in a folder, in their order."""
    return sorted(_metric_files(folder))


def import_store(folder: Path, gathering: Gathering, where: str) -> None:
    """Gather the system metrics of every run in a folder; a line is 'milliseconds value step'."""
    metrics = _Metrics(gathering)
    for path in store_files(folder):
        relative = path.relative_to(folder)
        gathering.file_name = str(relative)
        parts = path.parts
        place = len(parts) - 1 - parts[::-1].index("metrics")
        run, key = parts[place - 1], "/".join(parts[place + 1 :])
        with decoded(path) as text:
            for number, line, fault in numbered_lines(text):
                cells = line.split()
                if fault:
                    gathering.reject(number, fault, line)
                elif len(cells) in (2, 3, 5):
                    metrics.take(number, run, key, cells[1], cells[0])
                elif cells:
                    gathering.reject(number, "not_a_sample", line)


def looks_like_answer(document: Any) -> bool:
    """Whether a document is the answer of MLflow's metrics/get-history."""
    found = document.get("metrics") if isinstance(document, dict) else None
    return (
        isinstance(found, list)
        and bool(found)
        and all(isinstance(one, dict) and set(one) >= _COLUMNS for one in found[:100])
    )


def import_answer(document: Any, gathering: Gathering, where: str) -> None:
    """Gather the metrics of an answer of the REST API."""
    metrics = _Metrics(gathering)
    for number, one in enumerate(document["metrics"], 1):
        told = one if isinstance(one, dict) else {}
        key, value, time_ms, run = (
            scalar(told.get(name)) for name in ("key", "value", "timestamp", "run_id")
        )
        metrics.take(number, run, key, value, time_ms)


def looks_like_table(header: str) -> bool:
    """Whether a line is the header of a CSV of metrics."""
    return set(_names(header)) >= _COLUMNS


def import_table(lines: Iterable[tuple[int, str, str]], gathering: Gathering, where: str) -> None:
    """Gather a CSV with the columns key, value and timestamp, and run_id or run_uuid if any."""
    metrics = _Metrics(gathering)
    names: list[str] | None = None
    for cut in records(lines, ","):
        if names is None or _names(cut.text) == names:
            names = _names(cut.text)
            if not set(names) >= _COLUMNS:
                raise InputError(
                    f"{where}: expected a header with key, value and timestamp, as MLflow names "
                    f"them; it begins with {cut.text[:60]!r}."
                )
        elif cut.fault or len(cut.cells) != len(names):
            gathering.reject(cut.line, cut.fault or "wrong_number_of_cells", cut.text)
        else:
            row = dict(zip(names, (cell.strip() for cell in cut.cells), strict=True))
            run = row.get("run_uuid") or row.get("run_id") or ""
            metrics.take(cut.line, run, row["key"], row["value"], row["timestamp"])


class _Metrics:
    """Points of metrics on their way to rows."""

    def __init__(self, gathering: Gathering) -> None:
        gathering.collector = "MLflow system metrics"
        self._gathering = gathering
        self._readers = {
            (is_gpu, metric): CellReader(column, unit)
            for is_gpu, table in ((True, _GPU), (False, _CPU))
            for metric, (column, unit) in table.items()
        }

    def take(self, number: int, run: str, key: str, value: str, time_ms: str) -> None:
        """Gather a point, or reject it with its reason."""
        gathering, text = self._gathering, f"{key} {value} {time_ms}"
        match = _KEY.fullmatch(key)
        is_gpu = match is not None and match["gpu"] is not None
        table = _GPU if is_gpu else _CPU
        if match is None or match["metric"] not in table:
            gathering.unused[key[:80]] = None
            gathering.reject(number, "metric_not_kept", text)
            return
        column = table[match["metric"]][0]
        reader = self._readers[is_gpu, match["metric"]]
        host = "/".join(part for part in (words(run), match["node"]) if part)
        row: dict[str, Any] = {
            "host": gathering.host(host),
            "device_id": f"gpu-{int(match['gpu'])}" if is_gpu else "cpu",
            column: gathering.figure(reader, column, value, number),
        }
        gathering.add_row(number, text, epoch_ns(time_ms, 1000), row, is_local=False)


def _metric_files(folder: Path) -> Iterator[Path]:
    """Files below metrics/system of a run, an experiment or a whole store."""
    for depth in ("", "*/", "*/*/"):
        for place in sorted(folder.glob(f"{depth}metrics/system")):
            yield from (path for path in place.rglob("*") if path.is_file())


def _names(header: str) -> list[str]:
    return [name.strip().strip('"').lower() for name in header.split(",")]
