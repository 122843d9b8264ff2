"""Measures at start-up what each transport takes from the compute beside it, and chooses one.

A matrix product runs alone, then beside each transport's all-to-alls in a lane. Ranks gather their
figures, the slowest rank counts, so all choose the same. What is lost by a byte is the share by
which the product slows times the time the byte is under way.

Before: a job starts.   After: make_transport builds what was chosen; the trials are recorded.
Price: 0.1 s, and about 0.3 s a transport.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from analytics.errors import ConfigError
from training.comm.gloo import GlooTransport
from training.comm.host_staged import HostStagedTransport
from training.comm.lanes import Lane
from training.comm.nccl import NcclTransport, nccl_group
from training.comm.paced import Link, PacedTransport
from training.comm.transport import Transport
from training.ranks import another_group, host_key

CANDIDATES = ("nccl", "host_staged", "gloo")
ALONE_S = 0.1
BESIDE_S = 0.2
EXCHANGE_S = 0.01  # of one all-to-all beside the product
MOST_EXCHANGES = 500
PROBE_BYTES = 8_192
BYTES_BOUNDS = (4_096, 4 << 20)  # of one all-to-all, to each rank
RATE_S = 10e-3
RATE_BYTES = (16 << 10, 16 << 20)  # of one all-to-all, to each rank
CHUNK_S = 5e-3
CHUNK_BOUNDS = (16 << 10, 8 << 20)
QUICK_ENOUGH = 1 / 3  # of the quickest transport's rate: a slower one cannot be hidden


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransportTrial:
    """One transport beside a matrix product; the slowest rank's figures, None if not tried."""

    name: str
    alone_s: float | None = None  # of one product
    beside_s: float | None = None  # of one product while the transport works
    slowdown_share: float | None = None  # of the product's rate that is lost, 0..1
    bytes_per_s: float | None = None  # a rank sends to all others, while the product runs
    available: bool
    reason: str = ""  # why it is not available

    @property
    def loss_s_per_gib(self) -> float:
        """Compute seconds lost while a GiB is under way."""
        assert self.slowdown_share is not None and self.bytes_per_s
        return self.slowdown_share * 2**30 / self.bytes_per_s


def make_transport(
    name: str,
    device: torch.device,
    *,
    timeout_s: int,
    link: Link | None = None,
    high_priority: bool = False,
    zero_cta: bool = False,
) -> Transport:
    """A transport with a process group of its own, paced when a link is given. A collective.

    name: gloo, nccl or host_staged; 'auto' is resolved before, by choose_transport.
    high_priority, zero_cta: of NCCL's group. Raises ConfigError when it cannot work here.
    """
    reason = unavailable(name, device)
    if reason is not None:
        raise ConfigError(f"transport {name!r} cannot work on {device}: {reason}")
    transport: Transport
    if name == "nccl":
        group = nccl_group(timeout_s, high_priority=high_priority, zero_cta=zero_cta)
        transport = NcclTransport(group, device)
    elif name == "host_staged":
        transport = HostStagedTransport(another_group(timeout_s), device)
    else:
        transport = GlooTransport(another_group(timeout_s), device)
    return transport if link is None else PacedTransport(transport, link)


def unavailable(name: str, device: torch.device) -> str | None:
    """Why a transport cannot carry tensors of `device`; None when it can.

    Raises ConfigError for a name that is no transport.
    """
    if name not in CANDIDATES:
        raise ConfigError(
            f"transport {name!r} is not known. Choose one of {', '.join(CANDIDATES)}."
        )
    if name == "gloo" and device.type != "cpu":
        return "it carries CPU tensors only; choose host_staged, which brings them to the host"
    if name == "nccl" and device.type != "cuda":
        return "it carries tensors between CUDA devices only; choose gloo"
    if name == "nccl" and not dist.is_nccl_available():
        return "this torch was built without NCCL; install torch's CUDA wheel or use host_staged"
    return None


