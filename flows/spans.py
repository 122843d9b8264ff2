"""Writes what the flow's time went to besides training steps into the flow's journal.

A span is written when it ends, also when what it measures has failed. With those that rank 0 writes
(training/job_records.py) they tile the job's time; what none of them covers is unknown.

Reporting spans end after the load that would have taken them up: the receipt tells them at once
(but for its own), the warehouse has them from the next load on. A load and a publish more at each
run's end would have taken 0.45 s on a small demo, and longer with every step recorded.

Before: flows/pipeline.py and flows/training_steps.py measure.   After: fact_span, the receipt.
Price: a small file each, written and synced in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from analytics.journal import JournalWriter, read_journal
from analytics.schema import FactSpan
from flows.request import RunRequest


@contextlib.contextmanager
def spanned(request: RunRequest, span_kind: str, label: str, *, attempt: int = 0) -> Iterator[None]:
    """The block is one span of the job; span_kind: one of those of fact_span."""
    began_ns = time.time_ns()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the failure that came first is the one to tell
            write_span(request, span_kind, label, began_ns, attempt=attempt)
        raise
    write_span(request, span_kind, label, began_ns, attempt=attempt)


def reporting_span(
    request: RunRequest, label: str, *, attempt: int
) -> AbstractContextManager[None]:
    """The block tells of the job once it is over; label: what it does, as the receipt has it."""
    return spanned(request, "reporting", label, attempt=attempt)


def reporting_times(request: RunRequest) -> list[tuple[str, float]]:
    """(label, length [s]) of every reporting span that has ended so far, in order."""
    spans = read_journal(request.journal_dir, FactSpan).records
    told = sorted((s for s in spans if s.span_kind == "reporting"), key=lambda s: s.began_unix_ns)
    return [(span.label, span.duration_s) for span in told]


def write_span(
    request: RunRequest,
    span_kind: str,
    label: str,
    began_unix_ns: int,
    *,
    ended_unix_ns: int | None = None,
    attempt: int = 0,
) -> None:
    """A span that began then and ended then, or now; none when a clock was set back meanwhile."""
    length_ns = (ended_unix_ns or time.time_ns()) - began_unix_ns
    if length_ns <= 0:
        return
    with JournalWriter(request.journal_dir, "flow-spans") as journal:
        journal.write(
            FactSpan(
                pipeline_id=request.pipeline_id,
                attempt=attempt,
                run_id=None,
                rank=0,
                span_kind=span_kind,
                label=label,
                began_unix_ns=began_unix_ns,
                duration_s=length_ns / 1e9,
            )
        )
