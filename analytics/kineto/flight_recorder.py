"""Imports dumps of torch's flight recorder: when each rank enqueued its collectives.

A dump is a pickle of plain values (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` and the rank) or the same as
JSON. A rank has arrived at a collective when it enqueued it, `time_created_ns`. One whose end is
not recorded has no duration: none of gloo's has, and in the dump of a hang none that hangs.

Before: torch wrote a dump for each rank.   After: analytics/landing.py holds fact_collective.
Price: the dump in memory twice.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from analytics import landing
from analytics.errors import InputError
from analytics.kineto import files
from analytics.kineto.importing import content_hash, seqscale_version
from analytics.kineto.kernels import collective_kind
from analytics.kineto.marks import bytes_told
from analytics.kineto.safe_pickle import UnsafePickleError, loads
from analytics.schema import DimImport, DimRank, DimRun, FactCollective, FactImportReject

SOURCE_KIND = "flight_recorder"
MAX_DUMP_BYTES = 256 << 20
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin))?$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One collective that a rank enqueued."""

    group: str
    kind: str
    backend: str  # as nccl or gloo; may be empty
    is_p2p: bool
    sequence: int
    created_ns: int
    began_ns: int
    duration_ns: int | None  # None when its end is not recorded
    sent_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dump:
    """What one rank recorded."""

    name: str
    rank: int
    group_sizes: dict[str, int]
    entries: tuple[Entry, ...]
    num_read: int
    rejects: tuple[tuple[int, str, str], ...]  # (entry from 1, reason, text)


def looks_like_dump(path: Path) -> bool:
    """Whether a file seems to be a dump, by its first bytes. Never raises for what it holds."""
    try:
        with path.open("rb") as opened:
            start = opened.read(1 << 16)
    except OSError:
        return False
    names = (b"pg_config", b"pg_status", b"collective_seq_id", b"time_created_ns", b"nccl_comm")
    is_form = start[:1] == b"\x80" or start.lstrip()[:1] == b"{"
    return is_form and b"version" in start and any(name in start for name in names)


def read_dump(path: Path, *, rank: int | None = None) -> Dump:
    """One rank's dump.

    rank: when the file's name does not end in it.
    Raises InputError naming the file and what is wrong with it.
    """
    said = _plain(path)
    entries = said.get("entries", [])
    if not isinstance(entries, list | tuple):
        raise InputError(f"{path.name}: its 'entries' are no list, so it is no dump.")
    told = said.get("rank") if rank is None else rank
    if not isinstance(told, int) or not 0 <= told < 2**31:
        found = _RANK.search(path.name)
        if found is None or len(found.group(1)) > 9:
            raise InputError(
                f"{path.name}: neither the dump nor its name tells the rank. Let the name end in "
                "it, as in nccl_trace_rank_0."
            )
        told = int(found.group(1))
    made: list[Entry] = []
    rejects: list[tuple[int, str, str]] = []
    sizes = _group_sizes(said.get("pg_config")) | _size_of_default(said.get("pg_config"), entries)
    for line, entry in enumerate(entries, 1):
        result = _entry(entry)
        if isinstance(result, Entry):
            made.append(result)
        else:
            rejects.append((line, result, _shown(entry)))
    return Dump(
        name=path.name, rank=told, group_sizes=sizes, entries=tuple(made), num_read=len(entries),
        rejects=tuple(rejects),
    )  # fmt: skip


def import_dumps(
    paths: Sequence[Path], runs_dir: Path, *, host: str | None = None, rank: int | None = None
) -> DimImport:
    """Import the dumps of one job, one a rank, into the landing zone; what became of them.

    Raises InputError when one is no dump, two are of one rank, or no entry can be used.
    """
    sha256, num_bytes = content_hash(paths)
    known = landing.find(runs_dir, sha256[:16])
    if known is not None:
        return known
    dumps: dict[int, Dump] = {}
    for path in paths:
        dump = read_dump(path, rank=rank if len(paths) == 1 else None)
        if dump.rank in dumps:
            raise InputError(
                f"{dump.name}: this and {dumps[dump.rank].name} are both of rank {dump.rank}. "
                "Name the dumps of one job, one a rank."
            )
        dumps[dump.rank] = dump
    about = _about(list(dumps.values()), paths, sha256, num_bytes, host)
    if not about.num_loaded:
        reasons = Counter(reason for dump in dumps.values() for _, reason, _ in dump.rejects)
        raise landing.none_usable(about.source_name, reasons, "docs/traces.md")
    records = _records(dumps, about, host)
    num_records = sum(not isinstance(record, FactImportReject) for record in records)
    about = dataclasses.replace(about, num_records=num_records)
    with landing.landing_tables(runs_dir) as con:
        for kind in dict.fromkeys(map(type, records)):
            landing.insert_records(con, [one for one in records if type(one) is kind])
        landing.land(con, runs_dir, about)
    return about


