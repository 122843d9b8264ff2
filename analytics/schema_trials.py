"""The records of what a run tried out while it trained, and what it went on with.

Standard library only.
"""

from __future__ import annotations

from analytics.records import column, table


@table(
    "fact_schedule_trial",
    key=("run_id", "step", "schedule"),
    grain="one schedule tried by a run that was to pick one",
)
class FactScheduleTrial:
    """How long a run's steps took under each schedule, and which it went on with."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    step: int = column("Step before which it was decided", lower=0)
    schedule: str = column("Order of exchange and compute that was tried")
    num_steps: int = column("Steps it was timed over; 0 where it cannot be used", lower=0)
    step_s: float | None = column(
        "Median over its steps of the slowest rank's time", unit="s", lower=0
    )
    is_chosen: bool = column("Whether the run went on with it")
    reason: str = column("Why it was or was not taken")


@table("fact_cost_fit", key=("run_id", "step"), grain="one refit of a run's cost model")
class FactCostFit:
    """A cost model fitted to a run's own step times while it ran."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    step: int = column("Step after which it was fitted", lower=0)
    num_measured: int = column("Rank-steps it was fitted to", lower=0)
    t_step_s: float = column("Time of a step whatever it holds", unit="s", lower=0)
    c0_s: float = column("Time of a sequence", unit="s", lower=0)
    a_s: float = column("Time of an event", unit="s", lower=0)
    b_s: float = column("Time of a pair of events", unit="s", lower=0)
    residual_ratio: float = column("Mean |measured - fitted| over mean measured", lower=0)
    is_taken: bool = column("Whether the coming batches were placed anew by it")
    reason: str = column("Why it was or was not taken")


@table(
    "fact_transport_trial",
    key=("run_id", "transport"),
    grain="one transport tried at the start of a run",
)
class FactTransportTrial:
    """What a transport takes from compute that runs beside it, measured at the start of a run."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    transport: str = column("gloo, nccl or host_staged")
    is_available: bool = column("Whether it can be used here")
    is_chosen: bool = column("Whether the run took it")
    alone_s: float | None = column("A matrix product alone", unit="s", lower=0)
    beside_s: float | None = column("The same beside the transport", unit="s", lower=0)
    slowdown_share: float | None = column(
        "Share of the product's rate that is lost beside the transport", lower=0, upper=1
    )
    bytes_per_s: float | None = column(
        "What it carried between the ranks meanwhile", unit="bytes/s", lower=0
    )
    reason: str = column("Why it was taken, or not, or cannot be")
