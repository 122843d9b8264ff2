"""Joins two network namespaces by a link of a given rate, and checks the emulated link against it.

    python bench/link.py --rates 30mbit 100mbit 300mbit
    python bench/link.py --rates 100mbit --repeats 9 --json link.json

The same transfers take turns over the real link (two namespaces, veth, `tc tbf` on both ends, one
rank in each) and over `PacedTransport` on the loopback device. Needs root and iproute2; makes and
removes everything itself. Prints Markdown: time of each transfer (slowest rank, median), their
ratio. Other benches import `two_hosts`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the packages lie beside it

ADDRESSES = ("10.77.0.1", "10.77.0.2")  # seen inside the two namespaces only
DEVICE = "wire"
PORT = 29_531
BOUND_SHARE = 0.05  # how far an honest emulation may be off
TIMEOUT_S = 60
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_IN = ("ip", "netns", "exec")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoHosts:
    """Two namespaces that reach each other over a link of one rate, and nothing else."""

    namespaces: tuple[str, str]

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """`argv` as it runs on a host, 0 or 1."""
        return [*_IN, self.namespaces[host], *argv]

    def environment(self, rank: int, world_size: int) -> dict[str, str]:
        """What a rank needs to join: torchrun's variables, and gloo's device."""
        return rank_environment(rank, world_size, ADDRESSES[0], PORT) | {
            "GLOO_SOCKET_IFNAME": DEVICE
        }

    def run(self, argv: Sequence[str], *, timeout_s: float = 600) -> list[str]:
        """Run `argv` on both hosts as ranks 0 and 1; their outputs. Raises when one fails."""
        commands = [self.command(host, argv) for host in (0, 1)]
        environments = [self.environment(host, 2) for host in (0, 1)]
        return run_ranks(commands, environments, timeout_s=timeout_s)


def missing() -> str | None:
    """Why this machine cannot make namespaces, in a sentence; None when it can try."""
    if os.geteuid() != 0:
        return "network namespaces need root; run as root, or use the emulated link (--link)"
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} not found; install iproute2"
    return None


@contextlib.contextmanager
def two_hosts(rate: str | None) -> Iterator[TwoHosts]:
    """Two hosts joined by a link of `rate` in `tc`'s words (None: as fast as the kernel).

    Raises RuntimeError when the machine cannot; removes what it made, also after a failure.
    """
    reason = missing()
    if reason is not None:
        raise RuntimeError(f"no rate-limited link here: {reason}")
    names = (f"seqscale-{os.getpid()}-a", f"seqscale-{os.getpid()}-b")
    with contextlib.ExitStack() as undo:
        for name in names:
            _ip("netns", "add", name)
            undo.callback(_ip, "netns", "del", name)
        first, second = (("-n", name) for name in names)
        _ip(*first, "link", "add", DEVICE, "type", "veth", "peer", DEVICE, "netns", names[1])
        for at, address in zip((first, second), ADDRESSES, strict=True):
            _ip(*at, "address", "add", f"{address}/24", "dev", DEVICE)
            _ip(*at, "link", "set", DEVICE, "up")
            _ip(*at, "link", "set", "lo", "up")
            # in every kernel and free to choose; hosts differ in their default (cubic, bbr)
            _checked(*_IN, at[1], "sh", "-c", f"echo reno > {CONGESTION_CONTROL}")
            if rate is not None:
                shape = f"qdisc add dev {DEVICE} root tbf rate {rate} burst 64kbit latency 400ms"
                _checked("tc", *at, *shape.split())
        yield TwoHosts(namespaces=names)


def rank_environment(rank: int, world_size: int, address: str, port: int) -> dict[str, str]:
    """The environment of a rank that joins over TCP."""
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def run_ranks(
    commands: list[list[str]], environments: list[dict[str, str]], *, timeout_s: float
) -> list[str]:
    """Run one process a rank; their standard outputs. Ends all of them when one fails."""
    children = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [child.communicate(timeout=timeout_s)[0] for child in children]
        codes = [child.returncode for child in children]
        if any(codes):
            raise RuntimeError(f"{commands[0]} ended with exit codes {codes}; see its output above")
        return outputs
    finally:
        for child in children:
            child.kill()
            child.wait()


def run_on_loopback(argv: Sequence[str], *, timeout_s: float = 600) -> list[str]:
    """Run `argv` as two ranks of this host; their outputs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environments = [
        rank_environment(rank, 2, "127.0.0.1", port) | {"GLOO_SOCKET_IFNAME": "lo"}
        for rank in (0, 1)
    ]
    return run_ranks([list(argv)] * 2, environments, timeout_s=timeout_s)


def _ip(*words: str) -> None:
    _checked("ip", *words)


def _checked(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"'{' '.join(argv)}' failed: {done.stderr.strip()}")


# What a rank does. It imports torch, so that the functions above stay light.