def _plain(path: Path) -> Mapping[str, Any]:
    with files.guarded(path.name), path.open("rb") as opened:
        data = opened.read(MAX_DUMP_BYTES + 1)
    if len(data) > MAX_DUMP_BYTES:
        raise InputError(f"{path.name}: it is larger than {MAX_DUMP_BYTES >> 20} MiB, so no dump.")
    try:
        said = orjson.loads(data) if data.lstrip()[:1] in b"{[" else loads(data)
    except UnsafePickleError as error:
        raise InputError(
            f"{path.name}: this pickle is not read: {error}. Dumps of the flight recorder hold "
            "plain values; write the dump again, or as JSON."
        ) from error
    except ValueError as error:
        raise InputError(
            f"{path.name}: this is not whole JSON ({error}). Copy the dump again."
        ) from error
    if not isinstance(said, dict) or "version" not in said:
        raise InputError(
            f"{path.name}: it tells no 'version', so it is no dump of the flight recorder."
        )
    return said


def _entry(entry: Any) -> Entry | str:
    """What an entry tells, or the reason for which it cannot be used."""
    if not isinstance(entry, dict):
        return "not_an_entry"
    created = _time(entry.get("time_created_ns"))
    is_p2p = entry.get("is_p2p") is True
    sequence = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
    name = entry.get("profiling_name")
    if created is None or not isinstance(name, str) or not _is_whole(sequence):
        return "incomplete"
    began = _time(entry.get("time_discovered_started_ns"))
    ended = _time(entry.get("time_discovered_completed_ns"))
    took_ms = entry.get("duration_ms")
    start = created if began is None else max(began, created)
    duration_ns: int | None = None
    if isinstance(took_ms, int | float) and 0 <= took_ms < 1e12:
        duration_ns = round(took_ms * 1e6)
    elif ended is not None and ended >= start:
        duration_ns = ended - start
    group = entry.get("process_group")
    group = group[0] if isinstance(group, list | tuple) and group else entry.get("pg_id", "")
    shapes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    told = {"Input Dims": _listed(shapes), "Input type": _listed(kinds)}
    return Entry(
        group=str(group)[:200] if isinstance(group, str | int) else "",
        kind=collective_kind(name), backend=name.rpartition(":")[0], is_p2p=is_p2p,
        sequence=sequence, created_ns=created, began_ns=start, duration_ns=duration_ns,
        sent_bytes=bytes_told(told),
    )  # fmt: skip


