"""Names this host and its processor and tells when this process began, alike to whoever asks.

Before: nothing.   After: ranks, sampler and flow name hosts and devices by it, so their rows meet.
Price: two small files of /proc, read once.
Standard library only.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from pathlib import Path

CPU = "cpu"  # device_id of a host's processors, taken as one device


def host_name() -> str:
    """This host's name, 'unknown' where it has none."""
    return platform.node() or "unknown"


@functools.cache
def cpu_name() -> str:
    """The processor's model as Linux tells it, else the machine's architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not a Linux, or /proc is not there
    return platform.processor() or platform.machine()


def process_began_unix_ns() -> int | None:
    """When this process began, UTC, right to a clock tick (10 ms); None where it is not told."""
    try:
        # the name in parentheses may hold anything, so read behind the last ')'
        told = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(told.rpartition(")")[2].split()[19])
        since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    # a container may count from a boot of its own
    return time.time_ns() - age_ns if 0 <= age_ns <= time.time_ns() else None
