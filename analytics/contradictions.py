"""Keeps what samples of one device and time tell differently, when they become one row.

Of each such figure the least and the largest told value are kept. Both are the same in whatever
order samples come, however often and in whatever pieces: an arriving value that differs from the
kept one is noted with it, and of all values that were ever told the least and the largest are among
those. So the table is part of what any order of loading gives alike.

Before: landing.py merges the rows of one import, import_loading.py those of several.
After: fact_sample_conflict.
Price: one pass over the samples whose key comes twice; rows where something is contradicted.
"""

from __future__ import annotations

from analytics.records import columns, table_key, table_name
from analytics.schema import FactDeviceSample, FactSampleConflict

SAMPLES = table_name(FactDeviceSample)
CONFLICTS = table_name(FactSampleConflict)
# Numbers that tell of a row's way to us, not of the device: no contradiction when they differ.
_OF_THE_WAY = ("attempt", "ingested_unix_ns")
_NUMBERS = ("BIGINT", "DOUBLE")


def contradictions_query(source: str) -> str:
    """SQL for the rows of fact_sample_conflict that samples of one key in `source` make.

    source: a table or a query in brackets, with the columns of fact_device_sample.
    """
    key = ", ".join(table_key(FactDeviceSample))
    apart = {*table_key(FactDeviceSample), *_OF_THE_WAY}
    figures = [
        c.name for c in columns(FactDeviceSample) if c.sql_type in _NUMBERS and c.name not in apart
    ]
    bounds = ", ".join(f"min({f}) AS least_{f}, max({f}) AS largest_{f}" for f in figures)
    differs = " OR ".join(f"least_{f} < largest_{f}" for f in figures)
    rows = " UNION ALL ".join(
        f"SELECT {key}, '{f}' AS figure, CAST(least_{f} AS DOUBLE) AS least_value, "  # noqa: S608
        f"CAST(largest_{f} AS DOUBLE) AS largest_value FROM told WHERE least_{f} < largest_{f}"
        for f in figures
    )
    return (
        f"WITH told AS MATERIALIZED (SELECT {key}, {bounds} FROM {source} "  # noqa: S608
        f"GROUP BY {key} HAVING count(*) > 1 AND ({differs})) {rows}"
    )