def choose_transport(
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    timeout_s: int,
    link: Link | None = None,
    names: Sequence[str] = CANDIDATES,
) -> tuple[str, list[TransportTrial], str]:
    """The transport that takes least from the compute beside it: name, all trials, why. Collective.

    group: a gloo group of all ranks, over which they agree. A link paces what is tried too.
    Raises ConfigError when none of `names` can work on every rank.
    """
    trials = []
    product = _Product(device)
    shares_a_gpu = device.type == "cuda" and _shared(gpu_key(device), group)
    alone_s = product.seconds_each(ALONE_S)
    for name in names:
        reason = unavailable(name, device)
        if name == "host_staged" and device.type == "cpu":
            reason = "on a CPU it is gloo with two more copies"
        if name == "nccl" and shares_a_gpu:
            reason = "two ranks share a GPU, which NCCL refuses"
        if not _everywhere(reason is None, group):
            trials.append(
                TransportTrial(
                    name=name, available=False, reason=reason or "it cannot work on another rank"
                )
            )
            continue
        if dist.get_world_size(group) == 1:
            trials.append(TransportTrial(name=name, available=True))
            continue
        transport = make_transport(name, device, timeout_s=timeout_s, link=link)
        trials.append(_trial(transport, product, alone_s, group))
        dist.destroy_process_group(transport.group)
    name, reason_words = choice(trials)
    return name, trials, reason_words


def choice(trials: Sequence[TransportTrial]) -> tuple[str, str]:
    """The best of the trials and why, in plain words.

    Of those at least a third as quick as the quickest, the one by which least compute is lost.
    Raises ConfigError when none is available.
    """
    able = [trial for trial in trials if trial.available]
    if not able:
        reasons = "; ".join(f"{trial.name}: {trial.reason}" for trial in trials)
        raise ConfigError(f"no transport can work on every rank. {reasons}")
    measured = [trial for trial in able if trial.bytes_per_s is not None]
    if len(able) == 1 or not measured:
        only = able[0]
        why = "the only one that can work here" if len(able) == 1 else "one rank, nothing is sent"
        return only.name, why + _figures(only)
    quickest = max(trial.bytes_per_s or 0.0 for trial in measured)
    quick = [trial for trial in measured if (trial.bytes_per_s or 0.0) >= QUICK_ENOUGH * quickest]
    best = min(quick, key=lambda trial: (trial.loss_s_per_gib, -(trial.bytes_per_s or 0.0)))
    rest = ", ".join(
        f"{trial.name} {trial.loss_s_per_gib:.2g} s" for trial in measured if trial is not best
    )
    words = f"it takes {best.loss_s_per_gib:.2g} s of compute a GiB sent ({rest})"
    return best.name, words + _figures(best)


def chunk_bytes(bytes_per_s: float, group: dist.ProcessGroup) -> int:
    """Bytes of about 5 ms of wire, between 16 KiB and 8 MiB, the same on all ranks. A collective.

    Larger ones make what is urgent wait, smaller ones are all latency.
    """
    least = min(figures[0] for figures in _gathered([bytes_per_s], group))
    return int(min(max(CHUNK_S * least, CHUNK_BOUNDS[0]), CHUNK_BOUNDS[1]))


def payload_rate(transport: Transport, group: dist.ProcessGroup) -> float:
    """Bytes a second that a rank sends to all others while it does nothing else. A collective.

    The slowest rank's, over all-to-alls that grow until one takes RATE_S, least of three each.
    Unlike a trial's, it does not depend on what computes beside it, so chunks can be cut by it.
    """
    num_bytes = RATE_BYTES[0]
    while True:
        mine_s = min(_exchange(transport, num_bytes, 1) for _ in range(3))
        slowest_s = max(figures[0] for figures in _gathered([mine_s], group))
        if slowest_s >= RATE_S or num_bytes >= RATE_BYTES[1]:
            return num_bytes * (transport.world_size - 1) / slowest_s
        num_bytes *= 4


