"""Runs a command and tells how long it took and how much memory all its processes held at most.

    .venv/bin/python bench/peak_memory.py .venv/bin/seqscale run

Memory is the sum of PSS (shared pages counted once) over the command and all its descendants,
looked at every half second; a shorter peak is missed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import psutil

INTERVAL_S = 0.5


def total_pss_bytes(process: psutil.Process) -> int:
    """PSS of a process and its descendants [bytes]; those that end meanwhile count 0."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += member.memory_full_info().pss
    return total


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    begin, peak = time.monotonic(), 0
    with subprocess.Popen(sys.argv[1:]) as command:
        watched = psutil.Process(command.pid)
        while command.poll() is None:
            peak = max(peak, total_pss_bytes(watched))
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(timeout=INTERVAL_S)
    took_s = time.monotonic() - begin
    print(f"{took_s:.1f} s, at most {peak / 2**20:.0f} MiB", file=sys.stderr)
    return command.returncode


if __name__ == "__main__":
    raise SystemExit(main())
