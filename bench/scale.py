"""Prepares, grows and profiles a made data set of any size, and tells time, memory and disk.

    .venv/bin/python bench/scale.py --rows 100000000 --users 1000000 --items 2000000

Makes the rows (bench/make_events.py) and one more day of a hundredth of them; then runs `seqscale
prepare`, `seqscale prepare --append`, `seqscale profile`, each a process of its own. Memory is the
process's largest resident set, spill the largest size of its working folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from make_events import write_events

TIMEOUT_S = 3600
LOOK_S = 0.5


def folder_bytes(folder: Path) -> int:
    """Size of everything in a folder [bytes]; what vanishes meanwhile counts 0."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


class SpillWatch(threading.Thread):
    """Looks at the working folders of `place` until told to stop; `peak_bytes` is the largest."""

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self._place, self._stop_asked = place, threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        """Look until told to stop."""
        while not self._stop_asked.wait(LOOK_S):
            now = sum(folder_bytes(folder) for folder in self._place.glob(".making-*"))
            self.peak_bytes = max(self.peak_bytes, now)

    def stop(self) -> None:
        """End the looking."""
        self._stop_asked.set()
        self.join()


def timed(place: Path, *arguments: str) -> tuple[float, float, float]:
    """(seconds, peak memory [GiB], peak of the working folder [GiB]) of one command."""
    watch = SpillWatch(place)
    watch.start()
    begin = time.monotonic()
    command = [sys.executable, "-m", "flows.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.monotonic() - begin
    watch.stop()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return took_s, usage.ru_maxrss / 2**20, watch.peak_bytes / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--ids", choices=("integer", "string"), default="integer")
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    made = {"num_items": given.items, "kind": given.ids, "form": given.format}
    num_new = max(given.rows // 100, 1000)
    with tempfile.TemporaryDirectory(prefix="seqscale-bench-") as name:
        place = Path(name)
        days, new_day, store = place / "days", place / "new", place / "store"
        write_events(days, num_rows=given.rows, num_users=given.users, seed=given.seed, **made)
        num_users = min(given.users, num_new)
        write_events(new_day, num_rows=num_new, num_users=num_users, seed=given.seed + 1, **made)
        what = f"{given.rows:,} rows, {given.ids} ids, {given.format}"
        print(f"| {what} | s | rows/s | GiB | spill GiB |")
        print("|---|---:|---:|---:|---:|")
        steps = (
            ("prepare", given.rows, ("prepare", str(days), "--out", str(store), "--keep-user-ids")),
            (
                f"append {num_new:,} rows",
                num_new,
                ("prepare", str(new_day), "--out", str(store), "--append", "--keep-user-ids"),
            ),
            ("profile", given.rows, ("profile", str(store))),
        )
        for step, num_rows, arguments in steps:
            took_s, peak_gib, spill_gib = timed(place, *arguments)
            print(
                f"| {step} | {took_s:.1f} | {num_rows / took_s:,.0f} | {peak_gib:.2f} "
                f"| {spill_gib:.2f} |",
                flush=True,
            )
        print(f"\nstore: {folder_bytes(store) / given.rows:.1f} bytes a row")


if __name__ == "__main__":
    main()
