"""Refuses tables that do not fit into memory before a run spends an hour on finding out.

Before: nothing is allocated.   After: table.py draws the weights.
What is counted: weights and optimiser state of each rank's share, in float32. Batches, activations
and the dense part come on top; planning/memory.py bounds those by events.

Free host memory is the least of what the kernel calls available and what every control group above
this process leaves of its limit (Linux, both versions; files of a group that its limit could
reclaim count as free). Elsewhere it is not known, and then nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from analytics.errors import ConfigError
from training.comm.transport import Transport
from training.config import TableConfig
from training.embeddings.optimizers import state_entries_per_row
from training.ranks import host_key

_ENTRY_BYTES = 4  # float32
_GIB = 1 << 30
_ROOT = Path("/")


def share_bytes(config: TableConfig, world_size: int) -> int:
    """Bytes of the largest rank's share of a table: weights and optimiser state."""
    is_replicated = config.placement == "replicated"
    num_rows = config.num_rows if is_replicated else -(-config.num_rows // world_size)
    return num_rows * (config.width + state_entries_per_row(config)) * _ENTRY_BYTES


def refuse_what_does_not_fit(
    configs: Sequence[TableConfig],
    *,
    world_size: int,
    device: torch.device | None = None,
    ranks_on_device: int = 1,
    free_bytes: int | None = None,
) -> None:
    """Raise ConfigError, with the figures, when the tables do not fit into free memory.

    ranks_on_device: ranks that share this device (or this host, for the CPU) and that have not
    allocated anything yet. free_bytes: what is free there; measured unless given.
    """
    device = device or torch.device("cpu")
    free = measured_free_bytes(device) if free_bytes is None else free_bytes
    shares = [share_bytes(config, world_size) for config in configs]
    needed = sum(shares) * ranks_on_device
    if free is None or needed <= free:
        return
    largest = max(zip(shares, configs, strict=True), key=lambda pair: pair[0])[1]
    rest = f", of {len(configs)} tables" if len(configs) > 1 else ""
    most = largest.num_rows * free // needed if len(configs) == 1 else None
    raise ConfigError(
        f"table {largest.name!r} ({largest.num_rows:,} rows of {largest.width}, "
        f"{largest.optimizer}, {largest.placement}{rest}) does not fit on {device}: "
        f"{_gib(sum(shares))} a rank for weights and optimiser state with {world_size} ranks, "
        f"{ranks_on_device} of them here, so {needed:,} bytes are needed ({_gib(needed)}) and "
        f"{free:,} are free ({_gib(free)}). Use more ranks on more machines, a smaller width, "
        "an optimiser with less state (rowwise_adagrad keeps one number a row, sgd none)"
        f"{f', at most {most:,} rows' if most else ''}, or free memory."
    )


def refuse_on_every_rank(configs: Sequence[TableConfig], transport: Transport) -> None:
    """Before anything is allocated: all ranks go on, or none does. A collective.

    Ranks on one device (or host) share what is free there. Raises ConfigError on every rank; the
    one that lacks the memory gives the figures.
    """
    device = transport.device
    key = torch.tensor([host_key(_part_of_host(device))], device=device)
    keys_R = transport.all_gather(key).flatten().tolist()
    problem: ConfigError | None = None
    try:
        refuse_what_does_not_fit(
            configs,
            world_size=transport.world_size,
            device=device,
            ranks_on_device=keys_R.count(keys_R[transport.rank]),
        )
    except ConfigError as error:
        problem = error
    told = torch.tensor([problem is not None], dtype=torch.uint8, device=device)
    refused_R = transport.all_gather(told).flatten().tolist()
    if problem is not None:
        raise problem
    if any(refused_R):
        raise ConfigError(
            f"The tables do not fit on rank {refused_R.index(1)}; its own message has the figures."
        )


def _part_of_host(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return str(torch.cuda.get_device_properties(device).uuid)


def measured_free_bytes(device: torch.device) -> int | None:
    """Free bytes of a device; None where it cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes() if device.type == "cpu" else None


def free_host_bytes(root: Path = _ROOT) -> int | None:
    """Free bytes of this host within this process's limits; None where it cannot be known.

    root: where /proc and /sys lie.
    """
    known = [*_available(root), *_left_in_groups(root)]
    return min(known) if known else None


def _available(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _left_in_groups(root: Path) -> Iterator[int]:
    """What each control group with a memory limit leaves, from this process's own up to the top."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            base, limit, used, inactive = (
                root / "sys/fs/cgroup",
                "memory.max",
                "memory.current",
                "inactive_file",
            )
        elif "memory" in controllers.split(","):
            base, limit, used, inactive = (
                root / "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        # In a container the path may be the host's; its own group is then mounted at the top.
        own = base / path.strip("/")
        for group in [own, *(up for up in own.parents if up.is_relative_to(base))]:
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                yield max(0, most - max(0, now - _field(group / "memory.stat", inactive)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The one number in a file; None when it is not there or says `max`."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _field(path: Path, name: str) -> int:
    return sum(int(line.split()[1]) for line in _lines(path) if line.split()[:1] == [name])


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.2f} GiB"
