"""The record of contradictions: what sources told differently of one device and time.

Made while samples of one key become one; see analytics/contradictions.py. Standard library only.
"""

from __future__ import annotations

from analytics.records import column, table


@table(
    "fact_sample_conflict",
    # the time stands last, as in every table that is merged by device and time
    key=("pipeline_id", "host", "device_id", "figure", "sampled_unix_ns"),
    grain="one figure of one device at one time that two samples told differently",
    bulk=True,
)
class FactSampleConflict:
    """The least and the largest value that was told; the sample keeps the largest."""

    pipeline_id: str = column(
        "The run of the samples; empty for imported rows that belong to no run"
    )
    host: str = column("Host name")
    device_id: str = column("As in fact_device_sample")
    figure: str = column("Column of fact_device_sample that was told differently")
    sampled_unix_ns: int = column("Time of the samples, UTC", unit="ns", lower=0)
    least_value: float = column("Least value that was told, in the figure's own unit")
    largest_value: float = column("Largest value that was told, in the figure's own unit")
