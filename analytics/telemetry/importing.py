"""Imports logs of devices into the landing zone: one file, or each file of a folder.

A file is imported once: its import is named by the SHA-256 of its bytes, and the same bytes again
change nothing. Every row is loaded or rejected with line and reason. Files of a form that is not
known, and files that leave a question open, are refused with what to do; the others are imported.

Before: `seqscale import-telemetry`.   After: analytics/warehouse.py loads the landing zone.
Price: one pass to name the file and one to read it; the rows lie on disk until they are landed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from analytics import landing
from analytics.contradictions import SAMPLES, contradictions_query
from analytics.errors import ConfigError, InputError
from analytics.records import table_key
from analytics.schema import DimImport, FactDeviceSample
from analytics.sources.files import file_sha256, shown, unreadable
from analytics.telemetry import mlflow_system_metrics as mlflow_metrics
from analytics.telemetry.bounded_text import decoded, head, is_packed, numbered_lines, unpacked
from analytics.telemetry.dcgm_text import import_dcgm_text
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.import_sources import (
    IRREGULAR,
    LEFT_OUT,
    ImportSource,
    check_name,
    irregular,
    said,
    sources_at,
)
from analytics.telemetry.json_documents import read_json
from analytics.telemetry.named_run import check_run
from analytics.telemetry.nvidia_smi_capture import import_capture
from analytics.telemetry.nvidia_smi_csv import import_csv
from analytics.telemetry.nvidia_smi_dmon import import_dmon
from analytics.telemetry.nvidia_smi_xml import import_xml
from analytics.telemetry.promql_json import import_promql, looks_like_promql
from analytics.telemetry.recognising import (
    BILL,
    DUMP,
    TRACE,
    form_of,
    is_trace_head,
    is_trace_tar,
)
from analytics.telemetry.run_clock import fit_to_run

IMPORTED, ALREADY, REFUSED = "imported", "already", "refused"
NOT_LOOKED_AT = "not_looked_at"
_OF_LINES: dict[str, Callable[..., None]] = {
    "nvidia_smi_csv": import_csv,
    "nvidia_smi_dmon": import_dmon,
    "nvidia_smi_xml": import_xml,
    "nvidia_smi_capture": import_capture,
    "dcgm_text": import_dcgm_text,
    "mlflow_csv": mlflow_metrics.import_table,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file or folder; JSON-able through dataclasses.asdict.

    status: 'imported', 'already' (the same bytes were imported before), 'refused', or of names in a
    folder 'not_looked_at'.
    rejected: reason -> rows. left_out: reason -> figures whose row stayed. flags: rows that were
    loaded and whose time is odd.
    """

    path: str
    status: str
    reason: str | None = None  # why it was refused or passed over, or what 'already' stands for
    about: DimImport | None = None
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    flags: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def import_telemetry(
    path: Path, runs_dir: Path, options: ImportOptions | None = None
) -> list[Outcome]:
    """Import a file, or every file of a folder; one outcome for each, in the order of names.

    Raises WarehouseError when the landing zone cannot be written, ConfigError when the options name
    a run that is not known. What is wrong with a file is its outcome.
    """
    told = options or ImportOptions()
    if told.pipeline_id:
        check_run(runs_dir, told.pipeline_id)
    try:
        found = sources_at(path)
    except InputError as error:
        return [Outcome(path=shown(path), status=REFUSED, reason=str(error))]
    outcomes = []
    for source in found:
        try:
            outcomes.append(_import_one(source, runs_dir, told))
        except (InputError, ConfigError) as error:
            outcomes.append(Outcome(path=shown(source.path), status=REFUSED, reason=str(error)))
    return outcomes


