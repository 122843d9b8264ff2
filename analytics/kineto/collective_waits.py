"""Who waited in which collective, and for whom: a row for each that all its ranks recorded.

Before: analysis.py has joined the collectives of all ranks.   After: flows/analyzing.py shows them.
A wait is the time from a rank's arrival to that of the last one, at most to its own end, whether
compute covered it or not; the part straggler_wait of a step is what compute did not cover.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from analytics.kineto.analysis import Analysis
from analytics.kineto.collectives import Collective


def collective_waits(found: Analysis) -> list[dict[str, Any]]:
    """Every collective whose last arrival is known, by step and place, with all waits [us]."""
    by_key: dict[tuple[int, int], list[Collective]] = defaultdict(list)
    for one in found.ranks:
        for own in one.collectives:
            if own.last_arrived_ns is not None:
                by_key[own.step, own.place].append(own)
    return [
        {
            "step": step,
            "collective": place,
            "kind": same[0].kind,
            "process_group": same[0].group,
            "last_rank": same[0].last_rank,
            "waits_us": {str(own.rank): _wait_ns(own) / 1000 for own in same},
        }
        for (step, place), same in sorted(by_key.items())
    ]


def waits_by_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The waits of each kind of collective over all ranks [us], the longest first; who was last.

    Of ranks that were last equally often the lowest is told.
    """
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        same = [row for row in rows if row["kind"] == kind]
        last = Counter(row["last_rank"] for row in same)
        rank, times = min(last.items(), key=lambda one: (-one[1], one[0]))
        found.append(
            {
                "kind": kind,
                "num_collectives": len(same),
                "wait_us": sum(sum(row["waits_us"].values()) for row in same),
                "most_often_last": rank,
                "num_last": times,
            }
        )
    return sorted(found, key=lambda row: (-row["wait_us"], row["kind"]))


def _wait_ns(own: Collective) -> int:
    assert own.last_arrived_ns is not None, "chosen because it is known"
    return max(0, min(own.last_arrived_ns, own.ended_ns) - own.arrived_ns)
