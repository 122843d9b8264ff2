"""The record of one training step on one rank.

Standard library only.
"""

from __future__ import annotations

from analytics.records import column, table


@table("fact_step", key=("run_id", "rank", "step"), grain="one training step on one rank")
class FactStep:
    """Where the time of one step on one rank went; the parts sum to the window.

    window_s = busy_s + straggler_wait_s + exposed_comm_s + exposed_copy_s + data_wait_s
    + host_wait_s + kernel_gap_s + unattributed_s, NULL counting 0.
    """

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    rank: int = column("Rank", lower=0)
    step: int = column("Global batch of the plan, from 0", lower=0)
    epoch: int | None = column("Epoch, from 0; NULL when untold", lower=0)
    block: int = column("Block of steps that ran without changing the arm, from 0", lower=0)
    started_unix_ns: int = column("Start of the window, UTC", unit="ns", lower=0)
    window_s: float = column("Length of the window; windows tile a block", unit="s", lower=0)
    busy_s: float = column("The rank's own work", unit="s", lower=0)
    straggler_wait_s: float | None = column(
        "Blocked in a collective before the last rank arrived at it", unit="s", lower=0
    )
    exposed_comm_s: float | None = column("Blocked in a collective after that", unit="s", lower=0)
    exposed_copy_s: float = column("Blocked in a copy", unit="s", lower=0)
    data_wait_s: float = column("Waited for the next batch", unit="s", lower=0)
    host_wait_s: float | None = column(
        "Device idle before a late launch; NULL on CPU", unit="s", lower=0
    )
    kernel_gap_s: float | None = column(
        "Short gaps between kernels; NULL on CPU", unit="s", lower=0
    )
    unattributed_s: float = column("What no other part explains", unit="s", lower=0)
    exposed_comm_total_s: float = column(
        "All blocked communication: straggler wait plus wire", unit="s", lower=0
    )
    comm_s: float = column("Time in which a collective was in flight", unit="s", lower=0)
    overlapped_comm_s: float = column("The part of comm_s under compute", unit="s", lower=0)
    cpu_s: float | None = column(
        "CPU time of the rank's own work, its thread's too; NULL when untold", unit="s", lower=0
    )
    predicted_cost_s: float | None = column(
        "Cost of the rank's sequences by cost model; NULL without one", unit="s", lower=0
    )
    num_sequences: int | None = column("Sequences on this rank; NULL when untold", lower=0)
    num_tokens: int | None = column("Events on this rank; NULL when untold", lower=0)
    num_targets: int | None = column(
        "Positions with a target on this rank; NULL when untold", lower=0
    )
    loss_sum: float | None = column("Sum of the losses of this rank's targets; NULL when untold")
    num_rows: int | None = column(
        "Distinct embedding rows this rank needed; NULL when untold", lower=0
    )
    num_rows_ahead: int | None = column(
        "Of these, fetched during the step before; NULL when untold", lower=0
    )
    sent_bytes: int | None = column(
        "Bytes this rank sent to others; NULL when untold", unit="bytes", lower=0
    )
    exposed_ids_s: float | None = column(
        "Of exposed_comm_total_s: waited to learn which rows are asked of whom",
        unit="s",
        lower=0,
        added=True,
    )
    exposed_rows_s: float | None = column(
        "Of exposed_comm_total_s: waited for embedding rows", unit="s", lower=0, added=True
    )
    exposed_gradients_s: float | None = column(
        "Of exposed_comm_total_s: waited for embedding gradients", unit="s", lower=0, added=True
    )
    exposed_dense_s: float | None = column(
        "Of exposed_comm_total_s: waited for the dense gradients", unit="s", lower=0, added=True
    )
    recorder_cpu_s: float | None = column(
        "CPU time of the marks of this step, without writing its records afterwards",
        unit="s",
        lower=0,
        added=True,
    )
    was_skipped: bool | None = column(
        "Whether the step was left out because its gradient was not finite; its targets and loss "
        "then count 0",
        added=True,
    )
    model_flops: float | None = column(
        "Floating-point operations of the rank's real lengths, forward and backward: causal mask "
        "as half, backward twice the forward, nothing recomputed, embeddings left out",
        lower=0,
        added=True,
    )
    recording_block_cpu_s: float | None = column(
        "The step's share of the CPU time of aligning and writing its block, which comes on top of "
        "recorder_cpu_s; NULL when untold",
        unit="s",
        lower=0,
        added=True,
    )
    rank_gradient_norm_sq: float | None = column(
        "Squared norm of the mean dense gradient of this rank's targets; NULL when not measured",
        lower=0,
        added=True,
    )
    gradient_norm_sq: float | None = column(
        "Squared norm of the mean dense gradient of all ranks' targets; NULL when not measured",
        lower=0,
        added=True,
    )
