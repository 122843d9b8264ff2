"""How far each rank's clock is from rank 0's, so that arrival times can be compared.

Rank 0 reads its clock between a question and its answer. Had both ways taken equally long, the
answer's clock was read in the middle; the error is at most half of the round trip, so the
quickest of many counts. Ranks of one host share the monotonic clock and need none of this.

Before: training/ranks.py joins.   After: training/recorder.py and the straggler's wait.
Price: about a millisecond a rank, once a block of steps.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from training.ranks import share_one_clock

NUM_PINGS = 30

Clock = Callable[[], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """This rank's clock against rank 0's."""

    offset_ns: int  # this rank's reading minus rank 0's at the same moment
    uncertainty_ns: int  # half of the least round trip; 0 when the clock is shared

    def to_common_ns(self, local_ns: int) -> int:
        """A reading of this rank's clock as rank 0's clock would have shown it [ns]."""
        return local_ns - self.offset_ns

    def to_local_ns(self, common_ns: int) -> int:
        """A reading of rank 0's clock as this rank's would have shown it [ns]."""
        return common_ns + self.offset_ns


SHARED = ClockOffset(offset_ns=0, uncertainty_ns=0)


def align_clocks(
    group: dist.ProcessGroup, *, num_pings: int = NUM_PINGS, clock: Clock | None = None
) -> ClockOffset:
    """This rank's clock against rank 0's. A collective of a gloo group.

    clock: reads this rank's clock [ns]; None: the monotonic clock, which ranks of one host share
    (then nothing is sent). Clocks drift apart by up to 0.1 ms a second: align again from time to
    time. Raises RuntimeError when a rank is gone or the group's time-out has passed.
    """
    if clock is None:
        if share_one_clock(group):
            return SHARED
        clock = time.monotonic_ns
    rank = dist.get_rank(group)
    if rank == 0:
        for other in range(1, dist.get_world_size(group)):
            _ask(group, other, num_pings, clock)
        return SHARED
    return _answer(group, num_pings, clock)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastArrivals:
    """When the last rank arrived at each wait and which it was, by step and wait."""

    arrival_ns: list[list[int]]  # on this rank's clock
    rank: list[list[int]]  # of ranks that arrived at the same time the lowest
    clock: ClockOffset  # by which the ranks' arrivals were compared


def last_arrivals(
    arrivals_ns: Sequence[Sequence[int]],
    group: dist.ProcessGroup,
    *,
    shares_clock: bool | None = None,
) -> LastArrivals:
    """Who arrived last at each wait, and when on this rank's clock [ns]. A collective.

    arrivals_ns: this rank's, by step; every rank gives as many, in the same order. shares_clock:
    what share_one_clock said of the group, where it has been asked before.
    """
    if dist.get_world_size(group) == 1:
        return alone(arrivals_ns)
    if shares_clock is None:
        shares_clock = share_one_clock(group)
    clock = SHARED if shares_clock else align_clocks(group, clock=time.monotonic_ns)
    common = [clock.to_common_ns(arrival) for of_step in arrivals_ns for arrival in of_step]
    own_N = torch.tensor(common, dtype=torch.int64)
    common_RN = own_N.new_empty((dist.get_world_size(group), len(common)))
    dist.all_gather_single(common_RN.view(-1), own_N, group=group)
    ranks = iter(common_RN.numpy().argmax(axis=0).tolist())  # of equal ones the first
    lasts = iter(common_RN.amax(dim=0).tolist())
    return LastArrivals(
        arrival_ns=[[clock.to_local_ns(next(lasts)) for _ in part] for part in arrivals_ns],
        rank=[[next(ranks) for _ in part] for part in arrivals_ns],
        clock=clock,
    )


def alone(arrivals_ns: Sequence[Sequence[int]]) -> LastArrivals:
    """The same for a single rank, which waits for nobody."""
    mine = [list(of_step) for of_step in arrivals_ns]
    return LastArrivals(
        arrival_ns=mine, rank=[[0] * len(of_step) for of_step in mine], clock=SHARED
    )


def offset_of_pings(pings: list[tuple[int, int, int]]) -> ClockOffset:
    """The offset by the quickest of (rank 0's question, the other's clock, rank 0's answer) [ns].

    Raises ValueError without pings.
    """
    asked, read, answered = min(pings, key=lambda ping: ping[2] - ping[0])
    return ClockOffset(
        offset_ns=read - (asked + answered) // 2,
        uncertainty_ns=(answered - asked + 1) // 2,
    )


def _ask(group: dist.ProcessGroup, other: int, num_pings: int, clock: Clock) -> None:
    """Rank 0: ping `other` and tell it what came out."""
    question, reading = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    pings = []
    for _ in range(num_pings):
        asked = clock()
        dist.send(question, group=group, group_dst=other)
        dist.recv(reading, group=group, group_src=other)
        pings.append((asked, int(reading), clock()))
    found = offset_of_pings(pings)
    told = torch.tensor([found.offset_ns, found.uncertainty_ns], dtype=torch.int64)
    dist.send(told, group=group, group_dst=other)


def _answer(group: dist.ProcessGroup, num_pings: int, clock: Clock) -> ClockOffset:
    """Every other rank: answer each ping with the clock's reading."""
    question, told = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    for _ in range(num_pings):
        dist.recv(question, group=group, group_src=0)
        dist.send(torch.tensor([clock()], dtype=torch.int64), group=group, group_dst=0)
    dist.recv(told, group=group, group_src=0)
    return ClockOffset(offset_ns=int(told[0]), uncertainty_ns=int(told[1]))
