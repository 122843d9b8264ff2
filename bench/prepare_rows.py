"""Times the preparation of many rows beside pandas and Polars doing the same work.

    pip install 'seqscale[bench]'
    .venv/bin/python bench/prepare_rows.py --rows 10000000 --repeats 3

The same work: read user, item and time; drop users of fewer than five events; order by user and
time, equal times by their place in the file; number users and items; leave one out; write items,
times, splits and offsets as .npy and both maps as Parquet. (seqscale also counts every dropped row,
keeps the rows it left out, hashes the content and checks it.) Each run is a process of its own, the
three in turns; seconds are without imports, memory is the process's largest resident set. Then the
histories of all three are compared: rows that differ must be 0.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from make_events import write_events

TIMEOUT_S = 1800
MIN_HISTORY = 5
CASES = [(kind, form) for kind in ("integer", "string") for form in ("parquet", "csv")]


def with_seqscale(path: Path, out: Path) -> Callable[[], None]:
    from analytics.interactions import prepare
    from analytics.preparation import Preparation
    from analytics.rules import HistoryRules

    wanted = Preparation(history=HistoryRules(min_history=MIN_HISTORY))
    return lambda: void(prepare(path, out.parent, preparation=wanted, out=out))


def with_pandas(path: Path, out: Path) -> Callable[[], None]:
    import pandas as pd

    def work() -> None:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        length = frame.groupby("user", sort=False)["time"].transform("size")
        frame = frame[length >= MIN_HISTORY].sort_values(["user", "time"], kind="stable")
        user, item = frame["user"].astype("category").cat, frame["item"].astype("category").cat
        codes = user.codes.to_numpy()
        back = frame.groupby(codes).cumcount(ascending=False).to_numpy()
        splits = np.where(back == 0, 2, np.where(back == 1, 1, 0)).astype(np.uint8)
        save(out, item.codes.to_numpy(), frame["time"].to_numpy(), splits, codes)
        pd.DataFrame({"id": user.categories}).to_parquet(out / "user_map.parquet")
        pd.DataFrame({"id": item.categories}).to_parquet(out / "item_map.parquet")

    return work


def with_polars(path: Path, out: Path) -> Callable[[], None]:
    import polars as pl

    def work() -> None:
        scan = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_csv(path)
        frame = (
            scan.filter(pl.len().over("user") >= MIN_HISTORY)
            .sort("user", "time", maintain_order=True)
            .with_columns(
                user_code=pl.col("user").rle_id(), item_code=pl.col("item").rank("dense") - 1
            )
            .collect()
        )
        codes = frame["user_code"].to_numpy()
        splits = np.zeros(len(codes), dtype=np.uint8)
        ends = np.cumsum(np.bincount(codes))
        splits[ends - 1], splits[ends - 2] = 2, 1
        save(out, frame["item_code"].to_numpy(), frame["time"].to_numpy(), splits, codes)
        users = frame.select(id=pl.col("user")).unique(maintain_order=True)
        users.write_parquet(out / "user_map.parquet")
        frame.select(id=pl.col("item")).unique().sort("id").write_parquet(out / "item_map.parquet")

    return work


def save(out: Path, items: Any, times: Any, splits: Any, user_codes: Any) -> None:
    """Write what pandas and Polars made as the arrays of a store."""
    out.mkdir()
    np.save(out / "items.npy", items.astype(np.int32))
    np.save(out / "times.npy", times)
    np.save(out / "splits.npy", splits)
    np.save(out / "offsets.npy", np.concatenate([[0], np.cumsum(np.bincount(user_codes))]))


def void(_: object) -> None:
    """Nothing, whatever was made."""


MAKERS = {"seqscale": with_seqscale, "pandas": with_pandas, "polars": with_polars}


def work_once(maker: str, path: Path, out: Path) -> None:
    """What the child process does: one preparation, its seconds and memory as JSON."""
    work = MAKERS[maker](path, out)
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "peak_gib": peak_gib}))


def fingerprint(out: Path, scale: int) -> tuple[int, int]:
    """(events, sum of the hashes of user, place, item, time and split), whatever the codes are."""
    offsets = np.load(out / "offsets.npy")
    length_U = np.diff(offsets)
    events = {  # noqa: F841 - DuckDB finds it by its name
        "user": np.repeat(np.arange(len(length_U)), length_U),
        "place": np.arange(offsets[-1]) - np.repeat(offsets[:-1], length_U),
        "item": np.load(out / "items.npy"),
        "time": np.load(out / "times.npy") // scale,
        "split": np.load(out / "splits.npy"),
    }
    with duckdb.connect() as connection:
        for role in ("user", "item"):
            column = "id" if scale == 1 else f"{role}_id"
            connection.execute(
                f"CREATE TABLE {role}s AS SELECT row_number() OVER () - 1 AS code, "
                f"CAST({column} AS VARCHAR) AS name FROM '{out}/{role}_map.parquet'"
            )
        row = connection.execute(
            "SELECT count(*), sum(CAST(hash(users.name, place, items.name, time, split) AS "
            "HUGEINT)) FROM events JOIN users ON users.code = events.user "
            "JOIN items ON items.code = events.item"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def case(folder: Path, kind: str, form: str, given: argparse.Namespace) -> list[str]:
    """The table's lines of one kind of file."""
    source = folder / f"{kind}-{form}"
    write_events(
        source, num_rows=given.rows, num_users=given.users, num_items=given.items,
        kind=kind, form=form, seed=given.seed,
    )  # fmt: skip
    (path,) = source.iterdir()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in MAKERS}
    prints = {}
    for repeat in range(given.repeats):
        for name in MAKERS:
            out = folder / f"{kind}-{form}-{name}-{repeat}"
            command = [sys.executable, __file__, "--child", name, str(path), str(out)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
            found[name].append(json.loads(done.stdout))
            prints[name] = fingerprint(out, 1_000_000 if name == "seqscale" else 1)
    middle = {name: statistics.median(run["seconds"] for run in found[name]) for name in MAKERS}
    peak = {name: max(run["peak_gib"] for run in found[name]) for name in MAKERS}
    same = "0" if len(set(prints.values())) == 1 else "DIFFERENT"
    return [
        f"| {kind} ids, {form} | {name} | {middle[name]:.1f} "
        f"| {middle[name] / middle['seqscale']:.2f} | {peak[name]:.2f} "
        f"| {peak['seqscale'] / peak[name]:.2f} | {same} |"
        for name in MAKERS
    ]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        work_once(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| file | by | s | x seqscale | peak GiB | seqscale's share of it | rows that differ |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="seqscale-bench-") as name:
        for kind, form in CASES:
            print("\n".join(case(Path(name), kind, form, given)), flush=True)


if __name__ == "__main__":
    main()
