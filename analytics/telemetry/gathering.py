"""Gathers one import's rows: times made UTC, rows that cannot be used kept with line and reason.

Every row that is read is either loaded or rejected, and both are counted. A figure that cannot be
is left out of its row, which stays; it is listed with a reason that begins with `cell_`. Times in
the future or before 2007 are loaded and flagged: a wrong clock is no reason to lose a sample.

Before: an importer reads its form.   After: analytics/landing.py checks and keeps the tables.
Price: rows go to the database in batches, so that memory does not grow with the log.
"""

from __future__ import annotations

import collections
import dataclasses
import zoneinfo
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np

from analytics.landing import insert
from analytics.telemetry.cells import FIGURES, CellReader
from analytics.telemetry.import_options import UNTOLD_HOST, ImportOptions, zone
from analytics.telemetry.zones import FINE, REPEATED, offsets, passes

BATCH_ROWS = 20_000
TEXT_CHARS = 200
_MOST_WAITING = 200_000  # rows of a repeated hour that wait for what follows them
_SKEW_NS = 60 * 10**9
_YEAR_2007_NS = 1_167_609_600 * 10**9
_MOST_NS = 2**62

Columns = Mapping[str, Sequence[Any]]
_Device = tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A row of an hour that the clock showed twice."""

    line: int
    text: str
    local_ns: int
    first_ns: int  # UTC when it is of the first pass
    second_ns: int
    row: dict[str, Any]


class Gathering:
    """The rows of one import on their way into the landing tables of `con`.

    now_unix_ns: when they came to us, UTC.
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        *,
        import_id: str,
        options: ImportOptions,
        now_unix_ns: int,
    ) -> None:
        self._con = con
        self._import_id = import_id
        self.options = options
        self.now_unix_ns = now_unix_ns
        self.file_name = ""
        self.kind = ""
        self.collector: str | None = None
        self.needed_zone = False
        self.zone: zoneinfo.ZoneInfo | None = None
        if options.time_zone is not None:
            self.zone = zone(options.time_zone)
        self.num_loaded = 0
        self.first_unix_ns: int | None = None
        self.last_unix_ns: int | None = None
        self.rejected: collections.Counter[str] = collections.Counter()
        self.left_out: collections.Counter[str] = collections.Counter()
        self.flags: collections.Counter[str] = collections.Counter()
        self.unused: dict[str, None] = {}  # columns or metrics that have no place here
        self.notes: list[str] = []
        self._rejects: dict[tuple[str, int, str], str] = {}
        self._rows: list[tuple[int, str, int | None, dict[str, Any]]] = []
        self._rows_local = False
        self._waiting: dict[_Device, list[_Waiting]] = {}
        self._num_waiting = 0
        self._last_local: dict[_Device, int] = {}

    @property
    def num_rejected(self) -> int:
        """Rows that were read and not used."""
        return self.rejected.total()

    def reject(self, line: int, reason: str, text: str) -> None:
        """Keep a row that cannot be used. A line may be rejected once for each reason."""
        self.rejected[reason] += 1
        self._keep(line, reason, text)

    def leave_out(self, line: int, column: str, why: str, text: str) -> None:
        """Keep what a cell said that cannot be; its row stays, NULL there."""
        self.left_out[f"cell_{why}: {column}"] += 1
        self._keep(line, f"cell_{why}: {column}", text)

    def note(self, text: str) -> None:
        """Something a person should know about this import; said once."""
        if text not in self.notes:
            self.notes.append(text)

    def host(self, told: str | None = None) -> str:
        """The host of a row: as the person said, else as the row tells, else 'unknown'."""
        if self.options.host is not None:
            return self.options.host
        if told and told.strip():
            return told.strip()
        self.note(
            f"The log does not tell its host; its rows stand under '{UNTOLD_HOST}'. Give --host "
            "NAME to tell hosts apart."
        )
        return UNTOLD_HOST

    def figure(self, reader: CellReader, name: str, cell: str, line: int) -> float | int | None:
        """A single cell's value; what cannot be is left out."""
        value = reader[cell]
        if cell in reader.bad:
            self.leave_out(line, name, reader.bad[cell], cell)
        return value

    def add_row(
        self, line: int, text: str, time_ns: int | None, row: dict[str, Any], *, is_local: bool
    ) -> None:
        """Add one row: `host`, `device_id` and any figures."""
        if is_local != self._rows_local or len(self._rows) >= BATCH_ROWS:
            self._flush_rows()
        self._rows_local = is_local
        self._rows.append((line, text, time_ns, row))

    def add(
        self,
        lines: Sequence[int],
        texts: Sequence[str],
        times_ns: Sequence[int | None],
        columns: Columns,
        *,
        is_local: bool,
    ) -> None:
        """Add rows column by column; `host` and `device_id` are among the columns.

        times_ns: UTC, or by the wall clock of the zone when is_local; None cannot be read.
        """
        keep = [place for place, time in enumerate(times_ns) if time is not None]
        if len(keep) < len(lines):
            for place, time in enumerate(times_ns):
                if time is None:
                    self.reject(lines[place], "time_unreadable", texts[place])
            lines, texts, times_ns, columns = _picked(keep, lines, texts, times_ns, columns)
        if not keep:
            return
        if is_local:
            lines, texts, times_ns, columns = self._to_utc(lines, texts, times_ns, columns)
        self._store(lines, texts, times_ns, columns)

    def finish(self) -> None:
        """Add what still waits; after this the counts are whole."""
        self._flush_rows()
        for device in list(self._waiting):
            self._close(device, None)
        self._flush_rows()
        self._flush_rejects()
        if self.unused:
            names = list(self.unused)
            shown = ", ".join(names[:12]) + (" and more" if len(names) > 12 else "")
            self.note(f"{len(names)} columns or metrics have no place here: {shown}.")

    def _keep(self, line: int, reason: str, text: str) -> None:
        self._rejects.setdefault((self.file_name, line, reason), text[:TEXT_CHARS])
        if len(self._rejects) >= BATCH_ROWS:
            self._flush_rejects()

    def _flush_rejects(self) -> None:
        if self._rejects:
            names, lines, reasons = zip(*self._rejects, strict=True)
            insert(
                self._con,
                "fact_import_reject",
                {
                    "import_id": [self._import_id] * len(lines),
                    "file_name": names,
                    "line": lines,
                    "reason": reasons,
                    "text": [_storable(text) for text in self._rejects.values()],
                },
            )
        self._rejects = {}

    def _flush_rows(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        names = dict.fromkeys(name for _, _, _, row in rows for name in row)
        columns = {name: [row.get(name) for _, _, _, row in rows] for name in names}
        lines, texts, times, _ = zip(*rows, strict=True)
        self.add(lines, texts, times, columns, is_local=self._rows_local)

    def _to_utc(
        self, lines: Sequence[int], texts: Sequence[str], times: Sequence[Any], columns: Columns
    ) -> tuple[Sequence[int], Sequence[str], Sequence[Any], Columns]:
        """The rows whose UTC is sure; the others are rejected, or wait for what follows them."""
        assert self.zone is not None  # importing.py asked for it before
        self.needed_zone = True
        inside = [place for place, time in enumerate(times) if abs(time) < _MOST_NS]
        if len(inside) < len(lines):
            for place in set(range(len(lines))) - set(inside):
                self.reject(lines[place], "time_out_of_range", texts[place])
            lines, texts, times, columns = _picked(inside, lines, texts, times, columns)
        local = np.array(times, dtype=np.int64)
        first, second, state = offsets(local, self.zone)
        devices = list(zip(columns["host"], columns["device_id"], strict=True))
        if not self._waiting and (state == FINE).all():
            self._last_local.update(zip(devices, times, strict=True))
            return lines, texts, (local - first).tolist(), columns
        sure = []
        for place, device in enumerate(devices):
            if state[place] == FINE:
                self._close(device, times[place])
                self._last_local[device] = times[place]
                sure.append(place)
            elif state[place] == REPEATED and self._num_waiting < _MOST_WAITING:
                self._num_waiting += 1
                self._waiting.setdefault(device, []).append(
                    _Waiting(
                        line=lines[place],
                        text=texts[place],
                        local_ns=times[place],
                        first_ns=int(local[place] - first[place]),
                        second_ns=int(local[place] - second[place]),
                        row={name: column[place] for name, column in columns.items()},
                    )
                )
            else:
                reason = "time_ambiguous" if state[place] == REPEATED else "time_skipped_by_clock"
                self.reject(lines[place], reason, texts[place])
        return _picked(sure, lines, texts, (local - first).tolist(), columns)

    def _close(self, device: _Device, after_ns: int | None) -> None:
        """Decide the rows of a device that wait, now that the next one is known."""
        rows = self._waiting.pop(device, None)
        if not rows:
            return
        self._num_waiting -= len(rows)
        found = passes(
            [row.local_ns for row in rows],
            rows[0].second_ns - rows[0].first_ns,
            self._last_local.get(device),
            after_ns,
        )
        sure = []
        for row, late in zip(rows, found, strict=True):
            if late is None:
                self.reject(row.line, "time_ambiguous", row.text)
            else:
                sure.append((row, row.second_ns if late else row.first_ns))
        if sure:
            kept, utc = zip(*sure, strict=True)
            columns = {name: [row.row[name] for row in kept] for name in kept[0].row}
            self._store([row.line for row in kept], [row.text for row in kept], utc, columns)

    def _store(
        self, lines: Sequence[int], texts: Sequence[str], times: Sequence[Any], columns: Columns
    ) -> None:
        """Take the clock's offset off, flag what is odd, and put the rows into the table."""
        offset_ns = self.options.clock_offset_ns or 0
        inside = [place for place, time in enumerate(times) if 0 <= time - offset_ns < _MOST_NS]
        if len(inside) < len(lines):
            for place in sorted(set(range(len(lines))) - set(inside)):
                self.reject(lines[place], "time_out_of_range", texts[place])
            lines, texts, times, columns = _picked(inside, lines, texts, times, columns)
        if not len(lines):
            return
        utc = [time - offset_ns for time in times] if offset_ns else list(times)
        earliest, latest = min(utc), max(utc)
        if latest > self.now_unix_ns + _SKEW_NS:
            late = self.now_unix_ns + _SKEW_NS
            self.flags["time_in_the_future"] += sum(time > late for time in utc)
        if earliest < _YEAR_2007_NS:
            self.flags["time_before_2007"] += sum(time < _YEAR_2007_NS for time in utc)
        first = self.first_unix_ns
        self.first_unix_ns = earliest if first is None else min(earliest, first)
        self.last_unix_ns = max(latest, self.last_unix_ns or latest)
        size = len(lines)
        self.num_loaded += size
        insert(
            self._con,
            "fact_device_sample",
            {
                **columns,
                "sampled_unix_ns": utc,
                "pipeline_id": [self.options.pipeline_id] * size,
                "attempt": [0] * size,
                "source_kind": [self.kind] * size,
                "collector": [self.collector] * size,
                "ingested_unix_ns": [self.now_unix_ns] * size,
            },
        )


def readers(units: Mapping[str, str]) -> dict[str, CellReader]:
    """A reader for each column of the warehouse; units: column -> unit of a plain number."""
    return {name: CellReader(name, unit) for name, unit in units.items() if name in FIGURES}


def _storable(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _picked(
    places: Sequence[int],
    lines: Sequence[int],
    texts: Sequence[str],
    times: Sequence[Any],
    columns: Columns,
) -> tuple[Sequence[int], Sequence[str], Sequence[Any], Columns]:
    """The rows at these places."""
    return (
        [lines[place] for place in places],
        [texts[place] for place in places],
        [times[place] for place in places],
        {name: [column[place] for place in places] for name, column in columns.items()},
    )
