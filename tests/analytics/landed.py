"""Device samples with figures one can check on paper, and the means to land them as an import."""

import contextlib
from pathlib import Path

from analytics import schema
from analytics.landing import insert_records, land, landing_tables
from analytics.warehouse import load, open_published, publish

S = 10**9  # a second in nanoseconds
MINUTE = 60 * S
START = 1_796_047_200 * S  # 2026-11-30 14:00:00 UTC, a full minute


def sample(at_s: float, *, device_id: str = "GPU-a", **changes) -> schema.FactDeviceSample:
    """One sample, `at_s` seconds after START; every figure that is not named is NULL."""
    optional = {c.name: None for c in schema.columns(schema.FactDeviceSample) if c.nullable}
    values = dict(
        pipeline_id="", attempt=0, host="node-1", device_id=device_id,
        sampled_unix_ns=START + round(at_s * S), device_name="paper GPU",
    )  # fmt: skip
    return schema.FactDeviceSample(**(optional | values | changes))


def about(import_id: str, **changes) -> schema.DimImport:
    values = dict(
        import_id=import_id, source_kind="paper", source_name=f"{import_id}.csv",
        source_sha256="0" * 64, num_bytes=1, num_files=1, num_read=1, num_loaded=1, num_rejected=0,
        num_records=1, num_conflicts=0, host=None, time_zone=None, clock_offset_ns=None,
        clock_uncertainty_ns=None, collector=None, first_unix_ns=None, last_unix_ns=None,
        imported_unix_ns=START, pipeline_id="",
    )  # fmt: skip
    return schema.DimImport(**(values | changes))


def land_records(runs_dir: Path, import_id: str, *records, **changes) -> Path:
    """Land records of any tables as one import."""
    with landing_tables(runs_dir) as con:
        for name in {record.__table_name__ for record in records}:
            insert_records(con, [r for r in records if r.__table_name__ == name])
        return land(con, runs_dir, about(import_id, **changes))


def tables(runs_dir: Path, *names: str, but: tuple[str, ...] = ()) -> dict[str, list[tuple]]:
    """Every row of the published warehouse's tables, sorted."""
    with contextlib.closing(open_published(runs_dir)) as con:
        return {
            name: con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
            for name in names or schema.TABLES
            if name not in but
        }


def loaded(runs_dir: Path, *names: str) -> dict[str, list[tuple]]:
    """The same after a load."""
    load(runs_dir)
    publish(runs_dir)
    return tables(runs_dir, *names)


def query(runs_dir: Path, sql: str) -> list[tuple]:
    with contextlib.closing(open_published(runs_dir)) as con:
        return con.execute(sql).fetchall()
