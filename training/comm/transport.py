"""The collectives of one process group behind one interface, timed and counted.

Everything the engine sends goes through a `Transport`: two collectives, all-to-all and all-gather,
from which the others are built (reduce.py). Back ends say how bytes travel: gloo.py between CPU
tensors, nccl.py between GPUs, host_staged.py from a GPU over host memory without its compute units,
paced.py as if over a slow link. A transport belongs to one process group and is used by one thread
at a time, in the same order on every rank: two issuers in one group silently swap data.

Before: lanes.py decides which thread.   After: training/embeddings/exchange.py, reduce.py.
Price: two clock reads a collective.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Interval = tuple[int, int]


class Transport(abc.ABC):
    """Blocking collectives between all ranks of one group.

    A call returns when its result may be used on the caller's current stream (on CPU: when it is
    there). Raises RuntimeError when another rank is gone or the group's time-out has passed.
    """

    name: str  # as a user chooses it: gloo, nccl, host_staged

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.device = device
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.sent_bytes = 0  # to others, since the start
        self._in_flight: list[Interval] = []
        self._lock = threading.Lock()  # the loop takes what a lane's thread tells

    def all_to_all(
        self,
        output: Tensor,
        data: Tensor,
        output_R: Sequence[int] | None = None,
        data_R: Sequence[int] | None = None,
    ) -> None:
        """Send rank r its part of `data`; what rank r sends lands in its part of `output`.

        output_R, data_R: entries of the first dimension from and to each rank, 0 allowed; None:
        equal parts. Both tensors contiguous, of one dtype, on this transport's device.
        """
        begin = time.monotonic_ns()
        own = data_R[self.rank] if data_R is not None else len(data) // self.world_size
        row_bytes = data.element_size() * (data.numel() // len(data) if len(data) else 0)
        to_others = (len(data) - own) * row_bytes
        self._all_to_all(output, data, output_R, data_R)
        self._account(begin, to_others)

    def all_gather(self, data: Tensor) -> Tensor:
        """Everybody's `data`, of equal shape and dtype; shape (R, *data.shape)."""
        begin = time.monotonic_ns()
        gathered = self._all_gather(data)
        self._account(begin, (self.world_size - 1) * data.numel() * data.element_size())
        return gathered

    def take_in_flight(self) -> list[Interval]:
        """When collectives ran since the last call, as (begin, end) of the monotonic clock [ns]."""
        with self._lock:
            taken, self._in_flight = self._in_flight, []
        return taken

    def take_copies(self) -> list[Interval]:
        """When copies between device and host ran since the last call; none unless it says so."""
        return []

    @abc.abstractmethod
    def _all_to_all(
        self,
        output: Tensor,
        data: Tensor,
        output_R: Sequence[int] | None,
        data_R: Sequence[int] | None,
    ) -> None: ...

    @abc.abstractmethod
    def _all_gather(self, data: Tensor) -> Tensor: ...

    def _account(self, begin_ns: int, to_others: int) -> None:
        with self._lock:
            self._in_flight.append((begin_ns, time.monotonic_ns()))
        self.sent_bytes += to_others
