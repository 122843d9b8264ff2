"""A rank's place among the others: process groups, one thread, a time-out on every wait.

torchrun sets the environment; gloo carries the collectives. One process group per purpose, because
collectives of one group run in the order in which they are issued.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def joined(
    timeout_s: int, *, init_method: str = "env://", rank: int = -1, world_size: int = -1
) -> Iterator[dist.ProcessGroup]:
    """The group of all ranks until the block ends; from torchrun's environment unless told.

    A rank that waits longer than `timeout_s` in a collective raises, so a dead rank never hangs
    the others.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    try:
        group = dist.group.WORLD
        assert group is not None
        yield group
    finally:
        dist.destroy_process_group()


def another_group(timeout_s: int) -> dist.ProcessGroup:
    """A further group of all ranks, with connections of its own. A collective."""
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return group


def host_key(part: str = "") -> int:
    """A number of 56 bits that ranks have in common when they run on one host (and part of it)."""
    boot = _BOOT_ID.read_bytes() if _BOOT_ID.exists() else os.urandom(16)
    return int.from_bytes(hashlib.sha256(boot + part.encode()).digest()[:7], "big")


def share_one_clock(group: dist.ProcessGroup) -> bool:
    """Whether all ranks run on one host, whose monotonic clock they share. A collective."""
    mine = host_key()
    seen = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(seen, torch.tensor([mine]), group=group)
    return all(int(other) == mine for other in seen)


def gather_ids(ids_U: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All ranks' int64 ids, rank by rank, on every rank; numbers may differ. A collective."""
    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(numbers, torch.tensor([len(ids_U)]), group=group)
    most = max(int(number) for number in numbers)
    padded = torch.zeros(most, dtype=torch.int64)
    padded[: len(ids_U)] = ids_U
    shares = [torch.zeros_like(padded) for _ in numbers]
    dist.all_gather(shares, padded, group=group)
    return torch.cat([share[: int(n)] for share, n in zip(shares, numbers, strict=True)])
