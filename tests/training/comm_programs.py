"""What ranks do in the tests of communication; a module, because every rank imports it by name."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from training.comm.clocks import ClockOffset, align_clocks, last_arrivals
from training.comm.contention import (
    TransportTrial,
    choose_transport,
    chunk_bytes,
    make_transport,
)
from training.comm.gloo import GlooTransport
from training.comm.host_staged import HostStagedTransport
from training.comm.lanes import Lane
from training.comm.nccl import NcclTransport, symmetric_memory
from training.comm.paced import Link, PacedTransport
from training.comm.reduce import all_to_all_in_chunks, ordered_sum
from training.comm.transport import Transport
from training.ranks import another_group, joined

CPU = torch.device("cpu")
DTYPES = (torch.int64, torch.uint8, torch.float32, torch.bfloat16)
TIMEOUT_S = 30


def transport_of(kind: str, link: Link | None = None, device: torch.device = CPU) -> Transport:
    """The transport a user would get; NCCL's on a CPU over a gloo group, to run its code there."""
    if kind == "nccl" and device.type == "cpu":
        return NcclTransport(another_group(TIMEOUT_S), device)
    return make_transport(kind, device, timeout_s=TIMEOUT_S, link=link)


def counts(sender: int, receiver: int, case: str) -> int:
    """Rows one rank has for another, the same on both sides."""
    if case == "none":
        return 0
    if case == "one rank is empty" and sender == 0:
        return 0
    if case == "only to rank 0" and receiver != 0:
        return 0
    return 1 + (3 * sender + receiver) % 4


def row(sender: int, receiver: int, number: int) -> int:
    """The value in the number-th row a rank sends to another; under 256, exact in bfloat16."""
    return (sender * 4 + receiver) * 8 + number


def exchange(
    rank: int, world_size: int, init_method: str, kind: str, on_gpu: bool = False
) -> dict[str, Any]:
    """All cases and dtypes through one transport; as nested lists. On GPUs, one a rank."""
    results: dict[str, Any] = {}
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        paced = kind == "paced"
        device = torch.device("cuda", rank) if on_gpu else CPU
        if on_gpu:
            torch.cuda.set_device(device)
            torch.set_default_device(device)
        transport = transport_of("gloo" if paced else kind, Link(1e5) if paced else None, device)
        for case in ("uneven", "one rank is empty", "only to rank 0", "none"):
            data_R = [counts(rank, other, case) for other in range(world_size)]
            output_R = [counts(other, rank, case) for other in range(world_size)]
            values = [row(rank, o, n) for o in range(world_size) for n in range(data_R[o])]
            for dtype in DTYPES:
                data = torch.tensor(values).reshape(-1, 1).repeat(1, 2).to(dtype)
                output = torch.full((sum(output_R), 2), 255).to(dtype)
                transport.all_to_all(output, data, output_R, data_R)
                results[f"{case} {dtype}"] = output.to(torch.int64).tolist()
        even = torch.full((world_size, 3), float(rank))
        output = torch.empty_like(even)
        transport.all_to_all(output, even)
        results["even"] = output.tolist()
        results["gathered"] = transport.all_gather(torch.full((2, 2), float(rank))).tolist()
        results["scalar"] = transport.all_gather(torch.tensor(rank)).tolist()
        results["sent"] = transport.sent_bytes
    return results


def in_symmetric_memory(rank: int, world_size: int, init_method: str) -> tuple[Any, Any, int]:
    """Even collectives of NCCL, copy engines asked for, between buffers they may reach."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        transport = make_transport(
            "nccl", device, timeout_s=TIMEOUT_S, high_priority=True, zero_cta=True
        )
        transport.all_gather(torch.zeros(1, device=device))  # makes NCCL's communicator
        with symmetric_memory(transport.group, device):
            data = torch.full((world_size, 1024), float(rank), device=device)
            output = torch.empty_like(data)
        transport.all_to_all(output, data)
        total = ordered_sum(transport, data.flatten())
        return output[:, 0].tolist(), total.unique().tolist(), transport.sent_bytes


def wrong_parts(rank: int, world_size: int, init_method: str, output_R: Any, data_R: Any) -> None:
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        GlooTransport(group, CPU).all_to_all(torch.zeros(3), torch.zeros(3), output_R, data_R)


def copies(rank: int, world_size: int, init_method: str) -> dict[str, Any]:
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        transport = HostStagedTransport(group, CPU)
        begin = time.monotonic_ns()
        for size in (8, 1000, 4):
            data = torch.zeros(size * world_size)
            transport.all_to_all(torch.empty_like(data), data)
        end = time.monotonic_ns()
        return {
            "copies": transport.take_copies(),
            "in_flight": transport.take_in_flight(),
            "again": transport.take_copies(),
            "window": (begin, end),
        }


def sums(rank: int, world_size: int, init_method: str, size: int, kind: str) -> list[Any]:
    """ordered_sum of random numbers, whole and in pieces, and of ones."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        transport = transport_of(kind)
        generator = torch.Generator().manual_seed(rank)
        flat_N = torch.randn(size, generator=generator) * 10 ** (rank * 2.0)
        whole = ordered_sum(transport, flat_N)
        pieces = [ordered_sum(transport, piece) for piece in torch.split(flat_N, 7)]
        by_hand = ordered_sum(transport, torch.tensor([1.0 + rank, 10.0 * rank, 0.5]))
        return [whole.numpy(), torch.cat(pieces).numpy(), by_hand.tolist(), flat_N.numpy()]


