"""Writes the steps of a block and their waits, and tells what the recording itself has taken.

Before: step_records.py and step_recording.py have a block's windows and what each step tells.
After: fact_step and fact_collective in the journal.
Price: about 30 us of CPU a step of four waits, when its block is over and no window open.
"""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Mapping, Sequence

from analytics.journal import JournalWriter
from analytics.schema import FactCollective, FactStep, Scalar, columns
from training.collective_records import CollectiveRow, collective_rows
from training.comm.clocks import LastArrivals
from training.job_records import JobSpans
from training.recorder import Window
from training.step_parts import StepParts, step_parts, wait_parts

_PARTS = tuple(field.name for field in dataclasses.fields(StepParts))
_values_of = operator.attrgetter(*_PARTS)


class BlockRecords:
    """Writes one rank's blocks of steps.

    A step's recording_block_cpu_s is its share of the CPU time that its block takes until its lines
    are made; what making and writing them takes is told with the block after.
    """

    def __init__(
        self,
        journal: JournalWriter,
        spans: JobSpans,
        *,
        pipeline_id: str,
        attempt: int,
        rank: int,
        record_collectives: bool,
    ) -> None:
        self._journal = journal
        self._spans = spans
        self._ids: dict[str, Scalar] = {
            "pipeline_id": pipeline_id,
            "attempt": attempt,
            "rank": rank,
        }
        self._record_collectives = record_collectives
        self._untold_ns = 0  # CPU time that no step has told yet
        for record in (FactStep, FactCollective):
            columns(record)  # read from the classes now, a millisecond that no block then pays

    def write(
        self,
        run_id: str,
        block: int,
        windows: Sequence[Window],
        told: Mapping[str, Sequence[Scalar]],
        lasts: LastArrivals | None,
        *,
        mark_ns: float,
        begin_cpu_ns: int,
    ) -> None:
        """Write a block.

        told: columns of fact_step that windows do not tell, `step` among them. lasts: None when the
        ranks' arrivals are not known. mark_ns: CPU time of one mark. begin_cpu_ns: this thread's
        CPU clock when the work on the block began.
        """
        if not windows:
            return
        last_ns: Sequence[list[int] | None] = [None] * len(windows)
        last_ranks: Sequence[list[int] | None] = [None] * len(windows)
        if lasts is not None:
            last_ns, last_ranks = lasts.arrival_ns, lasts.rank
        waits = [wait_parts(*of_step) for of_step in zip(windows, last_ns, strict=True)]
        shared = {"run_id": run_id, **self._ids}
        if self._record_collectives:
            of_steps = zip(told["step"], windows, waits, last_ns, last_ranks, strict=True)
            self._write_waits(shared, [row for of in of_steps for row in collective_rows(*of)])
        self._spans.block(windows)
        parts = [
            _values_of(step_parts(window, last, mark_ns, of_waits=of_waits))
            for window, last, of_waits in zip(windows, last_ns, waits, strict=True)
        ]
        split = dict(zip(_PARTS, map(list, zip(*parts, strict=True)), strict=True))
        now_cpu_ns = time.thread_time_ns()
        share_s = (now_cpu_ns - begin_cpu_ns + self._untold_ns) / len(windows) / 1e9
        self._journal.write_columns(
            FactStep,
            {
                **shared,
                "block": block,
                "host_wait_s": None,
                "kernel_gap_s": None,
                "recording_block_cpu_s": share_s,
            },
            {**told, **split, "started_unix_ns": [w.started_unix_ns for w in windows]},
        )
        self._untold_ns = time.thread_time_ns() - now_cpu_ns

    def _write_waits(self, shared: dict[str, Scalar], rows: Sequence[CollectiveRow]) -> None:
        if rows:
            self._journal.write_columns(
                FactCollective,
                {**shared, "process_group": None, "sent_bytes": None},
                dict(zip(CollectiveRow._fields, zip(*rows, strict=True), strict=True)),
            )
