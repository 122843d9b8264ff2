"""Collectives between GPUs by NCCL, and the group that makes them spare compute units.

NCCL's kernels run on the GPU's multiprocessors. Its zero-CTA policy lets copy engines carry what
needs no arithmetic, where all of this holds (NCCL's user guide, "buffer registration", and
PyTorch's "copy engine collectives"):

- NCCL 2.28 or newer within one NVLink domain: all-gather, all-to-all of equal parts, gather,
  scatter; 2.30.6 or newer across hosts: all-gather and all-to-all of equal parts. A driver for
  CUDA 12.5 or newer.
- Both buffers lie in memory of `ncclMemAlloc`, registered as symmetric windows: allocate them
  within `symmetric_memory`.
- An all-to-all of unequal parts (AlltoAllv, ours between tables) and every reduction are not on
  NCCL's list and keep their kernels. Our sums are an all-to-all and an all-gather of equal parts
  (reduce.py), so they can profit; row exchanges may not. host_staged.py uses no compute unit.

Not yet run on a GPU: written against the documentation of torch 2.13 and NCCL 2.30. The tests run
the same calls over a gloo group on CPUs, and over NCCL where a GPU is.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from analytics.errors import ConfigError
from training.comm.transport import Transport

POLICY_VARIABLE = "NCCL_CTA_POLICY"
ZERO_POLICY = "2"  # the number is read by all versions since 2.28, the word ZERO since 2.29


def nccl_options(module: Any, *, high_priority: bool, zero_cta: bool, timeout_s: int = 600) -> Any:
    """Options of a NCCL process group.

    module: where ProcessGroupNCCL is, torch.distributed. high_priority: its kernels start before
    waiting ones of other streams. zero_cta: ask for copy engines; see the module's head for where
    NCCL grants it. A torch that cannot say so per group is asked by the environment, which holds
    for every group made from now on.
    Raises ConfigError when this torch has no NCCL.
    """
    group_class = getattr(module, "ProcessGroupNCCL", None)
    if group_class is None:
        raise ConfigError(
            "transport 'nccl' needs a torch built with NCCL, and this one has none. "
            "Install torch's CUDA wheel, or choose 'host_staged' or 'gloo'."
        )
    options = group_class.Options()
    options.is_high_priority_stream = high_priority
    options._timeout = datetime.timedelta(seconds=timeout_s)
    if zero_cta:
        config = getattr(options, "config", None)
        policy = getattr(group_class, "NCCL_CTA_POLICY_ZERO", None)
        if config is not None and policy is not None and hasattr(config, "cta_policy"):
            config.cta_policy = policy
        else:
            os.environ[POLICY_VARIABLE] = ZERO_POLICY
    return options


def nccl_group(
    timeout_s: int, *, high_priority: bool = False, zero_cta: bool = False
) -> dist.ProcessGroup:
    """A NCCL group of all ranks, with streams of its own. A collective.

    Raises ConfigError when this machine cannot run NCCL.
    """
    options = nccl_options(
        dist, high_priority=high_priority, zero_cta=zero_cta, timeout_s=timeout_s
    )
    if not torch.cuda.is_available():
        raise ConfigError(
            "transport 'nccl' needs a CUDA device, and this machine shows none. "
            "Choose 'gloo', or check the driver with nvidia-smi."
        )
    group = dist.new_group(
        backend="nccl", timeout=datetime.timedelta(seconds=timeout_s), pg_options=options
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


@contextlib.contextmanager
def symmetric_memory(group: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
    """Tensors made in the block lie where NCCL's copy engines may fetch and store. A collective.

    Every rank must make the same tensors in it; the window is registered when the block ends,
    once all segments exist (registering later ones by themselves can hang).
    """
    backend = group._get_backend(device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        yield
    backend.register_mem_pool(pool, symm=True)  # type: ignore[attr-defined]


class NcclTransport(Transport):
    """NCCL's own collectives; the group must be a NCCL group, the tensors on its device.

    A call returns once the result may be used on the caller's current stream: NCCL's stream waits
    for it, and it for NCCL's. The host does not wait, so in-flight intervals tell the launch only;
    lanes.py waits for its stream and tells the rest.
    """

    name = "nccl"

    def _all_to_all(
        self,
        output: Tensor,
        data: Tensor,
        output_R: Sequence[int] | None,
        data_R: Sequence[int] | None,
    ) -> None:
        outputs = None if output_R is None else list(output_R)
        inputs = None if data_R is None else list(data_R)
        dist.all_to_all_single(output, data, outputs, inputs, group=self.group)

    def _all_gather(self, data: Tensor) -> Tensor:
        gathered = data.new_empty((self.world_size, *data.shape))
        flat = gathered.view(-1)
        dist.all_gather_single(flat, data.contiguous().view(-1), group=self.group)
        return gathered
