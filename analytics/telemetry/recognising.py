"""Says what form a file of telemetry has, by what is in it and never by its name.

Before: importing.py has a path.   After: the importer of that form reads it.
Price: the first 64 KiB of a file; for JSON that these do not settle, a look by the trace reader.
"""

from __future__ import annotations

import re
from pathlib import Path

from analytics.errors import InputError
from analytics.sources.files import shown
from analytics.telemetry.bounded_text import HEAD_BYTES, decoded_head, head
from analytics.telemetry.dcgm_text import looks_like_dcgm_text
from analytics.telemetry.delimited_columns import DELIMITERS, header_layout
from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.mlflow_system_metrics import looks_like_table
from analytics.telemetry.nvidia_smi_capture import looks_like_capture
from analytics.telemetry.nvidia_smi_dmon import looks_like_dmon

TRACE, DUMP, BILL, POOLS = "kineto_trace", "flight_recorder", "focus_bill", "pools"
_KNOWN = (
    "nvidia-smi (--query-gpu as CSV, dmon, -q -x as XML), DCGM-exporter's text, a JSON answer of "
    "Prometheus, MLflow's system metrics, a profiler's trace, a flight recorder's dump, a FOCUS "
    "cost export, or a CSV of pools, teams or allocations (docs/costs.md)"
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_TRACE_WORDS = ('"traceEvents"', '"deviceProperties"', '"distributedInfo"')


def form_of(path: Path, options: ImportOptions, given: Path | None = None) -> str:
    """The form of a plain, unpacked file: one of KINDS, TRACE, DUMP or BILL.

    given: the file as the person named it, where `path` was unpacked from it.
    Raises InputError saying what the file begins with when it is none of them.
    """
    start = head(path)
    named = given or path
    if not start.strip(b"\0 \r\n\t"):
        raise _nothing(path, named)
    if options.kind is not None:
        return options.kind
    if start.startswith(b"SQLite format 3\0"):
        return "mlflow_sqlite"
    if _PICKLE.match(start) or start.startswith(b"PK\x03\x04"):
        return _binary(path, named)
    text = decoded_head(start)
    if text.lstrip()[:1] in ("{", "["):
        return _of_json(path, text, named)
    return _of_text(named, text, options)


def _nothing(path: Path, named: Path) -> InputError:
    """The answer to a file that begins with nothing but blanks and zero bytes."""
    if path.stat().st_size <= HEAD_BYTES:
        return InputError(f"{shown(named)}: the file is empty. There is nothing to import.")
    return InputError(
        f"{shown(named)}: its first {HEAD_BYTES:,} bytes are blanks and zero bytes, so its form "
        "cannot be told. Cut them off."
    )


def is_trace_tar(start: bytes) -> bool:
    """Whether an unpacked tar's first member is named as a trace: several ranks in one archive."""
    name = start[:100].split(b"\0")[0]
    return start[257:262] == b"ustar" and name.endswith((b".json", b".json.gz", b"/"))


def of_money(path: Path) -> str | None:
    """BILL or POOLS, packed or a folder of parts as they may be; None when it is neither."""
    from analytics.billing import looks_like_focus
    from analytics.pools import looks_like_pools

    if looks_like_focus(path):
        return BILL
    return POOLS if looks_like_pools(path) else None


def of_many_ranks(start: bytes) -> str | None:
    """TRACE or DUMP by a file's first bytes, the forms of which every rank writes a file."""
    if is_trace_head(start):
        return TRACE
    return DUMP if _PICKLE.match(start) else None


def is_trace_head(start: bytes) -> bool:
    """Whether a file's first bytes are those of a profiler's trace."""
    is_object = start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{")
    return is_object and any(word.encode() in start for word in _TRACE_WORDS)


def _binary(path: Path, named: Path) -> str:
    from analytics.kineto.flight_recorder import looks_like_dump

    if looks_like_dump(path):
        return DUMP
    raise _unknown(named, "a binary file")


def _of_json(path: Path, text: str, named: Path) -> str:
    if any(word in text for word in _TRACE_WORDS):
        return TRACE
    if '"resultType"' in text or re.search(r'"status"\s*:\s*"(success|error)"', text):
        return "promql_json"
    if '"metrics"' in text and '"timestamp"' in text:
        return "mlflow_json"
    from analytics.kineto.flight_recorder import looks_like_dump
    from analytics.kineto.reading import looks_like_trace

    if looks_like_dump(path):
        return DUMP
    if looks_like_trace(path):
        return TRACE
    raise _unknown(named, f"JSON that begins with {text.lstrip()[:60]!r}")


def _of_text(path: Path, text: str, options: ImportOptions) -> str:
    stripped = text.lstrip()
    if stripped.startswith(("<?xml", "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log")):
        return "nvidia_smi_xml"
    first = next((line for line in text.splitlines() if line.strip()), "")
    found = (
        ("nvidia_smi_capture", looks_like_capture(stripped)),
        ("nvidia_smi_dmon", looks_like_dmon(text)),
        ("mlflow_csv", looks_like_table(first)),
        ("nvidia_smi_csv", any(header_layout(first, d, options.renamed) for d in DELIMITERS)),
        ("dcgm_text", looks_like_dcgm_text(text)),
        # what has columns at all gets its answer from the CSV reader, which names them
        ("nvidia_smi_csv", first.isprintable() and any(d in first for d in DELIMITERS)),
    )
    for form, is_it in found:
        if is_it:
            return form
    raise _unknown(path, f"text that begins with {first.strip()[:60]!r}")


def _unknown(path: Path, what: str) -> InputError:
    return InputError(
        f"{shown(path)}: this is {what}, and none of the forms that are known: {_KNOWN}."
    )