def _listed(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return None
    return [list(one[:9]) if isinstance(one, list | tuple) else one for one in value[:64]]


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _time(value: Any) -> int | None:
    return value if _is_whole(value) and value > 0 else None


def _shown(entry: Any) -> str:
    """The plain values of an entry; what it holds inside is left out, it may hold itself."""
    if not isinstance(entry, dict):
        return type(entry).__name__
    plain = {
        str(key)[:40]: value[:80] if isinstance(value, str) else value
        for key, value in list(entry.items())[:40]
        if (isinstance(key, str) and isinstance(value, str | bool | float | None))
        or (isinstance(key, str) and _is_whole(value))
    }
    return str(plain)[:200]


def _group_sizes(config: Any) -> dict[str, int]:
    groups = config.items() if isinstance(config, dict) else ()
    sizes = {name: len(_ranks(group)) for name, group in groups if isinstance(name, str)}
    return {name: size for name, size in sizes.items() if size}


def _size_of_default(config: Any, entries: Sequence[Any]) -> dict[str, int]:
    """The size of the default group where it is told under no name, as gloo's of torch 2.10 is.

    Only when nothing else is told: with several groups the one without a name is any of them.
    """
    if not isinstance(config, dict) or set(config) != {""}:
        return {}
    groups = [entry.get("process_group") for entry in entries if isinstance(entry, dict)]
    first = groups[0] if groups else None
    if not isinstance(first, list | tuple) or len(first) != 2 or first[1] != "default_pg":
        return {}
    if not isinstance(first[0], str) or any(group != first for group in groups):
        return {}
    ranks = _ranks(config[""])
    return {first[0]: len(ranks)} if ranks and ranks == list(range(len(ranks))) else {}


def _ranks(group: Any) -> list[Any]:
    """Ranks of a group of `pg_config`, a list or the text of one."""
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if isinstance(ranks, str):
        return [int(rank) for rank in re.findall(r"\d{1,9}", ranks[:1_000_000])]
    return list(ranks) if isinstance(ranks, list | tuple) else []


def _about(
    dumps: Sequence[Dump], paths: Sequence[Path], sha256: str, num_bytes: int, host: str | None
) -> DimImport:
    times = [
        time_ns
        for dump in dumps
        for entry in dump.entries
        for time_ns in (entry.created_ns, entry.began_ns + (entry.duration_ns or 0))
    ]
    num_read = sum(dump.num_read for dump in dumps)
    num_rejected = sum(len(dump.rejects) for dump in dumps)
    return DimImport(
        import_id=sha256[:16], source_kind=SOURCE_KIND,
        source_name=paths[0].name if len(paths) == 1 else paths[0].parent.name,
        source_sha256=sha256, num_bytes=num_bytes, num_files=len(paths), num_read=num_read,
        num_loaded=num_read - num_rejected, num_rejected=num_rejected, num_records=0,
        num_conflicts=0, host=host, time_zone=None, clock_offset_ns=None,
        clock_uncertainty_ns=None, clock_skew_ppm=None, collector="torch flight recorder",
        first_unix_ns=min(times, default=None), last_unix_ns=max(times, default=None),
        imported_unix_ns=time.time_ns(), pipeline_id="", options_text=None,
    )  # fmt: skip


def _records(dumps: Mapping[int, Dump], about: DimImport, host: str | None) -> list[Any]:
    """Run, ranks, collectives and rejects.

    A collective is the same on every rank by process group, sequence number and its place among
    those of that number. When every rank of the group recorded it, the last arrival is told, as
    far as the hosts' clocks agree.
    """
    by_key: dict[tuple[str, bool, int, int], dict[int, Entry]] = defaultdict(dict)
    for rank, dump in dumps.items():
        nth: dict[tuple[str, bool, int], int] = defaultdict(int)
        for entry in dump.entries:  # what was launched as one group shares a sequence number
            number = (entry.group, entry.is_p2p, entry.sequence)
            by_key[*number, nth[number]][rank] = entry
            nth[number] += 1
    world_size = max([max(dumps) + 1, *(n for d in dumps.values() for n in d.group_sizes.values())])
    backends = {entry.backend for dump in dumps.values() for entry in dump.entries}
    run = _run(about, world_size, host, device="cpu" if backends == {"gloo"} else "cuda")
    records: list[Any] = [run]
    names = files.distinct_names({rank: dump.name for rank, dump in dumps.items()})
    for rank in sorted(dumps):
        records.append(
            DimRank(
                run_id=run.run_id, pipeline_id=run.pipeline_id, attempt=0, rank=rank,
                local_rank=None, host=run.host, device_id=None, device_name=None,
                clock_offset_ns=None, clock_uncertainty_ns=None, peak_memory_bytes=None,
            )
        )  # fmt: skip
        records += [
            FactImportReject(
                import_id=about.import_id, file_name=names[rank], line=line, reason=reason,
                text=text,
            )
            for line, reason, text in dumps[rank].rejects
        ]  # fmt: skip
    order = sorted(by_key, key=lambda key: (min(e.created_ns for e in by_key[key].values()), key))
    for place, key in enumerate(order):
        same = by_key[key]
        sizes = [dumps[rank].group_sizes.get(key[0]) for rank in same]
        is_whole = not key[1] and sizes[0] is not None and sizes == [len(same)] * len(same)
        last = max(same, key=lambda rank: (same[rank].created_ns, -rank)) if is_whole else None
        for rank, entry in same.items():
            records.append(_row(run, rank, place, entry, None if last is None else (last, same)))
    return records


def _row(
    run: DimRun, rank: int, place: int, entry: Entry, last: tuple[int, Mapping[int, Entry]] | None
) -> FactCollective:
    return FactCollective(
        run_id=run.run_id, pipeline_id=run.pipeline_id, attempt=0, rank=rank, step=0,
        collective=place, kind=entry.kind, label=f"{entry.sequence}", process_group=entry.group,
        arrived_unix_ns=entry.created_ns,
        last_arrived_unix_ns=None if last is None else last[1][last[0]].created_ns,
        began_unix_ns=entry.began_ns,
        duration_s=None if entry.duration_ns is None else entry.duration_ns / 1e9, exposed_s=None,
        straggler_wait_s=None, wire_s=None, last_rank=None if last is None else last[0],
        sent_bytes=entry.sent_bytes,
    )  # fmt: skip


def _run(about: DimImport, world_size: int, host: str | None, *, device: str) -> DimRun:
    run_id = f"trace-{about.import_id}"
    return DimRun(
        run_id=run_id, pipeline_id=run_id, attempt=0, arm="trace", placement=None, schedule=None,
        dataset_id=None, config_sha256=about.source_sha256, seed=None, world_size=world_size,
        device=device, host=host or "unknown", num_steps=0, num_epochs=None,
        global_batch_sequences=None, predicted_straggler_share=None, bound_straggler_share=None,
        collision_share=None, instance_type=None, device_hour_cost=None, currency=None,
        started_unix_ns=about.first_unix_ns or 0, seqscale_version=seqscale_version(),
        transport=None, precision=None, micro_batches=None, table_optimizer=None,
        scaling_sha256=None,
    )  # fmt: skip
