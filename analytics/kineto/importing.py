"""Stores what traces say like any run: run, ranks, steps, collectives, kernels.

A run known by its traces has arm `trace` and the run id `trace-<import id>`; what a trace cannot
tell, such as its data set, is NULL. The same files imported again are the same import.

Before: analysis.py has analyzed the traces.   After: analytics/landing.py holds the rows for the
warehouse.
Price: the analysis, and a row for each step, collective and kernel name of a rank.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from analytics import landing
from analytics.errors import ConfigError
from analytics.kineto import files
from analytics.kineto.analysis import Analysis, RankAnalysis, analyze_files, device_name
from analytics.kineto.breakdown import KERNEL_DELAY_NS
from analytics.kineto.rank_rows import collective_rows, kernel_rows, step_rows
from analytics.schema import DimImport, DimRank, DimRun, FactImportReject

MOST_DEVICE_HOUR_COST = 1_000_000  # beyond, costs would outgrow their columns
SOURCE_KIND = "kineto_trace"
_GAP = "kernel_gap_us"


def import_traces(
    paths: Sequence[Path],
    runs_dir: Path,
    *,
    host: str | None = None,
    device_hour_cost: float | None = None,
    currency: str | None = None,
    max_bytes: int = files.MAX_BYTES,
    gap_ns: int = KERNEL_DELAY_NS,
    analysis: Analysis | None = None,
) -> DimImport:
    """Import traces of one job, one a rank, into the landing zone; what became of them.

    analysis: of the same paths, when it was made already.
    Raises InputError when one is no trace or was imported with other options, ConfigError when a
    price lacks its currency or is none.
    """
    if (device_hour_cost is None) != (currency is None):
        raise ConfigError(
            "A price of a device-hour needs its currency and a currency a price. Give both "
            "--device-hour-cost and --currency, or neither."
        )
    if device_hour_cost is not None and not 0 <= device_hour_cost <= MOST_DEVICE_HOUR_COST:
        raise ConfigError(
            f"--device-hour-cost is {device_hour_cost:g}; expected 0 to {MOST_DEVICE_HOUR_COST:,}."
        )
    if currency is not None and not re.fullmatch(r"[A-Z]{3}", currency):
        raise ConfigError(
            f"--currency is '{currency}', which is no code of ISO 4217; give three capital "
            "letters, such as USD."
        )
    found = files.trace_files(paths)
    sha256, num_bytes = content_hash(found)
    known = landing.find(runs_dir, sha256[:16])
    told: dict[str, object] = {
        "host": host, "device_hour_cost": device_hour_cost, "currency": currency,
        _GAP: None if gap_ns == KERNEL_DELAY_NS else f"{gap_ns / 1000:g}",
    }  # fmt: skip
    if known is not None:
        landing.check_same_options(known, told, str(paths[0]), runs_dir)
        return known
    if analysis is None:
        analysis = analyze_files(paths, max_bytes=max_bytes, gap_ns=gap_ns)
    about = dataclasses.replace(
        _about(analysis, found, sha256, num_bytes, host), options_text=landing.options_text(told)
    )
    run = _run(analysis, about, host, device_hour_cost, currency)
    with landing.landing_tables(runs_dir) as con:
        records: list[Any] = [run, *_ranks(analysis, run, host)]
        names = files.distinct_names({one.rank: one.trace.name for one in analysis.ranks})
        for one in analysis.ranks:
            records += step_rows(one, run)
            records += collective_rows(one, run)
            records += kernel_rows(one, run)
            records += _rejects(one, about.import_id, names[one.rank])
        num_records = 0
        for kind in dict.fromkeys(map(type, records)):
            same = [record for record in records if type(record) is kind]
            landing.insert_records(con, same)
            num_records += len(same) if kind is not FactImportReject else 0
        about = dataclasses.replace(about, num_records=num_records)
        landing.land(con, runs_dir, about)
    return about


def stored_gap_us(about: DimImport) -> float:
    """Below which idle time of a stored import is a gap of kernels [us]."""
    told = re.search(rf"\b{_GAP}=([0-9.e+]+)", about.options_text or "")
    return float(told.group(1)) if told else KERNEL_DELAY_NS / 1000


def content_hash(paths: Sequence[Path]) -> tuple[str, int]:
    """(SHA-256 over the contents of files whatever their order and names, their bytes)."""
    hashes, num_bytes = [], 0
    for path in paths:
        with files.guarded(path.name), path.open("rb") as opened:
            hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
            num_bytes += path.stat().st_size
    if len(hashes) == 1:
        return hashes[0], num_bytes
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest(), num_bytes


def _about(
    analysis: Analysis, found: Sequence[Path], sha256: str, num_bytes: int, host: str | None
) -> DimImport:
    traces = [one.trace for one in analysis.ranks]
    num_read = sum(trace.num_read for trace in traces)
    num_rejected = sum(len(trace.rejects) for trace in traces)
    return DimImport(
        import_id=sha256[:16], source_kind=SOURCE_KIND,
        source_name=found[0].name if len(found) == 1 else found[0].parent.name,
        source_sha256=sha256, num_bytes=num_bytes, num_files=len(found), num_read=num_read,
        num_loaded=num_read - num_rejected, num_rejected=num_rejected, num_records=0,
        num_conflicts=0, host=host, time_zone=None, clock_offset_ns=None,
        clock_uncertainty_ns=None, clock_skew_ppm=None, collector="torch.profiler",
        first_unix_ns=max(0, min(t.base_unix_ns + t.first_ns for t in traces)),
        last_unix_ns=max(0, max(t.base_unix_ns + t.last_ns for t in traces)),
        imported_unix_ns=time.time_ns(), pipeline_id="", options_text=None,
    )  # fmt: skip


def _run(
    analysis: Analysis, about: DimImport, host: str | None, cost: float | None, currency: str | None
) -> DimRun:
    run_id = f"trace-{about.import_id}"
    is_cuda = any(one.trace.has_device for one in analysis.ranks)
    return DimRun(
        run_id=run_id, pipeline_id=run_id, attempt=0, arm="trace", placement=None, schedule=None,
        dataset_id=None, config_sha256=about.source_sha256, seed=None,
        world_size=analysis.world_size, device="cuda" if is_cuda else "cpu",
        host=host or "unknown",
        num_steps=max(len(one.tiles.steps) for one in analysis.ranks), num_epochs=None,
        global_batch_sequences=None, predicted_straggler_share=None, bound_straggler_share=None,
        collision_share=None, instance_type=None, device_hour_cost=cost, currency=currency,
        started_unix_ns=about.first_unix_ns or 0, seqscale_version=seqscale_version(),
        transport=None, precision=None, micro_batches=None, table_optimizer=None,
        scaling_sha256=None,
    )  # fmt: skip


def seqscale_version() -> str:
    """The version of seqscale that is installed."""
    try:
        return metadata.version("seqscale")
    except metadata.PackageNotFoundError:
        return "unknown"


def _device_ids(analysis: Analysis, host: str | None) -> dict[int, str | None]:
    """Each rank's device: by its index on the host, unless ranks of unknown hosts share one.

    Those may be devices of several machines, and taken for one they would share its time.
    """
    found: dict[int, str | None] = {}
    for one in analysis.ranks:
        indices = one.trace.device[one.trace.device >= 0]
        found[one.rank] = f"gpu-{int(indices[0])}" if len(indices) else None
    named = [device_id for device_id in found.values() if device_id is not None]
    if host is None and len(set(named)) < len(named):
        return dict.fromkeys(found)
    return found


def _ranks(analysis: Analysis, run: DimRun, host: str | None) -> Iterator[DimRank]:
    device_ids = _device_ids(analysis, host)
    for one in analysis.ranks:
        yield DimRank(
            run_id=run.run_id, pipeline_id=run.pipeline_id, attempt=0, rank=one.rank,
            local_rank=None, host=run.host,
            device_id=device_ids[one.rank],
            device_name=device_name(one.trace), clock_offset_ns=one.clock.offset_ns,
            clock_uncertainty_ns=one.clock.uncertainty_ns, peak_memory_bytes=None,
        )  # fmt: skip


def _rejects(one: RankAnalysis, import_id: str, file_name: str) -> Iterator[FactImportReject]:
    for line, reason, text in one.trace.rejects:
        yield FactImportReject(
            import_id=import_id, file_name=file_name, line=line, reason=reason, text=text
        )
