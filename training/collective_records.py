"""One record for every wait of a step: who came when, who came last, what the wait cost.

Before: recorder.py has a block's windows, comm/clocks.py the last arrivals.   After: the journal,
fact_collective.
Price: about 20 us of CPU and 420 bytes of journal a wait, when a block is over and no window open.
"""

from __future__ import annotations

from analytics.schema import FactCollective, FactStep
from training.recorder import Window, wait_parts


def collectives_of(
    step: FactStep, window: Window, last_ns: list[int] | None, last_ranks: list[int] | None
) -> list[FactCollective]:
    """The waits of a step in the order that all ranks share.

    last_ns, last_ranks: of each of the window's sorted_waits() when the last rank arrived, on this
    rank's clock, and which one it was; None when that is not known. Straggler waits and wire sum
    to the step's, and exposed_s to its exposed_comm_total_s, each within rounding to 1 ns.
    """
    waits = window.sorted_waits()
    unknown: list[int | None] = [None] * len(waits)

    def at_unix_ns(monotonic_ns: int) -> int:
        return window.started_unix_ns + monotonic_ns - window.begin_ns

    return [
        FactCollective(
            run_id=step.run_id,
            pipeline_id=step.pipeline_id,
            attempt=step.attempt,
            rank=step.rank,
            step=step.step,
            collective=place,
            kind=wait.kind,
            label=wait.label,
            process_group=None,
            arrived_unix_ns=at_unix_ns(wait.arrival_ns),
            last_arrived_unix_ns=None if last is None else at_unix_ns(last),
            began_unix_ns=at_unix_ns(wait.begin_ns),
            duration_s=(wait.end_ns - wait.begin_ns) / 1e9,
            exposed_s=part.exposed_ns / 1e9,
            straggler_wait_s=None if part.straggler_ns is None else part.straggler_ns / 1e9,
            wire_s=None if part.wire_ns is None else part.wire_ns / 1e9,
            last_rank=rank,
            sent_bytes=None,
        )
        for place, (wait, part, last, rank) in enumerate(
            zip(waits, wait_parts(window, last_ns), last_ns or unknown, last_ranks or unknown,
                strict=True)
        )
    ]  # fmt: skip
