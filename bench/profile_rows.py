"""Times `seqscale profile` on a made file of many rows: log-normal histories, Zipf items.

    .venv/bin/python bench/profile_rows.py --rows 10000000

Rows stand in random order, as no sorted export would help. Prints seconds and rows/s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MEDIAN_LENGTH, SPREAD = 55, 1.1  # of the log-normal law of history lengths
NUM_ITEMS = 200_000
TIMEOUT_S = 1800


def write_rows(path: Path, num_rows: int, seed: int) -> int:
    """Write a CSV of interactions; returns the number of users."""
    rng = np.random.default_rng(seed)
    lengths = np.zeros(0, dtype=np.int64)
    while lengths.sum() < num_rows:
        more = rng.lognormal(np.log(MEDIAN_LENGTH), SPREAD, 50_000).astype(np.int64)
        lengths = np.concatenate([lengths, np.maximum(more, 1)])
    users = np.repeat(np.arange(len(lengths)), lengths)[:num_rows]
    items = rng.zipf(1.2, num_rows) % NUM_ITEMS
    times = 1_600_000_000 + rng.integers(0, 100_000_000, num_rows)
    rows = np.stack([users, items, times], axis=1)[rng.permutation(num_rows)]
    np.savetxt(path, rows, fmt="%d", delimiter=",", header="user,item,time", comments="")
    return int(users[-1]) + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seqscale-bench-") as folder:
        path = Path(folder) / "rows.csv"
        num_users = write_rows(path, given.rows, given.seed)
        command = [sys.executable, "-m", "flows.cli", "profile", str(path), "--gpus", "64"]
        begin = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
        took_s = time.monotonic() - begin
    rate = given.rows / took_s
    print(f"{given.rows:,} rows, {num_users:,} users: {took_s:.1f} s, {rate:,.0f} rows/s")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
