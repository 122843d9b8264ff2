"""Imports what `nvidia-smi --query-gpu=... --format=csv` wrote, and what scripts around it write.

With or without a header, units in the header or in the cells, any fields in any order; several GPUs
interleaved; the header repeated, as a restarted logger leaves it; date and time in two columns,
times since 1970, elapsed seconds, or no time at all. What the log cannot tell is asked: the zone of
local times, day or month first, the start of elapsed seconds.

Before: recognising.py found the form.   After: fact_device_sample.
Price: a million rows of eight columns took 35 s of CPU time; memory holds one batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from analytics.errors import InputError
from analytics.telemetry.cells import CellReader
from analytics.telemetry.delimited_columns import (
    MOST_COLUMNS,
    check_header,
    chosen_delimiter,
    first_layout,
)
from analytics.telemetry.device_names import device_id, words
from analytics.telemetry.gathering import BATCH_ROWS, Gathering, readers
from analytics.telemetry.instants import NS, Instants, elapsed_ns, find_instants
from analytics.telemetry.nvidia_smi_fields import (
    BUS,
    CLOCK,
    COLLECTOR,
    COMPUTE_INSTANCE,
    DATE,
    ELAPSED,
    GPU_INSTANCE,
    HOST,
    INDEX,
    NAME,
    TIME,
    UUID,
    Layout,
    layout,
)
from analytics.telemetry.records import Cut, records

_SAMPLE_ROWS = 10_000
_SAMPLE_CHARS = 4 << 20
_BATCH_CHARS = 8 << 20
_DEVICE_CELLS = (UUID, INDEX, BUS, GPU_INSTANCE, COMPUTE_INSTANCE)


def import_csv(lines: Iterable[tuple[int, str, str]], gathering: Gathering, where: str) -> None:
    """Gather every record of a delimited log.

    lines: number, text and why it cannot be used. where: the file, for messages.
    Raises InputError when the columns or their times cannot be made out, or a question is open.
    """
    delimiter, lines = chosen_delimiter(lines, gathering)
    cuts = records(lines, delimiter)
    sample: list[Cut] = []
    num_chars = 0
    for cut in itertools.islice(cuts, _SAMPLE_ROWS):
        sample.append(cut)
        num_chars += len(cut.text)
        if num_chars > _SAMPLE_CHARS:
            break
    check_header(sample, delimiter, gathering, where)
    found, num_header = first_layout(sample, gathering, where)
    table = _Table(found, sample[:num_header], sample[num_header:], gathering, where, delimiter)
    for cut in itertools.chain(sample[num_header:], cuts):
        table.take(cut)
    table.flush()


def ask_zone(where: str) -> InputError:
    """The question for the zone of local times."""
    return InputError(
        f"{where}: its times are by a wall clock, and nothing in it tells which. Say the zone with "
        "--time-zone, such as --time-zone Europe/Madrid, or --time-zone UTC."
    )


class _Table:
    """Records of one header, turned into columns batch by batch."""

    def __init__(
        self,
        found: Layout,
        header: Sequence[Cut],
        sample: Sequence[Cut],
        gathering: Gathering,
        where: str,
        delimiter: str,
    ) -> None:
        self._gathering = gathering
        self._where = where
        self._has_commas = delimiter == ";"
        self._header = [cell.strip() for cell in header[-1].cells] if header else []
        for cut in header[:-1]:
            gathering.reject(cut.line, cut.fault, cut.text)
        self._batch: list[Cut] = []
        self._num_chars = 0
        self._num_of_device: dict[tuple[str, str], int] = {}
        self._set_layout(found, sample)

    def _set_layout(self, found: Layout, sample: Sequence[Cut]) -> None:
        self._layout = found
        self._readers = readers(found.units)
        self._gathering.unused |= dict.fromkeys(found.unused)
        rows = [cut.cells for cut in sample if not cut.fault and self._fits(cut.cells)]
        self._instants = self._find_instants(rows)
        if self._instants is not None and self._instants.is_local and self._gathering.zone is None:
            raise ask_zone(self._where)
        place = found.places.get(COLLECTOR)
        if place is not None and rows and self._gathering.collector is None:
            driver = words(rows[0][place])
            self._gathering.collector = driver and f"nvidia-smi, driver {driver}"

    def take(self, cut: Cut) -> None:
        """One record: a row, a header again, or something to reject."""
        if cut.fault:
            self._gathering.reject(cut.line, cut.fault, cut.text)
            return
        if self._header and cut.cells[0].strip() == self._header[0] and self._is_header(cut):
            return
        if not self._fits(cut.cells):
            self._gathering.reject(cut.line, "wrong_number_of_cells", cut.text)
            return
        self._batch.append(cut)
        self._num_chars += len(cut.text)
        if len(self._batch) >= BATCH_ROWS or self._num_chars > _BATCH_CHARS:
            self.flush()

    def flush(self) -> None:
        """Give the records that were taken to the gathering."""
        batch, self._batch, self._num_chars = self._batch, [], 0
        if not batch:
            return
        gathering, places = self._gathering, self._layout.places
        cells = list(zip(*(cut.cells[: self._layout.num_cells] for cut in batch), strict=True))
        columns: dict[str, list[Any]] = {}
        hosts = (
            [words(cell) for cell in cells[places[HOST]]] if HOST in places else [None] * len(batch)
        )
        columns["host"] = [gathering.host(host) for host in hosts]
        devices = self._devices(cells, len(batch))
        columns["device_id"] = devices
        if NAME in places:
            columns["device_name"] = [words(cell) for cell in cells[places[NAME]]]
        times = self._times(cells, columns)
        keep = [place for place, device in enumerate(devices) if device is not None]
        if len(keep) < len(batch):
            for cut, device in zip(batch, devices, strict=True):
                if device is None:
                    gathering.reject(cut.line, "device_untold", cut.text)
            columns = {name: [column[p] for p in keep] for name, column in columns.items()}
            times, batch = [times[p] for p in keep], [batch[p] for p in keep]
            cells = [tuple(column[p] for p in keep) for column in cells]
        for name, place in self._layout.figures.items():
            columns[name] = self._figures(name, cells[place], batch)
        is_local = self._instants is not None and self._instants.is_local
        gathering.add(
            [cut.line for cut in batch], [cut.text for cut in batch], times, columns,
            is_local=is_local,
        )  # fmt: skip

    def _is_header(self, cut: Cut) -> bool:
        """Whether a record is the header again, or another one, which then counts from here."""
        if [cell.strip() for cell in cut.cells] == self._header:
            return True
        found = layout(cut.cells, self._gathering.options.renamed)
        if not found.figures or len(cut.cells) > MOST_COLUMNS:
            return False
        self.flush()
        self._header = [cell.strip() for cell in cut.cells]
        before = self._instants
        self._set_layout(found, [])
        if self._instants is None:
            self._instants = before
        return True

    def _fits(self, cells: Sequence[str]) -> bool:
        """Whether a row has the header's number of cells, or one more that is empty."""
        more = len(cells) - self._layout.num_cells
        return more == 0 or (more == 1 and not cells[-1].strip())

    def _figures(self, name: str, cells: Sequence[str], batch: Sequence[Cut]) -> list[Any]:
        reader: CellReader = self._readers[name]
        if self._has_commas:
            cells = [cell.replace(",", ".") for cell in cells]
        values, bad = reader.column(cells)
        for place in bad:
            cell = cells[place]
            self._gathering.leave_out(batch[place].line, name, reader.bad[cell], cell)
        return values

    def _devices(self, cells: Sequence[Sequence[str]], num_rows: int) -> list[str | None]:
        names = [name for name in _DEVICE_CELLS if name in self._layout.places]
        if not {UUID, INDEX, BUS} & set(names):
            self._gathering.note(
                "The log does not name its devices; all rows stand under gpu-0, the one device "
                "that such a log can be of."
            )
        if not names:
            return [device_id({})] * num_rows
        known: dict[tuple[str, ...], str | None] = {}
        found = []
        for told in zip(*(cells[self._layout.places[name]] for name in names), strict=True):
            if told not in known:
                known[told] = device_id(dict(zip(names, told, strict=True)))
            found.append(known[told])
        return found

    def _when(self, cells: Sequence[str]) -> str:
        """The text of a row's time."""
        places = self._layout.places
        if TIME in places:
            return cells[places[TIME]]
        parts = [cells[places[name]].strip() for name in (DATE, CLOCK) if name in places]
        return " ".join(parts)

    def _find_instants(self, rows: Sequence[Sequence[str]]) -> Instants | None:
        """How the time column is read; None when there is none to be read by the calendar."""
        places = self._layout.places
        if not {TIME, DATE, CLOCK} & set(places) or not rows:
            return None
        told = [self._when(row) for row in rows]
        if TIME in places and all(_is_small(cell) for cell in told[:100]):
            self._layout.places[ELAPSED] = self._layout.places.pop(TIME)
            return None
        return find_instants(told, day_first=self._gathering.options.day_first, where=self._where)

    def _times(self, cells: Sequence[Sequence[str]], columns: dict[str, Any]) -> list[int | None]:
        """Each row's time [ns]: read, counted from the start, or the one that was told."""
        places, options = self._layout.places, self._gathering.options
        if self._instants is not None:
            if TIME in places:
                return self._instants.column(cells[places[TIME]])
            return self._instants.column([self._when(row) for row in zip(*cells, strict=True)])
        if ELAPSED in places:
            started_ns = options.started_unix_ns
            if started_ns is None:
                raise InputError(
                    f"{self._where}: its times are seconds since its start, and it does not tell "
                    "when that was. Say it with --started, such as --started 2026-11-30T14:00:00Z."
                )
            elapsed = [elapsed_ns(cell) for cell in cells[places[ELAPSED]]]
            return [None if ns is None else started_ns + ns for ns in elapsed]
        return self._untold_times(columns)

    def _untold_times(self, columns: dict[str, Any]) -> list[int | None]:
        """Times of rows that hold none."""
        options = self._gathering.options
        if options.started_unix_ns is None or options.interval_s is None:
            return self._one_moment(columns)
        step_ns = round(options.interval_s * NS)
        times: list[int | None] = []
        for device in zip(columns["host"], columns["device_id"], strict=True):
            number = self._num_of_device.get(device, 0)
            self._num_of_device[device] = number + 1
            times.append(options.started_unix_ns + number * step_ns)
        columns["interval_s"] = [options.interval_s] * len(times)
        return times

    def _one_moment(self, columns: dict[str, Any]) -> list[int | None]:
        """The moment that was told, of a log that has each device once."""
        taken_ns = self._gathering.options.taken_unix_ns
        if taken_ns is None:
            raise ask_times(self._where)
        for device in zip(columns["host"], columns["device_id"], strict=True):
            if device in self._num_of_device:
                raise InputError(
                    f"{self._where}: it has several rows of {device[1]}, so they were not all "
                    "taken at the one moment of --taken-at. Give --started TIME and --interval "
                    "SECONDS if they follow each other in time."
                )
            self._num_of_device[device] = 1
        return [taken_ns] * len(columns["device_id"])


def ask_times(where: str) -> InputError:
    """The question for the times of a log without any."""
    return InputError(
        f"{where}: nothing in it tells when its rows were taken. Say when with --taken-at "
        "2026-11-30T14:00:00Z, for a log of one moment, or with --started 2026-11-30T14:00:00Z and "
        "--interval SECONDS, for one sample a row of each device."
    )


def _is_small(cell: str) -> bool:
    """Whether a cell is a plain number below 10**8: seconds since some start, not since 1970."""
    ns = elapsed_ns(cell)
    return ns is not None and ns < 10**8 * NS
