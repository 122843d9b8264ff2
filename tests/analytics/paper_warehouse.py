"""A warehouse in memory that holds chosen records, with every view."""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator

import duckdb

from analytics import schema
from analytics.ddl import create_tables, create_views
from analytics.landing import insert_records
from analytics.records import table_name

HOUR_NS = 3_600_000_000_000
NOON_NS = 1_796_040_000_000_000_000  # 30 November 2026, 12:00 UTC


@contextlib.contextmanager
def warehouse_of(*records, zone: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a warehouse of these records alone, one at a time."""
    con = _empty_warehouse()
    by_table = defaultdict(list)
    for record in records:
        by_table[type(record)].append(record)
    if zone is not None:
        by_table[schema.DimSetting].append(schema.DimSetting(setting="time_zone", value=zone))
    try:
        for same in by_table.values():
            insert_records(con, same)
        yield con
    finally:
        for record in by_table:
            con.execute(f"DELETE FROM {table_name(record)}")


@functools.cache  # making it takes longer than any test with it
def _empty_warehouse() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(":memory:")
    con.execute("SET TimeZone = 'America/New_York'")  # the machine's zone must not matter
    create_tables(con)
    create_views(con)
    return con


def event(hour: float, what: str = "allocated", **changes) -> schema.FactPoolEvent:
    """An event of device gpu-0 of host h1, so many hours after noon."""
    values = dict(
        pool_id="p", host="h1", device_id="gpu-0", event_unix_ns=NOON_NS + int(hour * HOUR_NS),
        event=what, pipeline_id="a", purchase="on_demand", device_hour_cost=3.0, currency="EUR",
        reason=None,
    )  # fmt: skip
    if what != "allocated":
        values |= dict(purchase=None, device_hour_cost=None, currency=None)
    return schema.FactPoolEvent(**(values | changes))


def pool(**changes) -> schema.DimPool:
    values = dict(
        pool_id="p", cloud="own", region=None, instance_type="paper.8", team_id="ads",
        num_devices=8, purchase=None,
    )  # fmt: skip
    return schema.DimPool(**(values | changes))


def price(**changes) -> schema.DimPrice:
    values = dict(
        pipeline_id="", instance_type="paper.8", cloud="own", region="here", device_name="paper",
        num_devices=8, device_hour_cost=3.0, currency="EUR", list_device_hour_cost=3.0,
        list_currency="EUR", price_date="2026-11-30", source="paper",
    )  # fmt: skip
    return schema.DimPrice(**(values | changes))


def run(**changes) -> schema.DimRun:
    """Run r of pipeline a, one rank on a GPU of h1 from noon on."""
    values = dict.fromkeys(c.name for c in schema.columns(schema.DimRun))
    values |= dict(
        run_id="r", pipeline_id="a", attempt=0, arm="baseline", config_sha256="0", world_size=1,
        device="cuda", host="h1", num_steps=1, started_unix_ns=NOON_NS, seqscale_version="0",
    )  # fmt: skip
    return schema.DimRun(**(values | changes))


def step(hour: float, window_s: float, **changes) -> schema.FactStep:
    """A step of rank 0 of run r that was all work, so many hours after noon."""
    values = dict.fromkeys(c.name for c in schema.columns(schema.FactStep))
    values |= dict(
        run_id="r", pipeline_id="a", attempt=0, rank=0, step=0, block=0,
        started_unix_ns=NOON_NS + int(hour * HOUR_NS), window_s=window_s, busy_s=window_s,
        exposed_copy_s=0.0, data_wait_s=0.0, unattributed_s=0.0, exposed_comm_total_s=0.0,
        comm_s=0.0, overlapped_comm_s=0.0, num_sequences=1,
    )  # fmt: skip
    return schema.FactStep(**(values | changes))


def rank_of(run_id: str, rank: int = 0, **changes) -> schema.DimRank:
    values = dict(
        run_id=run_id, pipeline_id="a", attempt=0, rank=rank, local_rank=rank, host="h1",
        device_id=f"gpu-{rank}", device_name=None, clock_offset_ns=None,
        clock_uncertainty_ns=None, peak_memory_bytes=None,
    )  # fmt: skip
    return schema.DimRank(**(values | changes))


def attempt(number: int, hours: float, *, is_kept: bool, window_s: float) -> schema.DimAttempt:
    """An attempt of pipeline a that began at noon plus its number, and lasted so many hours."""
    began = NOON_NS + number * HOUR_NS
    return schema.DimAttempt(
        pipeline_id="a", attempt=number, began_unix_ns=began,
        ended_unix_ns=began + int(hours * HOUR_NS), is_kept=is_kept, num_ranks=1,
        num_rank_steps=1, window_s=window_s,
    )  # fmt: skip


def sample(hour: float, share: float | None, interval_s: float = 900.0, **changes):
    """A sample of gpu-0 of h1, so many hours after noon."""
    values = dict.fromkeys(c.name for c in schema.columns(schema.FactDeviceSample))
    values |= dict(
        pipeline_id="a", attempt=0, host="h1", device_id="gpu-0",
        sampled_unix_ns=NOON_NS + int(hour * HOUR_NS), interval_s=interval_s,
        utilization_share=share,
    )  # fmt: skip
    return schema.FactDeviceSample(**(values | changes))
