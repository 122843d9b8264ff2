"""One record for every wait of a step: who came when, who came last, what the wait cost.

Before: recorder.py has a block's windows, comm/clocks.py the last arrivals.   After: the journal,
fact_collective.
Price: about 4 us of CPU and 420 bytes of journal a wait, when a block is over and no window open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analytics.schema import Scalar
from training.recorder import Window
from training.step_parts import WaitParts


class CollectiveRow(NamedTuple):
    """What fact_collective has of one wait beside what the whole block has in common."""

    step: Scalar
    collective: int
    kind: str
    label: str
    arrived_unix_ns: int
    last_arrived_unix_ns: int | None
    began_unix_ns: int
    duration_s: float
    exposed_s: float
    straggler_wait_s: float | None
    wire_s: float | None
    last_rank: int | None


def collective_rows(
    step: Scalar,
    window: Window,
    of_waits: Sequence[WaitParts],
    last_ns: list[int] | None,
    last_ranks: list[int] | None,
) -> list[CollectiveRow]:
    """The waits of a step in the order that all ranks share.

    of_waits, last_ns, last_ranks: of each of the window's sorted_waits() its parts, when the last
    rank arrived, on this rank's clock, and which one it was; None when that is not known. Straggler
    waits and wire sum to the step's, and exposed_s to its exposed_comm_total_s, each within
    rounding to 1 ns.
    """
    unknown: list[int | None] = [None] * len(of_waits)
    to_unix_ns = window.started_unix_ns - window.begin_ns
    return [
        CollectiveRow(
            step,
            place,
            wait.kind,
            wait.label,
            wait.arrival_ns + to_unix_ns,
            None if last is None else last + to_unix_ns,
            wait.begin_ns + to_unix_ns,
            (wait.end_ns - wait.begin_ns) / 1e9,
            part.exposed_ns / 1e9,
            None if part.straggler_ns is None else part.straggler_ns / 1e9,
            None if part.wire_ns is None else part.wire_ns / 1e9,
            rank,
        )
        for place, (wait, part, last, rank) in enumerate(
            zip(
                window.sorted_waits(), of_waits, last_ns or unknown, last_ranks or unknown,
                strict=True,
            )
        )
    ]  # fmt: skip
