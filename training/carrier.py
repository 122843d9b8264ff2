"""Where a run computes and how its ranks talk: chosen once at the start, told with the run.

Before: a run's settings.   After: every arm's lanes are made of it (arms.py).
Price: the start-up measurement, about a second on CPU.
"""

from __future__ import annotations

import dataclasses
import logging
import os

import torch
import torch.distributed as dist

from analytics.errors import ConfigError
from training.comm.contention import (
    TransportTrial,
    choose_transport,
    chunk_bytes,
    make_transport,
    payload_rate,
)
from training.comm.paced import Link
from training.comm.transport import Transport
from training.config import TrainConfig
from training.engine import CHUNK_BYTES

logger = logging.getLogger(__name__)

_CUBLAS_WORKSPACE = ":4096:8"  # one of the two that cuBLAS's reproducibility section names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carrier:
    """The transport of a run, what was measured of all of them, and why it was taken."""

    name: str
    trials: list[TransportTrial]
    reason: str
    chunk_bytes: int
    device: torch.device
    timeout_s: int
    link: Link | None
    nccl_zero_cta: bool

    @property
    def label(self) -> str:
        """As figures made with it must be labelled."""
        return self.name if self.link is None else f"{self.name}, {self.link.label}"

    def transport(self, urgent: bool) -> Transport:
        """A transport over a new process group. A collective.

        urgent: its kernels, where it has any, start before those of what can wait.
        """
        return make_transport(
            self.name,
            self.device,
            timeout_s=self.timeout_s,
            link=self.link,
            high_priority=urgent,
            zero_cta=self.nccl_zero_cta,
        )


def device_of(train: TrainConfig) -> torch.device:
    """The device of this rank; ranks of a host take its GPUs in turn.

    A GPU is told to repeat itself to the bit, without which no schedule could be held against
    another: deterministic kernels, and a fixed workspace for cuBLAS, which reads its variable when
    CUDA starts. New memory is not filled for that (torch would by default): nothing here reads
    memory that was not written.
    Raises ConfigError where a GPU is asked for and none can be used.
    """
    if train.device == "cpu":
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    if not torch.cuda.is_available():
        raise ConfigError(
            "device is 'cuda', but torch sees no GPU here. Install torch's CUDA build and the "
            "driver, or leave the device out to train on CPU."
        )
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    repeatable()
    return device


def repeatable() -> None:
    """Let torch take deterministic kernels only, on this process's GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = False


def chosen_carrier(train: TrainConfig, device: torch.device, group: dist.ProcessGroup) -> Carrier:
    """Measure the transports, or take the one asked for. A collective."""
    link = None if train.link_mbit_per_s is None else Link(train.link_mbit_per_s)
    asked = {} if train.transport == "auto" else {"names": (train.transport,)}
    name, trials, reason = choose_transport(
        group, device, timeout_s=train.collective_timeout_s, link=link, **asked
    )
    chunk = CHUNK_BYTES
    if dist.get_world_size(group) > 1:
        trial = make_transport(name, device, timeout_s=train.collective_timeout_s, link=link)
        chunk = chunk_bytes(payload_rate(trial, group), group)
        dist.destroy_process_group(trial.group)
    if dist.get_rank(group) == 0:
        label = name if link is None else f"{name}, {link.label}"
        logger.info("transport %s: %s", label, reason)
    return Carrier(
        name=name,
        trials=trials,
        reason=reason,
        chunk_bytes=chunk,
        device=device,
        timeout_s=train.collective_timeout_s,
        link=link,
        nccl_zero_cta=train.nccl_zero_cta,
    )
