"""Times the load of device samples beside DuckDB's own Parquet COPY, and every view over them.

    pip install 'seqscale[bench]'
    .venv/bin/python bench/telemetry_load.py --rows 10000000 --repeats 3

The same file and the same columns: `load` takes a landed import up into a warehouse (with its look
at what the warehouse holds, its transaction and its checkpoint); `copy` is COPY into a plain table
of a new database, and a checkpoint. `arrow` is an Arrow table into the landing zone's table, and
`arrow copy` the same INSERT into a plain table. The arms take turns; rows and sums must be equal.
Samples of 16 devices, 15 columns filled, one a second; 500,000 steps of 20 s for the joins.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script from anywhere

from analytics.ddl import views
from analytics.landing import insert_arrow, land, landing_tables
from analytics.schema import DimImport, FactDeviceSample, columns
from analytics.warehouse import load, open_published, publish

NUM_DEVICES = 16
START_S = 1_796_047_200
SAMPLES = """
    INSERT INTO fact_device_sample BY NAME
    SELECT
        '' AS pipeline_id, 0 AS attempt, 'node-' || (device // 8) AS host,
        'GPU-' || device AS device_id, 'paper GPU' AS device_name,
        ({start} + place) * 1000000000 AS sampled_unix_ns, 1.0 AS interval_s,
        (place * 7919 % 1000) / 1000.0 AS utilization_share,
        (place * 104729 % 80000) * 1000000 AS memory_used_bytes,
        80000000000 AS memory_total_bytes, 100.0 + place * 31 % 600 AS power_w,
        (place * 6151 % 1000) / 1000.0 AS sm_active_share, 350.0 * place AS energy_j,
        40.0 + place % 30 AS temperature_c, 'paper' AS source_kind
    FROM (SELECT n // {each} AS device, n % {each} AS place FROM range({rows}) AS r(n))
"""
STEPS = """
    INSERT INTO fact_step BY NAME
    SELECT
        'r' AS run_id, 'trace-r' AS pipeline_id, 0 AS attempt, rank, step, 0 AS block,
        ({start} + step * 20) * 1000000000 AS started_unix_ns, 20.0 AS window_s, 15.0 AS busy_s,
        0.0 AS exposed_copy_s, 5.0 AS data_wait_s, 0.0 AS unattributed_s,
        0.0 AS exposed_comm_total_s, 0.0 AS comm_s, 0.0 AS overlapped_comm_s, 8 AS num_sequences
    FROM range({devices}) AS d(rank), range({each} // 20) AS s(step)
"""
RUN = """
    INSERT INTO dim_run BY NAME
    SELECT
        'r' AS run_id, 'trace-r' AS pipeline_id, 0 AS attempt, 'trace' AS arm, '0' AS config_sha256,
        16 AS world_size, 'cuda' AS device, 'node-0' AS host, 1 AS num_steps,
        {start}::BIGINT * 1000000000 AS started_unix_ns, '0' AS seqscale_version;
    INSERT INTO dim_rank BY NAME
    SELECT
        'r' AS run_id, 'trace-r' AS pipeline_id, 0 AS attempt, rank,
        'node-' || (rank // 8) AS host, 'GPU-' || rank AS device_id
    FROM range({devices}) AS d(rank)
"""


def about(import_id: str, imported: int) -> DimImport:
    optional = {c.name: None for c in columns(DimImport) if c.nullable}
    counts = dict.fromkeys(
        ("num_bytes", "num_files", "num_read", "num_loaded", "num_rejected", "num_records",
         "num_conflicts"), 0,
    )  # fmt: skip
    values: dict[str, Any] = {
        "import_id": import_id, "source_kind": "bench", "source_name": "bench",
        "source_sha256": "0", "imported_unix_ns": imported, "pipeline_id": "",
    }  # fmt: skip
    return DimImport(**(optional | counts | values))


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def sums(con: duckdb.DuckDBPyConnection, table: str = "fact_device_sample") -> tuple[Any, ...]:
    found = con.execute(
        f"SELECT count(*), sum(sampled_unix_ns), sum(memory_used_bytes), "
        f"CAST(sum(power_w) AS BIGINT), count(DISTINCT device_id) FROM {table}"
    ).fetchone()
    assert found is not None
    return found


def plain_table(con: duckdb.DuckDBPyConnection) -> None:
    lines = ", ".join(f"{c.name} {c.sql_type}" for c in columns(FactDeviceSample))
    con.execute(f"CREATE TABLE fact_device_sample ({lines})")


def make_landed(runs_dir: Path, rows: int) -> tuple[Path, float]:
    """The landed import of all samples and steps, and how long landing it took."""
    fields = {
        "rows": rows, "each": rows // NUM_DEVICES, "start": START_S, "devices": NUM_DEVICES
    }  # fmt: skip
    with landing_tables(runs_dir) as con:
        for text in (SAMPLES, STEPS, RUN):
            con.execute(text.format(**fields))
        begin = time.perf_counter()
        return land(con, runs_dir, about("all", 1)), time.perf_counter() - begin


def time_load(folder: Path, source: Path) -> tuple[float, tuple[Any, ...], Path]:
    """Load the landed import into a warehouse whose tables are there already."""
    runs_dir = Path(tempfile.mkdtemp(dir=folder))
    with landing_tables(runs_dir) as con:
        land(con, runs_dir, about("empty", 0))
    load(runs_dir)
    (runs_dir / "telemetry" / source.name).symlink_to(source)
    taken = seconds(lambda: load(runs_dir))
    with duckdb.connect(runs_dir / ".work" / "warehouse.duckdb") as con:
        return taken, sums(con), runs_dir


def time_copy(folder: Path, source: Path) -> tuple[float, tuple[Any, ...]]:
    with duckdb.connect(Path(tempfile.mkdtemp(dir=folder)) / "plain.duckdb") as con:
        plain_table(con)
        path = source / "fact_device_sample.parquet"

        def work() -> None:
            con.execute(f"COPY fact_device_sample FROM '{path}' (FORMAT parquet)")
            con.execute("CHECKPOINT")

        return seconds(work), sums(con)


def time_arrow(folder: Path, rows: Any) -> tuple[float, tuple[Any, ...]]:
    with landing_tables(Path(tempfile.mkdtemp(dir=folder))) as con:
        return seconds(lambda: insert_arrow(con, "fact_device_sample", rows)), sums(con)


def time_arrow_copy(folder: Path, rows: Any) -> tuple[float, tuple[Any, ...]]:
    with duckdb.connect(Path(tempfile.mkdtemp(dir=folder)) / "plain.duckdb") as con:
        plain_table(con)
        con.register("given", rows)
        insert = "INSERT INTO fact_device_sample SELECT * FROM given"
        return seconds(lambda: con.execute(insert)), sums(con)


def time_views(runs_dir: Path) -> dict[str, float]:
    """Seconds to compute every column of every view that reads device samples, once published."""
    found = {}
    with contextlib.closing(open_published(runs_dir)) as con:
        for view in views():
            if "device" in view.name or view.name == "run_energy":
                query = f"SELECT count(COLUMNS(*)) FROM {view.name}"
                found[view.name] = seconds(lambda query=query: con.execute(query).fetchall())
    return found


def measure(folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    source, land_s = make_landed(folder / "source", rows)
    import pyarrow.parquet

    arrow = pyarrow.parquet.read_table(source / "fact_device_sample.parquet")
    times: dict[str, list[float]] = {}
    seen = set()
    for _ in range(repeats):
        taken, found, runs_dir = time_load(folder, source)
        arms = {"load": (taken, found), "copy": time_copy(folder, source)}
        arms |= {
            "arrow": time_arrow(folder, arrow), "arrow copy": time_arrow_copy(folder, arrow)
        }  # fmt: skip
        for name, (taken, found) in arms.items():
            times.setdefault(name, []).append(taken)
            seen.add(found)
    middle = {name: statistics.median(found) for name, found in times.items()}
    return {
        "rows": rows, "repeats": repeats, "land_s": land_s, "times_s": times, "median_s": middle,
        "load_to_copy": middle["load"] / middle["copy"],
        "arrow_to_arrow_copy": middle["arrow"] / middle["arrow copy"],
        "are_sums_equal": len(seen) == 1, "publish_s": seconds(lambda: publish(runs_dir)),
        "views_s": time_views(runs_dir),
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    print("| what | s, median | rows/s | x its limit |\n|---|---:|---:|---:|")
    ratios = {"load": found["load_to_copy"], "arrow": found["arrow_to_arrow_copy"]}
    for name, taken in found["median_s"].items():
        ratio = f"{ratios[name]:.2f}" if name in ratios else "1"
        print(f"| {name} | {taken:.2f} | {found['rows'] / taken:,.0f} | {ratio} |")
    print(f"| landing, sorted and checked | {found['land_s']:.2f} "
          f"| {found['rows'] / found['land_s']:,.0f} | - |")  # fmt: skip
    print(f"| publishing, costly views as rows | {found['publish_s']:.2f} "
          f"| {found['rows'] / found['publish_s']:,.0f} | - |")  # fmt: skip
    print(f"\nrows and sums equal: {found['are_sums_equal']}\n\n| view | s |\n|---|---:|")
    for name, taken in found["views_s"].items():
        print(f"| {name} | {taken:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seqscale-bench-") as name:
        found = measure(Path(name), given.rows // NUM_DEVICES * NUM_DEVICES, given.repeats)
    if given.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
