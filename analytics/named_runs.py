"""Which runs a name stands for: a run, all arms of a pipeline, or 'latest', the newest pipeline.

Before: an open warehouse, and what a person typed.   After: advice and comparisons of those runs.
"""

from __future__ import annotations

import duckdb

from analytics.errors import WarehouseError

LATEST = "latest"
_MOST_KNOWN = 6


def runs_named(con: duckdb.DuckDBPyConnection, name: str) -> dict[str, str]:
    """Arm -> run_id of the runs that a run_id, a pipeline_id or 'latest' names, baseline first.

    Raises WarehouseError when there is none.
    """
    found = con.execute(
        """
        WITH named AS (
            SELECT
                CASE WHEN $name = $latest
                    THEN (SELECT arg_max(pipeline_id, (started_unix_ns, pipeline_id)) FROM dim_run)
                    ELSE $name
                END AS name
        )

        SELECT dim_run.arm, dim_run.run_id
        FROM dim_run
        INNER JOIN named ON dim_run.run_id = named.name OR dim_run.pipeline_id = named.name
        ORDER BY dim_run.arm <> 'baseline', dim_run.arm, dim_run.run_id
        """,
        {"name": name, "latest": LATEST},
    ).fetchall()
    if not found:
        raise _unknown(con, name)
    return dict(found)


def no_runs() -> WarehouseError:
    """What to say where a question is asked of a warehouse that holds no run."""
    return WarehouseError(
        "The warehouse holds no run yet. 'seqscale run' makes one; 'seqscale load --runs-dir DIR' "
        "takes up what was recorded elsewhere."
    )


def _unknown(con: duckdb.DuckDBPyConnection, name: str) -> WarehouseError:
    known = con.execute(
        "SELECT pipeline_id FROM dim_run GROUP BY pipeline_id "
        "ORDER BY max(started_unix_ns) DESC, pipeline_id LIMIT ?",
        [_MOST_KNOWN],
    ).fetchall()
    if not known:
        return no_runs()
    return WarehouseError(
        f"'{name}' is no run and no pipeline of the warehouse; the newest pipelines are: "
        f"{', '.join(row[0] for row in known)}. Name one of them, one of their runs "
        f"(PIPELINE-ARM), or '{LATEST}'; 'seqscale load' takes up runs that are not loaded yet."
    )
