"""Every record of the project, defined once.

A table of the warehouse is one frozen dataclass here, in analytics/schema_profile.py for what a
profile says, schema_steps.py for steps, schema_telemetry.py for what devices, ranks and collectives
tell, schema_pools.py for allocations and bills, and schema_trials.py for what a run tries out; each
field carries its doc, unit and bounds (analytics/records.py).
From it come the journal's keys, the DDL, the reader's types, column comments, the CSV header and
the dashboard's labels. Standard library only, so that a rank can write records without DuckDB.

Identifiers: `pipeline_id` is one start of `seqscale run`; `run_id` is one arm of it (an MLflow
child run); `attempt` counts the starts of its training, and the loader keeps the last one.
Columns are added, never renamed or given a new meaning; a record of before has NULL there.
"""

from __future__ import annotations

from analytics.reasons import EXPIRED, FORGOTTEN
from analytics.records import (
    TABLES,
    Column,
    Scalar,
    column,
    columns,
    from_mapping,
    table,
    table_key,
    table_name,
    to_mapping,
)
from analytics.schema_conflicts import FactSampleConflict
from analytics.schema_pools import DimPool, DimSetting, DimTeam, FactCost, FactPoolEvent
from analytics.schema_profile import (
    FactBatchProfile,
    FactLengthBin,
    FactMemoryForecast,
    FactProfile,
    FactProfileAdvice,
    FactStragglerForecast,
)
from analytics.schema_steps import FactStep
from analytics.schema_telemetry import (
    DimAttempt,
    DimDeviceRetention,
    DimImport,
    DimRank,
    FactCollective,
    FactDeviceMinute,
    FactDeviceSample,
    FactImportReject,
    FactKernelFamily,
    FactSpan,
)
from analytics.schema_trials import FactCostFit, FactScheduleTrial, FactTransportTrial

__all__ = [
    "TABLES",
    "Column",
    "DimAttempt",
    "DimDataset",
    "DimDeviceRetention",
    "DimImport",
    "DimModel",
    "DimPool",
    "DimPrice",
    "DimRank",
    "DimRun",
    "DimSetting",
    "DimTeam",
    "FactBatchProfile",
    "FactCollective",
    "FactCost",
    "FactCostFit",
    "FactDeviceMinute",
    "FactDeviceSample",
    "FactDroppedRows",
    "FactEvaluation",
    "FactImportReject",
    "FactKernelFamily",
    "FactLengthBin",
    "FactMemoryForecast",
    "FactPoolEvent",
    "FactProfile",
    "FactProfileAdvice",
    "FactSampleConflict",
    "FactScheduleTrial",
    "FactSpan",
    "FactStep",
    "FactStragglerForecast",
    "FactTransportTrial",
    "Scalar",
    "column",
    "columns",
    "from_mapping",
    "table",
    "table_key",
    "table_name",
    "to_mapping",
]


@table("dim_dataset", key=("dataset_id",), grain="one prepared set of sequences")
class DimDataset:
    """Where a set of sequences came from and how large it is."""

    dataset_id: str = column("First 16 hex digits of the sequence store's content hash")
    dataset_name: str = column("Name of the source: a catalogue name or the file's name")
    source_sha256: str = column("SHA-256 of the file that was read")
    terms: str = column("Terms of use of the data, or 'unknown'")
    num_rows_read: int = column(
        "Rows read from the source, without those of people erased from the set since", lower=0
    )
    num_rows_kept: int = column("Rows kept; read = kept + dropped by reason", lower=0)
    num_users: int = column("Sequences, one per user", lower=0)
    num_items: int = column("Distinct items", lower=0)
    min_length: int | None = column(
        "Length that at least the minimum group of users do not exceed; NULL for fewer users",
        unit="events",
        lower=0,
    )
    median_length: float | None = column(
        "Median history; NULL for too few users", unit="events", lower=0
    )
    max_length: int | None = column(
        "Length that at least the minimum group of users reach; NULL for fewer users",
        unit="events",
        lower=0,
    )
    tied_share: float = column(
        "Share of events whose user has another at that time", lower=0, upper=1
    )
    num_training_events: int | None = column("Events to train on", lower=0, added=True)
    num_validation_events: int | None = column("Events to validate on", lower=0, added=True)
    num_test_events: int | None = column("Events to test on", lower=0, added=True)
    has_times: bool | None = column("Whether the source has times", added=True)
    is_pseudonymised: bool | None = column(
        "Whether user ids were replaced by pseudonyms", added=True
    )
    min_group_users: int | None = column(
        "Users that must stand behind a published length", lower=1, added=True
    )


@table("fact_dropped_rows", key=("dataset_id", "reason"), grain="one reason for dropping rows")
class FactDroppedRows:
    """How many rows of a source were not kept, by reason."""

    dataset_id: str = column("The prepared set")
    reason: str = column(
        "Why the rows were dropped, see docs/definitions.md; people erased since are in no number"
    )
    num_rows: int = column("Rows dropped for this reason", lower=0)


