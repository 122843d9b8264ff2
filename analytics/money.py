"""The money that the receipt, the dashboard and the CSV downloads show: one function a question.

Before: the views 150 to 172 of analytics/sql/ on an open connection.   After: flows, dashboard.
Every function returns plain rows ready for JSON: days as YYYY-MM-DD, money as a float
that prints the same six places; sums are made of decimals before that. Money of two currencies is
never added: every row has one currency, NULL where no price is known.
"""

from __future__ import annotations

from typing import Any

import duckdb

from analytics.metrics import CAUSE_LABELS
from analytics.plain_rows import Row, plain_rows

# What allocated device time was used for, in fixed order after the causes of a step.
STATE_LABELS: dict[str, str] = {
    "training": "in recorded steps",
    "other_work": "at work outside of steps",
    "allocated_idle": "allocated and idle",
    "unobserved": "allocated, not observed",
}
ALL_CAUSE_LABELS: dict[str, str] = CAUSE_LABELS | STATE_LABELS
COST_DIMENSIONS = (
    "date_key", "pool_id", "team_id", "pipeline_id", "run_id", "arm", "cause", "rank", "host",
    "device_id",
)  # fmt: skip
STATE_DIMENSIONS = ("date_key", "pool_id", "team_id", "pipeline_id", "host", "device_id")
SCOPES = ("pool", "run")


def cost_by(
    con: duckdb.DuckDBPyConnection,
    *dimensions: str,
    pipeline_id: str | None = None,
    is_wasted: bool = False,
) -> list[Row]:
    """What did recorded steps cost, by any of COST_DIMENSIONS; with none: in all, by currency.

    is_wasted: only the causes of a bubble. However it is cut, the costs add up to the same total.
    Raises ValueError for another dimension.
    """
    names = ", ".join(_known(dimensions, COST_DIMENSIONS))
    picked = f"{names}, " if names else ""
    order = f"{names}, " if names else ""
    return plain_rows(
        con,
        f"""
        SELECT
            {picked}sum(seconds) AS seconds, sum(cost) AS cost, currency
        FROM cost_by_day
        WHERE ($pipeline_id IS NULL OR pipeline_id = $pipeline_id)
            AND (NOT $is_wasted OR cause <> 'busy')
        GROUP BY {picked}currency
        ORDER BY {order}currency
        """,  # noqa: S608
        {"pipeline_id": pipeline_id, "is_wasted": is_wasted},
    )


def pipeline_cost(con: duckdb.DuckDBPyConnection, pipeline_id: str | None = None) -> list[Row]:
    """What did a pipeline cost, and a million kept sequences: the view pipeline_cost."""
    return _view(con, "pipeline_cost", "pipeline_id", pipeline_id)


def attempts_redone(con: duckdb.DuckDBPyConnection, pipeline_id: str | None = None) -> list[Row]:
    """Which attempts were trained again, and what they had cost: the view attempt_redone."""
    return _view(con, "attempt_redone", "pipeline_id, attempt", pipeline_id)


def spot_saving(con: duckdb.DuckDBPyConnection, pipeline_id: str | None = None) -> list[Row]:
    """What did spot save against on-demand, after preemptions: the view spot_saving."""
    return _view(con, "spot_saving", "pipeline_id, pool_id, currency", pipeline_id)


def allocations(con: duckdb.DuckDBPyConnection, pipeline_id: str | None = None) -> list[Row]:
    """From when to when was which device paid for: the view allocation."""
    order = "began_unix_ns, pool_id, host, device_id"
    return _view(con, "allocation", order, pipeline_id)


