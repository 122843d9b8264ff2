"""Collectives of device tensors over host memory, which take no compute unit of the device.

A copy engine brings the tensor into page-locked host memory, gloo exchanges it there, a copy
engine brings the result back. It costs two passes over PCIe and works with every GPU, also between
two processes on one of them.

Before: lanes.py.   After: gloo.py.
Price: page-locked host memory of twice the largest collective.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from training.comm.gloo import GlooTransport
from training.comm.transport import Interval, Transport


class HostStagedTransport(Transport):
    """Any dtype and shape; the group must be a gloo group, the tensors on `device`.

    On a CPU device the copies are plain ones, so its values can be tested without a GPU.
    In-flight intervals cover the exchange between hosts; `take_copies` tells the copies.
    """

    name = "host_staged"

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group, device)
        self._gloo = GlooTransport(group, torch.device("cpu"))
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._leaving = _HostBuffer(pinned=self._stream is not None)
        self._arriving = _HostBuffer(pinned=self._stream is not None)
        self._copies: list[Interval] = []

    def take_copies(self) -> list[Interval]:
        """When copies ran since the last call, as (begin, end) of the monotonic clock [ns]."""
        with self._lock:
            taken, self._copies = self._copies, []
        return taken

    def _all_to_all(
        self,
        output: Tensor,
        data: Tensor,
        output_R: Sequence[int] | None,
        data_R: Sequence[int] | None,
    ) -> None:
        leaving, arriving = self._leaving.like(data), self._arriving.like(output)
        self._copy(leaving, data)
        self._gloo.all_to_all(arriving, leaving, output_R, data_R)
        self._copy(output, arriving)

    def _all_gather(self, data: Tensor) -> Tensor:
        gathered = data.new_empty((self.world_size, *data.shape))
        leaving, arriving = self._leaving.like(data), self._arriving.like(gathered)
        self._copy(leaving, data)
        arriving.copy_(self._gloo.all_gather(leaving))  # page-locked, as a copy engine needs it
        self._copy(gathered, arriving)
        return gathered

    def _copy(self, target: Tensor, source: Tensor) -> None:
        """Copy between device and host by a copy engine; the host waits until it is done.

        The side stream first waits for what the caller launched, which may still write `source`
        or read what stood in `target`. Waiting on the host is what lets the buffers be used again.
        """
        begin = time.monotonic_ns()
        if self._stream is None:
            target.copy_(source)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                target.copy_(source, non_blocking=True)
            self._stream.synchronize()
        with self._lock:
            self._copies.append((begin, time.monotonic_ns()))

    def _account(self, begin_ns: int, to_others: int) -> None:
        with self._lock:
            self._in_flight.extend(self._gloo.take_in_flight())
        self.sent_bytes += to_others


class _HostBuffer:
    """Host memory that is used again and grows by doubling; page-locking it is slow."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def like(self, tensor: Tensor) -> Tensor:
        """A host tensor of the same shape and dtype; valid until the next call."""
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes > len(self._memory):
            grown = max(num_bytes, 2 * len(self._memory))
            self._memory = torch.empty(grown, dtype=torch.uint8, pin_memory=self._pinned)
        return self._memory[:num_bytes].view(tensor.dtype).view(tensor.shape)