def measure_transfers(link: str | None, rate_mbit_per_s: float, repeats: int) -> dict[str, Any]:
    """Seconds of each transfer on this rank, one a repeat; over a paced transport if `link`."""
    import torch

    from training.comm.gloo import GlooTransport
    from training.comm.lanes import Lane
    from training.comm.paced import Link, PacedTransport
    from training.comm.transport import Transport
    from training.links import parse_link
    from training.ranks import another_group, joined

    with joined(TIMEOUT_S) as world:
        cpu = torch.device("cpu")
        transports: list[Transport] = [
            GlooTransport(another_group(TIMEOUT_S), cpu) for _ in range(2)
        ]
        if link is not None:
            shared = Link(parse_link(link))
            transports = [PacedTransport(transport, shared) for transport in transports]
        lanes = [Lane(f"lane-{n}", transport) for n, transport in enumerate(transports)]
        times: dict[str, list[float]] = {}

        def exchange(num_bytes: int) -> Callable[[Transport], float]:
            """An all-to-all that sends `num_bytes` to the other rank; when it was done."""
            data = torch.zeros(2 * num_bytes, dtype=torch.uint8)
            output = torch.empty_like(data)

            def work(transport: Transport) -> float:
                transport.all_to_all(output, data)
                return time.monotonic()

            return work

        def gather(num_bytes: int) -> Callable[[Transport], float]:
            data = torch.zeros(num_bytes, dtype=torch.uint8)

            def work(transport: Transport) -> float:
                transport.all_gather(data)
                return time.monotonic()

            return work

        def timed(name: str, *works: tuple[int, Callable[[Transport], float]]) -> None:
            """Time works (lane, work) that begin together; the last of each lane counts."""
            torch.distributed.barrier(world)
            time.sleep(0.05)  # queues empty, tokens saved up
            torch.distributed.barrier(world)
            begin = time.monotonic()
            futures = [(lane, lanes[lane].submit(work)) for lane, work in works]
            ends = {lane: future.result() for lane, future in futures}
            for lane, end in ends.items():
                label = name if len(ends) == 1 else f"{name}, {('first', 'second')[lane]}"
                times.setdefault(label, []).append(end - begin)

        def after(delay_s: float, work: Callable[[Transport], float]) -> Callable[..., float]:
            def late(transport: Transport) -> float:
                time.sleep(delay_s)  # the late start is what is measured, and taken off again
                return work(transport) - delay_s

            return late

        large = int(rate_mbit_per_s * 1e6 / 8 * 0.2)  # 0.2 s of wire
        for _ in range(repeats):
            timed("2 KB", (0, exchange(2_000)))
            timed("32 KB", (0, exchange(32_000)))
            timed("20 x 4 KB in turn", *[(0, exchange(4_000))] * 20)
            timed("400 KB", (0, exchange(400_000)))
            timed("0.2 s of wire", (0, exchange(large)))
            timed("all-gather, 0.1 s of wire", (0, gather(large // 2)))
            timed("two equal", (0, exchange(large)), (1, exchange(large)))
            timed("400 KB and 32 KB", (0, exchange(400_000)), (1, exchange(32_000)))
            timed(
                "0.2 s of wire and, 0.03 s later, 32 KB",
                (0, exchange(large)),
                (1, after(0.03, exchange(32_000))),
            )
            timed(
                "chunks of 5 ms of wire and, 0.03 s later, 32 KB",
                *[(0, exchange(large // 40))] * 40,
                (1, after(0.03, exchange(32_000))),
            )
        for lane in lanes:
            lane.settle()
            lane.close()
        return times


def compare(rate: str, repeats: int, rounds: int) -> list[dict[str, Any]]:
    """One row a transfer: real and emulated seconds, medians of the slowest rank."""
    from training.links import parse_link

    mbit = parse_link(rate)
    argv = [sys.executable, __file__, "--as-rank", str(mbit), "--repeats", str(repeats)]
    real: dict[str, list[float]] = {}
    paced: dict[str, list[float]] = {}
    for _ in range(rounds):
        with two_hosts(rate) as hosts:
            _merge(real, hosts.run(argv))
        _merge(paced, run_on_loopback([*argv, "--link", rate]))
    return [
        {
            "rate_mbit_per_s": mbit,
            "transfer": name,
            "real_s": statistics.median(real[name]),
            "emulated_s": statistics.median(paced[name]),
            "real_low_s": min(real[name]),
            "real_high_s": max(real[name]),
        }
        for name in real
    ]


def _merge(times: dict[str, list[float]], outputs: list[str]) -> None:
    """Add each repeat's slowest rank."""
    ranks = [json.loads(output) for output in outputs]
    for name in ranks[0]:
        slowest = [max(both) for both in zip(*(rank[name] for rank in ranks), strict=True)]
        times.setdefault(name, []).extend(slowest)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| rate [mbit/s] | transfer to the other rank | real [ms] (least to most) "
        "| emulated [ms] | difference |",
        "|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        real, emulated = row["real_s"], row["emulated_s"]
        low, high = 1e3 * row["real_low_s"], 1e3 * row["real_high_s"]
        lines.append(
            f"| {row['rate_mbit_per_s']:g} | {row['transfer']} | {1e3 * real:.2f} "
            f"({low:.2f}-{high:.2f}) | {1e3 * emulated:.2f} | {emulated / real - 1:+.1%} |"
        )
    return lines


def verdict(rows: list[dict[str, Any]]) -> str:
    """How many transfers the emulated link carries as the real one does."""
    far = [row for row in rows if abs(row["emulated_s"] / row["real_s"] - 1) > BOUND_SHARE]
    near = len(rows) - len(far)
    return f"{near} of {len(rows)} transfers within {BOUND_SHARE:.0%} of the real link."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rates", nargs="+", default=["30mbit", "100mbit", "300mbit"])
    parser.add_argument("--repeats", type=int, default=5, help="of each transfer in a round")
    parser.add_argument("--rounds", type=int, default=2, help="real and emulated in turn")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--as-rank", type=float, metavar="MBIT", help=argparse.SUPPRESS)
    parser.add_argument("--link", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank is not None:
        print(json.dumps(measure_transfers(arguments.link, arguments.as_rank, arguments.repeats)))
        return
    reason = missing()
    if reason is not None:
        parser.error(reason)
    rows = [
        row
        for rate in arguments.rates
        for row in compare(rate, arguments.repeats, arguments.rounds)
    ]
    print("\n".join([*table(rows), "", verdict(rows)]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