@table("fact_erasure", key=("erasure_id",), grain="one erasure from one version of a prepared set")
class FactErasure:
    """That rows were erased, and from which version; not whose."""

    erasure_id: str = column("Hash of the reason, the version and its place")
    erased_unix_ns: int = column("When, UTC", unit="ns", lower=0)
    reason: str = column(f"{FORGOTTEN} (a person asked) or {EXPIRED} (retention)")
    dataset_id: str = column("The version that held the rows; it is no longer kept")
    new_dataset_id: str | None = column("The version after it; NULL when too little was left")
    num_rows: int | None = column(
        "Rows erased; all of the version when too little was left; NULL for fewer users than the "
        "minimum group, whose number of rows is not told",
        lower=0,
    )
    num_users: int = column("Users erased with all their rows", lower=0)


@table(
    "dim_price", key=("pipeline_id", "instance_type"), grain="one instance priced for a pipeline"
)
class DimPrice:
    """What a named instance costs, from which list and of which day."""

    pipeline_id: str = column("The pipeline the price is applied to; empty outside a run")
    instance_type: str = column("The cloud's name of the instance")
    cloud: str = column("aws, azure or own")
    region: str = column("Region of the price")
    device_name: str = column("Model of its accelerator")
    num_devices: int = column("Accelerators in one instance", lower=1)
    device_hour_cost: float = column("Price of one accelerator for one hour", lower=0)
    currency: str = column("ISO 4217 code of device_hour_cost")
    list_device_hour_cost: float = column("The same in the currency of the price list", lower=0)
    list_currency: str = column("ISO 4217 code of the price list")
    price_date: str = column("Day of the price list, YYYY-MM-DD")
    source: str = column("Where the price comes from")


@table("dim_run", key=("run_id",), grain="one arm of one pipeline")
class DimRun:
    """One training run: what was trained, how, on how many ranks, at which price."""

    run_id: str = column("One arm of a pipeline; an MLflow child run")
    pipeline_id: str = column("The pipeline; the MLflow parent run")
    attempt: int = column("Start of the training that was kept, from 0", lower=0)
    arm: str = column("Name of the arm: baseline or balanced; trace for a run known by its trace")
    placement: str | None = column("How sequences are placed on ranks; NULL when untold")
    schedule: str | None = column("Order of exchange and compute; NULL when untold")
    dataset_id: str | None = column("The prepared set that was trained on; NULL when untold")
    config_sha256: str = column("Hash of the run's configuration")
    seed: int | None = column("Seed of plan, negatives and dropout; NULL when untold", lower=0)
    world_size: int = column("Ranks", lower=1)
    device: str = column("Device type of the ranks: cpu or cuda")
    host: str = column("Host name of rank 0")
    num_steps: int = column("Global batches in the plan", lower=0)
    num_epochs: int | None = column("Passes over the sequences; NULL when untold", lower=0)
    global_batch_sequences: int | None = column(
        "Sequences in a full global batch; NULL when untold", lower=1
    )
    predicted_straggler_share: float | None = column(
        "Straggler share by cost model over the plan; NULL for one rank", lower=0, upper=1
    )
    bound_straggler_share: float | None = column(
        "Least any whole-sequence placement of these batches can reach", lower=0, upper=1
    )
    collision_share: float | None = column(
        "Share of a batch's distinct rows that the batch before also touches; first 20 batches",
        lower=0,
        upper=1,
    )
    instance_type: str | None = column("Instance whose price is applied; NULL without a price")
    device_hour_cost: float | None = column(
        "Price of one device-hour of that instance; NULL without a price", lower=0
    )
    currency: str | None = column("ISO 4217 code of every cost of this run; NULL without a price")
    started_unix_ns: int = column("Start, UTC", unit="ns", lower=0)
    seqscale_version: str = column("Version of seqscale that ran")
    transport: str | None = column(
        "How tensors travelled between ranks, a link named when it was emulated", added=True
    )
    precision: str | None = column("Of the dense part's products: fp32 or bf16", added=True)
    micro_batches: int | None = column(
        "Parts of a rank's batch inside one step", lower=1, added=True
    )
    table_optimizer: str | None = column("Optimiser of the embedding tables", added=True)
    scaling_sha256: str | None = column(
        "Hash of the configuration but for ranks, global batch and seed; NULL when untold",
        added=True,
    )


@table(
    "fact_evaluation", key=("run_id", "split", "ranker"), grain="one ranker on one split of one run"
)
class FactEvaluation:
    """Quality by full ranking over all items, every user once."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    split: str = column("validation or test")
    ranker: str = column("model or popularity")
    num_users: int = column("Users evaluated", lower=0)
    num_cold_targets: int = column("Targets never seen in training; scored as misses", lower=0)
    hr_at_10: float = column("Share of users whose target is among the first ten", lower=0, upper=1)
    ndcg_at_10: float = column(
        "Mean of 1/log2(1+rank) for ranks up to ten, else 0", lower=0, upper=1
    )
    mrr: float = column("Mean of 1/rank over all ranks", lower=0, upper=1)
    parameters_sha256: str = column("Hash of the parameters that were evaluated")


@table("dim_model", key=("run_id",), grain="one run in MLflow, and its registered version if any")
class DimModel:
    """Where a run stands in MLflow."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    mlflow_run_id: str = column("MLflow's id of this arm's run")
    mlflow_parent_run_id: str = column("MLflow's id of the pipeline's run")
    model_name: str | None = column("Registered model, NULL when this arm was not registered")
    model_version: str | None = column("Registered version")
    model_alias: str | None = column("Alias given to that version")