def _import_one(source: ImportSource, runs_dir: Path, options: ImportOptions) -> Outcome:
    """Import one source; raises SeqscaleError when it is refused."""
    path = source.path
    if source.form == LEFT_OUT:
        return Outcome(path=shown(path), status=NOT_LOOKED_AT, reason=said(source))
    for one in source.files or mlflow_metrics.store_files(path) or [path]:
        check_name(one.relative_to(path.parent))
    if source.form == IRREGULAR:
        raise irregular(path)
    if source.form == "mlflow_store":
        return _landed(path, path, "mlflow_store", runs_dir, options)
    if source.form is not None:
        return _handed_on(source, source.form, runs_dir, options)
    try:
        with tempfile.TemporaryDirectory(prefix="seqscale-import-") as scratch:
            plain, form = path, None
            if is_packed(path):
                start = head(path)
                is_trace = is_trace_tar(start) or is_trace_head(start)
                form = TRACE if is_trace else None
                plain = path if is_trace else unpacked(path, Path(scratch))
            form = form or form_of(plain, options, path)
            if form in (TRACE, DUMP):
                return _handed_on(source, form, runs_dir, options)
            return _landed(path, plain, form, runs_dir, options)
    except OSError as error:
        raise unreadable(path, error) from error


def _handed_on(source: ImportSource, form: str, runs_dir: Path, options: ImportOptions) -> Outcome:
    """Traces, dumps and bills have rooms of their own."""
    before = set(landing.landed(runs_dir))
    notes = options.without_effect(("--host",) if form in (TRACE, DUMP) else ())
    if form == TRACE:
        from analytics.kineto.importing import import_traces

        about: DimImport = import_traces(source.files, runs_dir, host=options.host)
    elif form == DUMP:
        from analytics.kineto.flight_recorder import import_dumps

        about = import_dumps(source.files, runs_dir, host=options.host)
    elif form == BILL:
        from analytics.bill_standing import standing
        from analytics.billing import import_bill

        about = import_bill(source.path, runs_dir, source.files)
        notes += standing(about, source.files, runs_dir)
    else:
        from analytics.pools import import_pools

        about = import_pools(source.path, runs_dir)
    is_new = runs_dir / landing.FOLDER / about.import_id not in before
    return Outcome(
        path=shown(source.path),
        status=IMPORTED if is_new else ALREADY,
        reason=None if is_new else _unchanged(about),
        about=about,
        rejected=landing.rejected(runs_dir, about.import_id) if is_new else {},
        notes=tuple(notes),
    )


def _landed(path: Path, plain: Path, form: str, runs_dir: Path, options: ImportOptions) -> Outcome:
    """Gather a source's rows and land them.

    plain: what is read, where `path` is packed.
    """
    where = shown(path)
    files = mlflow_metrics.store_files(path) if path.is_dir() else [path]
    sha256 = _sha256(path, files)
    known = landing.find(runs_dir, sha256[:16])
    if known is not None:
        return _already(path, known, options, runs_dir)
    with landing.landing_tables(runs_dir) as con:
        gathering = Gathering(
            con, import_id=sha256[:16], options=options, now_unix_ns=time.time_ns()
        )
        gathering.kind, gathering.file_name = form, path.name
        _read(plain, form, gathering, where)
        gathering.finish()
        if not gathering.num_loaded:
            raise landing.none_usable(where, gathering.rejected, "docs/telemetry.md")
        fitted = fit_to_run(con, runs_dir, options.pipeline_id) if options.estimate_clock else None
        if options.estimate_clock and fitted is None:
            gathering.note(
                "The clock was not fitted: no one offset makes these samples move with the run."
            )
        if fitted is not None and (drift := fitted.note()):
            gathering.note(drift)
        shift_ns = fitted.offset.offset_ns if fitted else 0
        assert gathering.first_unix_ns is not None  # a row was loaded
        assert gathering.last_unix_ns is not None
        num_records, num_conflicts = _merged_counts(con)
        about = DimImport(
            import_id=sha256[:16],
            source_kind=form,
            source_name=path.name,
            source_sha256=sha256,
            num_bytes=sum(file.stat().st_size for file in files),
            num_files=len(files),
            num_read=gathering.num_loaded + gathering.num_rejected,
            num_loaded=gathering.num_loaded,
            num_rejected=gathering.num_rejected,
            num_records=num_records,
            num_conflicts=num_conflicts,
            host=options.host,
            time_zone=str(gathering.zone) if gathering.needed_zone else None,
            clock_offset_ns=shift_ns if fitted else options.clock_offset_ns,
            clock_uncertainty_ns=fitted.offset.uncertainty_ns if fitted else None,
            clock_skew_ppm=fitted.skew.skew_ppm if fitted and fitted.skew else None,
            collector=gathering.collector,
            first_unix_ns=gathering.first_unix_ns - shift_ns,
            last_unix_ns=gathering.last_unix_ns - shift_ns,
            imported_unix_ns=gathering.now_unix_ns,
            pipeline_id=options.pipeline_id,
            options_text=landing.options_text(options.meaning()),
        )
        landing.land(con, runs_dir, about)
    return Outcome(
        path=shown(path),
        status=IMPORTED,
        about=about,
        rejected=dict(gathering.rejected),
        left_out=dict(gathering.left_out),
        flags=dict(gathering.flags),
        notes=tuple(gathering.notes),
    )


