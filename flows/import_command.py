"""`seqscale import-telemetry`: logs of devices, and other people's traces and bills, to our tables.

Before: files or folders a person has.   After: the landing zone, and the warehouse published anew.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analytics.errors import ConfigError

if TYPE_CHECKING:
    from analytics.telemetry.importing import Outcome

_RUNS_DIR = Path("runs")
_MOST_SHOWN = 8
_MOST_OFFSET_S = 315_576_000  # ten years


def import_telemetry(
    paths: Annotated[list[Path], typer.Argument(help="Files or folders; their form is found out.")],
    runs_dir: Annotated[
        Path, typer.Option(help="Folder of warehouse, MLflow store and runs.")
    ] = _RUNS_DIR,
    host: Annotated[str | None, typer.Option(help="Host that the rows were taken on.")] = None,
    time_zone: Annotated[
        str | None, typer.Option(help="Zone of wall clock times, such as Europe/Madrid or UTC.")
    ] = None,
    day_first: Annotated[
        bool | None, typer.Option("--day-first/--month-first", help="How 04-03-2021 is read.")
    ] = None,
    taken_at: Annotated[
        str | None, typer.Option(help="When a log of one moment was taken, with its zone.")
    ] = None,
    started: Annotated[
        str | None, typer.Option(help="When a log of elapsed or untold times began.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between the rows of a log without times.")
    ] = None,
    pipeline: Annotated[str, typer.Option(help="The run that the rows belong to.")] = "",
    clock_offset: Annotated[
        float | None, typer.Option(help="Seconds that the log's clock was ahead of UTC.")
    ] = None,
    estimate_clock: Annotated[
        bool, typer.Option("--estimate-clock", help="Find that from the steps of --pipeline.")
    ] = False,
    fields: Annotated[
        str | None, typer.Option(help="Fields of a CSV without a header, separated by commas.")
    ] = None,
    mapped: Annotated[
        list[str] | None, typer.Option("--map", help="COLUMN=FIELD of a CSV; may be repeated.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Form of the files; found when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Import logs of devices, traces, dumps or bills; every row is loaded or rejected."""
    from analytics.telemetry.import_options import ImportOptions
    from analytics.telemetry.importing import REFUSED
    from analytics.telemetry.importing import import_telemetry as import_path
    from analytics.telemetry.instants import read_instant

    options = ImportOptions(
        kind=kind,
        host=host,
        time_zone=time_zone,
        day_first=day_first,
        started_unix_ns=None if started is None else read_instant(started),
        taken_unix_ns=None if taken_at is None else read_instant(taken_at),
        interval_s=interval,
        pipeline_id=pipeline,
        clock_offset_ns=None if clock_offset is None else _offset_ns(clock_offset),
        estimate_clock=estimate_clock,
        fields=None if fields is None else tuple(name.strip() for name in fields.split(",")),
        renamed=_pairs(mapped or []),
    )
    outcomes: list[Outcome] = []
    is_asked_for_refused = False
    for path in paths:
        found = import_path(path, runs_dir, options)
        outcomes += found
        is_asked_for_refused |= not any(one.about for one in found)
    has_any = any(one.about for one in outcomes)
    warehouse, num_conflicts = _published(runs_dir) if has_any else (None, 0)
    if as_json:
        document = {
            "outcomes": [dataclasses.asdict(one) for one in outcomes],
            "warehouse": None if warehouse is None else str(warehouse),
            "num_conflicts": num_conflicts,
        }
        typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        for one in outcomes:
            typer.echo(_text(one), err=one.status == REFUSED)
        if warehouse is not None:
            if num_conflicts:
                typer.echo(
                    f"{num_conflicts:,} figures contradict samples of the same device and time "
                    "that were there before; the larger is kept, both are in fact_sample_conflict"
                )
            typer.echo(f"warehouse: {warehouse}")
    if is_asked_for_refused:
        raise typer.Exit(2)


def _published(runs_dir: Path) -> tuple[Path, int]:
    """Load the landing zone and publish the warehouse; its path, and contradictions found."""
    from analytics.warehouse import load, publish

    report = load(runs_dir)
    return publish(runs_dir), report.num_conflicts


def _offset_ns(seconds: float) -> int:
    """A clock's offset in whole nanoseconds; raises ConfigError beyond ten years."""
    if not abs(seconds) <= _MOST_OFFSET_S:  # NaN as well
        raise ConfigError(
            f"--clock-offset is {seconds:g}; expected the seconds by which the source's clock was "
            f"ahead of UTC, at most {_MOST_OFFSET_S:,} either way."
        )
    return round(seconds * 1e9)


def _pairs(mapped: list[str]) -> tuple[tuple[str, str], ...]:
    """COLUMN=FIELD of each --map; raises ConfigError for another text."""
    pairs = []
    for text in mapped:
        column, sign, field = text.rpartition("=")
        if not (sign and column.strip() and field.strip()):
            raise ConfigError(
                f"--map is {text!r}; expected COLUMN=FIELD, such as --map duty=utilization.gpu"
            )
        pairs.append((column.strip(), field.strip()))
    return tuple(pairs)


def _text(one: Outcome) -> str:
    """What became of one source, for a person."""
    if one.status == "refused":
        return f"refused: {one.reason}"
    if one.status == "not_looked_at":
        return f"{one.path}: {one.reason}"
    about = one.about
    assert about is not None  # only a refused source has none
    lines = [
        f"{one.path}: {about.source_kind}, {about.num_read:,} rows read = {about.num_loaded:,} "
        f"loaded + {about.num_rejected:,} rejected; {about.num_records:,} records"
        + (f", {about.num_conflicts:,} contradictions" if about.num_conflicts else "")
        + (f" ({one.reason})" if one.reason else "")
    ]
    lines += _counts("rejected", one.rejected)
    lines += _counts("figures left out", one.left_out)
    lines += _counts("loaded, with an odd time", one.flags)
    if about.clock_offset_ns is not None:
        lines.append(f"  clock: {_offset_text(about.clock_offset_ns)}")
    return "\n".join([*lines, *(f"  {note}" for note in one.notes)])


def _offset_text(offset_ns: int) -> str:
    seconds = f"{abs(offset_ns) / 1e9:.3f}".rstrip("0").rstrip(".")
    if offset_ns < 0:
        return f"{seconds} s behind UTC, added"
    return f"{seconds} s ahead of UTC, taken off"


def _counts(what: str, counts: dict[str, Any]) -> list[str]:
    """A line for each reason, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [f"  {what}: {num:,} {reason}" for reason, num in ordered[:_MOST_SHOWN]]
    if len(ordered) > _MOST_SHOWN:
        lines.append(f"  {what}: {len(ordered) - _MOST_SHOWN} more reasons")
    return lines