def allocation_states(
    con: duckdb.DuckDBPyConnection, *dimensions: str, pipeline_id: str | None = None
) -> list[Row]:
    """What was allocated time used for, by any of STATE_DIMENSIONS: training, idle, unobserved.

    `share` is of the allocated time of the row's dimensions. Raises ValueError for another
    dimension.
    """
    names = _known(dimensions, STATE_DIMENSIONS)
    picked = "".join(f"{name}, " for name in names)
    partition = ", ".join([*names, "currency"])
    return plain_rows(
        con,
        f"""
        SELECT
            {picked}cause,
            sum(seconds) AS seconds,
            sum(seconds) / sum(sum(seconds)) OVER (PARTITION BY {partition}) AS share,
            CASE WHEN count(*) = count(cost) THEN sum(cost) END AS cost,
            currency
        FROM allocation_state
        WHERE $pipeline_id IS NULL OR pipeline_id = $pipeline_id
        GROUP BY {picked}cause, cause_rank, currency
        ORDER BY {picked}currency, cause_rank
        """,  # noqa: S608
        {"pipeline_id": pipeline_id},
    )


def bill_vs_estimate(con: duckdb.DuckDBPyConnection, scope: str = "pool") -> list[Row]:
    """Where does the bill differ from the estimate, and why: the view bill_vs_estimate.

    scope: pool or run. A row that cannot be compared has a `message` that says why and what to do;
    for others it is None. Raises ValueError for another scope.
    """
    _known((scope,), SCOPES)
    found = plain_rows(
        con,
        "SELECT * FROM bill_vs_estimate WHERE scope = ? "
        "ORDER BY date_key, scope_id NULLS LAST, currency",
        [scope],
    )
    currencies: dict[tuple[Any, Any], set[str]] = {}
    for row in found:
        key = (row["date_key"], row["scope_id"])
        currencies.setdefault(key, set()).add(row["currency"] or "no currency")
    for row in found:
        key = (row["date_key"], row["scope_id"])
        row["message"] = None if row["is_comparable"] else _why_not(row, currencies[key])
    return found


def bills(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """Which exports were imported, what they add up to, and what is in force of them.

    `cut_off_cost` is what rounding to six places took off `billed_cost`, over all lines.
    """
    return plain_rows(
        con,
        """
        SELECT
            bill_line.import_id,
            any_value(dim_import.source_name) AS source_name,
            any_value(dim_import.num_read) AS num_read,
            any_value(dim_import.num_rejected) AS num_rejected,
            count(*) AS num_lines,
            count(*) FILTER (WHERE is_in_force) AS num_lines_in_force,
            sum(billed_cost) AS billed_cost,
            sum(billed_cost) FILTER (WHERE is_in_force) AS billed_cost_in_force,
            sum(cut_off_cost) AS cut_off_cost,
            currency
        FROM bill_line
        LEFT JOIN dim_import ON bill_line.import_id = dim_import.import_id
        GROUP BY bill_line.import_id, currency
        ORDER BY any_value(dim_import.imported_unix_ns), bill_line.import_id, currency
        """,
    )


def devices(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """Which devices are there, sampled or not: the view dim_device."""
    return plain_rows(con, "SELECT * FROM dim_device ORDER BY host, device_id")


def _view(
    con: duckdb.DuckDBPyConnection, view: str, order: str, pipeline_id: str | None
) -> list[Row]:
    return plain_rows(
        con,
        f"SELECT * FROM {view} WHERE $pipeline_id IS NULL OR pipeline_id = $pipeline_id "  # noqa: S608
        f"ORDER BY {order}",
        {"pipeline_id": pipeline_id},
    )


def _known(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            raise ValueError(f"'{name}' is none of {', '.join(allowed)}")
    return names


def _why_not(row: Row, currencies: set[str]) -> str:
    if len(currencies) > 1:
        return (
            f"The bill and the estimate are in {' and '.join(sorted(currencies))}; money of two "
            "currencies is not compared. Price the pool in the currency of the bill: import its "
            "allocations with device_hour_cost in that currency, or give the run --currency and "
            "--rates."
        )
    return (
        "Some hours of the estimate have no price. Import the pool's allocations with "
        "device_hour_cost and currency, or run with --instance."
    )