def _read(plain: Path, form: str, gathering: Gathering, where: str) -> None:
    """Have the importer of a form read a file."""
    if form in _OF_LINES:
        with decoded(plain) as text:
            _OF_LINES[form](numbered_lines(text), gathering, where)
    elif form == "mlflow_sqlite":
        mlflow_metrics.import_sqlite(plain, gathering, where)
    elif form == "mlflow_store":
        mlflow_metrics.import_store(plain, gathering, where)
    else:
        _read_document(read_json(plain, where), form, gathering, where)


def _read_document(document: Any, form: str, gathering: Gathering, where: str) -> None:
    if form == "promql_json" and looks_like_promql(document):
        import_promql(document, gathering, where)
    elif form == "mlflow_json" and mlflow_metrics.looks_like_answer(document):
        mlflow_metrics.import_answer(document, gathering, where)
    else:
        raise InputError(
            f"{where}: this JSON is neither an answer of Prometheus nor one of MLflow's "
            "metrics/get-history."
        )


def _sha256(path: Path, files: list[Path]) -> str:
    """SHA-256 of a file's bytes; of a folder's lines 'name sha256'."""
    try:
        if not path.is_dir():
            return file_sha256(path)
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.relative_to(path)} {file_sha256(file)}\n".encode())
        return digest.hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def _already(path: Path, known: DimImport, options: ImportOptions, runs_dir: Path) -> Outcome:
    """The same bytes were imported before; raises InputError when they were told otherwise."""
    told = {
        "--host": (options.host, known.host),
        "--time-zone": (options.time_zone, known.time_zone),
        "--clock-offset": (options.clock_offset_ns, known.clock_offset_ns),
        "--pipeline": (options.pipeline_id or None, known.pipeline_id or None),
    }
    other = [name for name, (now, then) in told.items() if now is not None and now != then]
    # a zone that no time needed is no difference
    other = [name for name in other if name != "--time-zone" or known.time_zone is not None]
    if other:
        then = told[other[0]][1]
        raise InputError(
            f"{shown(path)}: the same bytes were imported before with another {other[0]} "
            f"({'none' if then is None else then}). To import them anew, delete the folder "
            f"{runs_dir / landing.FOLDER / known.import_id}, run 'seqscale load --rebuild "
            f"--drop-gone --runs-dir {runs_dir}' and then this command again."
        )
    landing.check_same_options(known, options.meaning(), shown(path), runs_dir)
    return Outcome(path=shown(path), status=ALREADY, reason=_unchanged(known), about=known)


def _unchanged(known: DimImport) -> str:
    return f"the same bytes were imported before as {known.import_id}; nothing was changed"


def _merged_counts(con: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Rows of distinct keys, and figures of one key that contradict each other."""
    names = ", ".join(table_key(FactDeviceSample))
    num_rows, num_keys = con.execute(
        f"SELECT count(*), count(DISTINCT ({names})) FROM {SAMPLES}"  # noqa: S608
    ).fetchall()[0]
    if num_rows == num_keys:
        return num_keys, 0
    query = f"SELECT count(*) FROM ({contradictions_query(SAMPLES)})"  # noqa: S608
    return num_keys, con.execute(query).fetchall()[0][0]