class _Product:
    """A matrix product that keeps the device busy, to be timed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        size = 4096 if device.type == "cuda" else 256
        self._matrix = torch.ones(size, size, device=device)
        self._target = torch.empty_like(self._matrix)
        self.run()

    def run(self) -> None:
        torch.mm(self._matrix, self._matrix, out=self._target)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def seconds_each(self, duration_s: float) -> float:
        """Mean seconds of one product, over about `duration_s`."""
        begin, runs = time.perf_counter(), 0
        while time.perf_counter() - begin < duration_s:
            self.run()
            runs += 1
        return (time.perf_counter() - begin) / runs


def _trial(
    transport: Transport, product: _Product, alone_s: float, group: dist.ProcessGroup
) -> TransportTrial:
    """Run the product while a lane exchanges a number of times that all ranks agreed on."""
    lane = Lane(f"trial-{transport.name}", transport)
    try:
        lane.submit(lambda carrier: _exchange(carrier, PROBE_BYTES, 2)).result()
        probe_s = lane.submit(lambda carrier: _exchange(carrier, PROBE_BYTES, 2)).result() / 2
        slowest_s = max(figures[0] for figures in _gathered([probe_s], group))
        wanted = int(PROBE_BYTES * EXCHANGE_S / slowest_s)
        num_bytes = min(max(wanted, BYTES_BOUNDS[0]), BYTES_BOUNDS[1])
        times = min(max(int(BESIDE_S / max(slowest_s, EXCHANGE_S)), 2), MOST_EXCHANGES)
        under_way = lane.submit(lambda carrier: _exchange(carrier, num_bytes, times))
        begin, runs = time.perf_counter(), 0
        while not under_way.done() or not runs:
            product.run()
            runs += 1
        beside_s = (time.perf_counter() - begin) / runs
        sent = num_bytes * times * (transport.world_size - 1)
        rate = sent / under_way.result()
    finally:
        lane.close()
    figures = _gathered([alone_s, beside_s, rate], group)
    slowest = max(figures, key=lambda row: row[1] / row[0])
    return TransportTrial(
        name=transport.name,
        alone_s=slowest[0],
        beside_s=slowest[1],
        slowdown_share=max(0.0, 1.0 - slowest[0] / slowest[1]),
        bytes_per_s=min(row[2] for row in figures),
        available=True,
    )


def _exchange(transport: Transport, num_bytes: int, times: int) -> float:
    """Seconds of `times` all-to-alls of `num_bytes` to each rank."""
    size = num_bytes * transport.world_size
    data = torch.zeros(size, dtype=torch.uint8, device=transport.device)
    output = torch.empty_like(data)
    begin = time.perf_counter()
    for _ in range(times):
        transport.all_to_all(output, data)
    if transport.device.type == "cuda":
        torch.cuda.current_stream(transport.device).synchronize()
    return time.perf_counter() - begin


def _gathered(figures: list[float], group: dist.ProcessGroup) -> list[list[float]]:
    """Everybody's figures, by rank. A collective."""
    mine = torch.tensor(figures, dtype=torch.float64)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [row.tolist() for row in rows]


def gpu_key(device: torch.device) -> int:
    """A number that ranks have in common when they use one GPU of one host."""
    return host_key(str(torch.cuda.get_device_properties(device).uuid))


def _shared(key: int, group: dist.ProcessGroup) -> bool:
    """Whether two ranks have the same key. A collective."""
    mine = torch.tensor([key], dtype=torch.int64)
    keys = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(keys, mine, group=group)
    return len({int(other) for other in keys}) < len(keys)


def _everywhere(holds: bool, group: dist.ProcessGroup) -> bool:
    """Whether it holds on all ranks. A collective."""
    return all(row[0] for row in _gathered([float(holds)], group))


def _figures(trial: TransportTrial) -> str:
    if trial.bytes_per_s is None:
        return ""
    return (
        f"; {trial.bytes_per_s / 1e6:.1f} MB/s a rank, "
        f"a matrix product beside it runs {100 * (trial.slowdown_share or 0.0):.0f} % slower"
    )
