"""Collectives between CPU tensors, over TCP or shared memory as gloo chooses.

Built of gloo's sends and receives, every receive posted before any send. With gloo's own
all-to-all, 1 MB each way over 100 mbit/s (bench/link.py makes such links) took 167-174 ms in three
of five runs and 87-100 ms in two; receives first, 87-101 ms in all six. Our reading, not traced in
gloo: it sends first, so the "ready to receive" of the rank that comes later stands behind its own
data, and both directions pass one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from training.comm.transport import Transport


class GlooTransport(Transport):
    """Any dtype, any counts; the group must be a gloo group, the tensors on the CPU."""

    name = "gloo"

    def _all_to_all(
        self,
        output: Tensor,
        data: Tensor,
        output_R: Sequence[int] | None,
        data_R: Sequence[int] | None,
    ) -> None:
        self._exchange(
            list(torch.split(output, self._parts(output, output_R))),
            list(torch.split(data, self._parts(data, data_R))),
        )

    def _all_gather(self, data: Tensor) -> Tensor:
        gathered = torch.empty((self.world_size, *data.shape), dtype=data.dtype)
        self._exchange(list(gathered.unbind(0)), [data.contiguous()] * self.world_size)
        return gathered

    def _parts(self, tensor: Tensor, entries_R: Sequence[int] | None) -> list[int]:
        """Entries of each rank's part; checked here, because a wrong split would hang."""
        if entries_R is None:
            if len(tensor) % self.world_size:
                raise ValueError(
                    f"{len(tensor)} entries do not split evenly over {self.world_size} ranks; "
                    "say how many belong to each."
                )
            return [len(tensor) // self.world_size] * self.world_size
        if len(entries_R) != self.world_size or sum(entries_R) != len(tensor):
            raise ValueError(
                f"parts {list(entries_R)} must be {self.world_size}, one a rank, and add up to "
                f"the tensor's {len(tensor)} entries."
            )
        return list(entries_R)

    def _exchange(self, outputs_R: list[Tensor], parts_R: list[Tensor]) -> None:
        """Each pair of ranks swaps its parts; empty ones send nothing.

        Pairs are taken by distance, so that not all ranks turn to rank 0 first.
        """
        own, kept = outputs_R[self.rank], parts_R[self.rank]
        if own.shape != kept.shape:
            raise ValueError(
                f"rank {self.rank} sends itself a part of shape {tuple(kept.shape)} and expects "
                f"{tuple(own.shape)}; the counts of the two sides must agree."
            )
        others = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]
        waiting = []
        for other in reversed(others):
            if outputs_R[other].numel():
                with self._naming(other):
                    work = dist.irecv(outputs_R[other], group=self.group, group_src=other)
                waiting.append((other, work))
        for other in others:
            if parts_R[other].numel():
                with self._naming(other):
                    work = dist.isend(parts_R[other], group=self.group, group_dst=other)
                waiting.append((other, work))
        own.copy_(kept)
        for other, work in waiting:
            if work is not None:
                with self._naming(other):
                    work.wait()

    @contextlib.contextmanager
    def _naming(self, other: int) -> Iterator[None]:
        """An error of gloo names an address; the rank is what one looks for."""
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} lost rank {other} or another rank that rank {other} waits for: "
                f"{error}. The rank that ended or hangs first has the cause in its own output."
            ) from error
