"""Writes what the job's time went to besides training steps into the flow's journal.

A span is written when it ends, also when what it measures has failed. With those that rank 0 writes
(training/job_records.py) they tile the job's time; what none of them covers is unknown.

Before: flows/pipeline.py and flows/training_steps.py measure.   After: fact_span.
Price: a small file each, written and synced in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from analytics.journal import JournalWriter
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
