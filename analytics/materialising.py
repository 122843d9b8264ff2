"""Puts rows in the place of the views that go through every device sample, in a published copy.

A published copy never changes, so what a view says of it can be worked out once, by who publishes,
instead of by every reader, who would wait 1 to 14 s for each over ten million samples.
The working warehouse keeps its views, which purges read. The other views are cheap beside these, or
stand on them, or have a row for each sample.

Before: publishing.py has copied the working warehouse.   After: it renames the copy.
Price: 24 s of publishing ten million samples (bench/telemetry_load.py).
"""

from __future__ import annotations

import duckdb

from analytics.ddl import quoted

# in the order of the views' files: one may stand on another
MATERIALISED = (
    "device_sample_minute",
    "device_energy",
    "step_device",
    "device_activity",
    "device_minute",
)
MANY_SAMPLES = 200_000  # below this every view takes a fraction of a second


def has_many_samples(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the views that go through every device sample are slow enough to be materialised."""
    found = con.execute("SELECT count(*) FROM fact_device_sample").fetchall()
    return bool(found[0][0] >= MANY_SAMPLES)


def materialise(con: duckdb.DuckDBPyConnection) -> None:
    """Replace each of the costly views by a table of the same name, columns, comments and rows."""
    for name in MATERIALISED:
        comments = con.execute(
            "SELECT column_name, comment FROM duckdb_columns() "
            "WHERE database_name = current_database() AND table_name = ? AND comment IS NOT NULL",
            [name],
        ).fetchall()
        con.execute(f"CREATE TABLE materialised AS FROM {name}")
        con.execute(f"DROP VIEW {name}")
        con.execute(f"ALTER TABLE materialised RENAME TO {name}")
        for column, comment in comments:
            con.execute(f"COMMENT ON COLUMN {name}.{column} IS {quoted(comment)}")
