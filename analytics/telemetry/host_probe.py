"""Reads the host's processors, memory and network as one device named 'cpu'.

Before: sampler.py asks once an interval.   After: fact_device_sample, on every host alike.
Price: a few files of /proc a reading. The network is all interfaces but the loopback; what passes
a bridge or a tunnel is counted on each interface it passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from analytics.hosts import CPU, cpu_name
from analytics.telemetry.counters import counted, share_of_percent

Value = TypeVar("Value")
Counters = dict[str, tuple[int, int]]  # interface -> bytes sent, bytes received

_LOOPBACK = ("lo", "Loopback")


class HostProbe:
    """The host as one device; use and rates are those since the reading before."""

    def __init__(self, now_s: float) -> None:
        """now_s: the clock that later readings go by."""
        _told(lambda: psutil.cpu_percent(interval=None))  # the first call only sets the reference
        self._network = _told(network_counters)
        self._network_s = now_s

    def read(self, now_s: float) -> dict[str, Any] | None:
        """The device's columns; what the host does not tell is None."""
        memory = _told(psutil.virtual_memory)
        sent, received = self._rates(now_s)
        return {
            "device_id": CPU,
            "device_name": cpu_name(),
            "collector": f"psutil {psutil.__version__}",
            "utilization_share": share_of_percent(_told(lambda: psutil.cpu_percent(interval=None))),
            "memory_used_bytes": None if memory is None else memory.total - memory.available,
            "memory_total_bytes": None if memory is None else memory.total,
            "power_w": None,
            "network_sent_bytes_per_s": sent,
            "network_received_bytes_per_s": received,
        }

    def close(self) -> None:
        """Nothing is held open."""

    def _rates(self, now_s: float) -> tuple[float | None, float | None]:
        """Bytes a second sent and received since the last reading that told something."""
        now = _told(network_counters)
        if now is None:
            return None, None
        before, since_s = self._network, now_s - self._network_s
        self._network, self._network_s = now, now_s
        if before is None or since_s <= 0:
            return None, None
        sent, received = transferred(now, before)
        return sent / since_s, received / since_s


def network_counters() -> Counters:
    """What each interface but the loopback has carried so far."""
    told = psutil.net_io_counters(pernic=True, nowrap=False)
    return {
        name: (nic.bytes_sent, nic.bytes_recv)
        for name, nic in told.items()
        if not name.startswith(_LOOPBACK)
    }


def transferred(now: Counters, before: Counters) -> tuple[int, int]:
    """Bytes sent and received between two readings.

    An interface that was reset or made anew counts from 0; one that is new counts from now on.
    """
    both = now.keys() & before.keys()
    sent, received = (
        sum(int(counted(now[name][way], before[name][way])) for name in both) for way in (0, 1)
    )
    return sent, received


def _told(call: Callable[[], Value]) -> Value | None:
    """What the system says; None when it does not, which never stops the other figures."""
    try:
        return call()
    except (psutil.Error, OSError, RuntimeError, ValueError):
        return None