def chunked(rank: int, world_size: int, init_method: str, num_chunks: int, kind: str) -> list[Any]:
    """The same uneven exchange whole and in chunks."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        transport = transport_of(kind)
        data_R = [3 * rank + other for other in range(world_size)]
        output_R = [3 * other + rank for other in range(world_size)]
        generator = torch.Generator().manual_seed(rank)
        data = torch.randn(sum(data_R), 4, generator=generator)
        whole, parts = torch.empty(sum(output_R), 4), torch.empty(sum(output_R), 4)
        transport.all_to_all(whole, data, output_R, data_R)
        all_to_all_in_chunks(transport, parts, data, output_R, data_R, num_chunks)
        return [whole.numpy(), parts.numpy()]


def die(
    rank: int, world_size: int, init_method: str, timeout_s: int, silent_s: float
) -> tuple[str, float]:
    """The last rank leaves, or says nothing for a time, while the others exchange."""
    with joined(timeout_s, init_method=init_method, rank=rank, world_size=world_size):
        lane = Lane("lane", GlooTransport(another_group(timeout_s), CPU))
        data = torch.zeros(world_size)
        lane.submit(lambda t: t.all_to_all(torch.empty_like(data), data)).result()
        if rank == world_size - 1:
            time.sleep(silent_s)
            return "left", 0.0
        begin = time.monotonic()
        try:
            lane.submit(lambda t: t.all_to_all(torch.empty_like(data), data)).result()
        except RuntimeError as error:
            try:
                lane.submit(lambda t: None).result()
            except RuntimeError as again:
                return type(error).__name__ * (again is error), time.monotonic() - begin
        return "no error", time.monotonic() - begin
    return "unreachable", 0.0


def align(
    rank: int, world_size: int, init_method: str, skew_s: float | None, drift: float
) -> tuple[ClockOffset, int, int]:
    """Align clocks that rank r's tampering sets ahead; also a reading, common and true [ns]."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        if skew_s is None:
            return align_clocks(group), 0, 0
        start = time.monotonic_ns()

        def clock() -> int:
            now = time.monotonic_ns()
            return now + int(rank * (skew_s * 1e9 + drift * (now - start)))

        found = align_clocks(group, clock=clock)
        true = time.monotonic_ns()
        return found, found.to_common_ns(clock()), true


def choose(
    rank: int, world_size: int, init_method: str, mbit: float | None
) -> tuple[str, list[TransportTrial], str, int]:
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        link = None if mbit is None else Link(mbit)
        name, trials, reason = choose_transport(group, CPU, timeout_s=TIMEOUT_S, link=link)
        return name, trials, reason, chunk_bytes(1e6 * (10 + rank), group)


def paced_times(
    rank: int, world_size: int, init_method: str, mbit: float, sizes: list[int]
) -> list[float]:
    """Seconds of all-to-alls that begin together, one transport and thread for each size."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        link = Link(mbit)
        transports = [
            PacedTransport(GlooTransport(another_group(TIMEOUT_S), CPU), link) for _ in sizes
        ]
        lanes = [Lane(str(n), transport) for n, transport in enumerate(transports)]
        torch.distributed.barrier(group)
        begin = time.monotonic()

        def work(transport: Transport, size: int) -> float:
            data = torch.zeros(size * world_size, dtype=torch.uint8)
            transport.all_to_all(torch.empty_like(data), data)
            return time.monotonic() - begin

        futures = [
            lane.submit(lambda transport, size=size: work(transport, size))
            for lane, size in zip(lanes, sizes, strict=True)
        ]
        return [future.result() for future in futures]


def ordered_work(rank: int, world_size: int, init_method: str, kind: str) -> dict[str, Any]:
    """What a lane did, in which order and on which thread."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size):
        lane = Lane("urgent", transport_of(kind))
        seen: list[int] = []
        threads: set[str] = set()

        def step(number: int) -> Iterator[None] | None:
            time.sleep(0.002 * ((number + rank) % 3))
            seen.append(number)
            threads.add(threading.current_thread().name)
            return None

        for number in range(8):
            lane.submit(lambda _, number=number: step(number))
        data = torch.full((world_size,), float(rank))
        output = torch.empty_like(data)
        lane.submit(lambda transport: transport.all_to_all(output, data))
        lane.settle()
        traffic, again = lane.take_traffic(), lane.take_traffic()
        lane.close()
        return {
            "seen": seen,
            "threads": len(threads),
            "output": output.tolist(),
            "sent": traffic.sent_bytes,
            "in_flight": len(traffic.in_flight),
            "cpu_ns": traffic.cpu_ns,
            "again": (again.sent_bytes, len(again.in_flight), again.cpu_ns),
            "pid": os.getpid(),
        }


def arrive(
    rank: int, world_size: int, init_method: str, arrivals: list[list[list[int]]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Who was last at each wait, given every rank's arrivals by step."""
    with joined(TIMEOUT_S, init_method=init_method, rank=rank, world_size=world_size) as group:
        found = last_arrivals(arrivals[rank], group)
    return found.arrival_ns, found.rank
