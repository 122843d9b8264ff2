"""The records of telemetry: what devices, ranks and collectives tell, ours or imported.

Missing is NULL, never 0. `pipeline_id` is the run that a row belongs to, and empty for a row that
came from a log of its own; such rows are told apart by host and device alone, so that the same
log loaded twice, in pieces or in another order gives the same rows.
Standard library only.
"""

from __future__ import annotations

from analytics.records import column, table

_NO_RUN = "empty for imported rows that belong to no run"


@table("dim_import", key=("import_id",), grain="one imported file or folder")
class DimImport:
    """What was imported, and what became of each of its rows: read = loaded + rejected."""

    import_id: str = column("First 16 hex digits of the SHA-256 of what was read")
    source_kind: str = column("Form of the source, such as nvidia_smi_csv or kineto_trace")
    source_name: str = column("Name of the file or folder, without its place")
    source_sha256: str = column("SHA-256 of the bytes that were read")
    num_bytes: int = column("Bytes read", unit="bytes", lower=0)
    num_files: int = column("Files read", lower=0)
    num_read: int = column("Rows, lines or events read, header and blank lines left out", lower=0)
    num_loaded: int = column("Of these, used", lower=0)
    num_rejected: int = column("Of these, refused; each is in fact_import_reject", lower=0)
    num_records: int = column("Rows that the warehouse got from them", lower=0)
    num_conflicts: int = column(
        "Figures that its rows tell differently of one device and time, see fact_sample_conflict",
        lower=0,
    )
    host: str | None = column("Host the rows were taken on; NULL when the rows tell it themselves")
    time_zone: str | None = column("Zone that local times were read in; NULL when none was needed")
    clock_offset_ns: int | None = column(
        "How far the source's clock was ahead of UTC; taken off every time", unit="ns"
    )
    clock_uncertainty_ns: int | None = column("Error of clock_offset_ns", unit="ns", lower=0)
    collector: str | None = column("Program and version that took the samples, when told")
    first_unix_ns: int | None = column("Earliest time in it, UTC", unit="ns")
    last_unix_ns: int | None = column("Latest time in it, UTC", unit="ns")
    imported_unix_ns: int = column("When it was imported, UTC", unit="ns", lower=0)
    pipeline_id: str = column(f"The run it was imported for; {_NO_RUN}")
    options_text: str | None = column(
        "Options that change what its rows mean, as 'name=value', sorted; NULL without any",
        added=True,
    )
    clock_skew_ppm: float | None = column(
        "How much faster the source's clock ran, 1e-6 s in a second; told, taken off no time; NULL "
        "when untold or less than its error",
        unit="ppm",
        added=True,
    )


@table(
    "fact_import_reject",
    key=("import_id", "file_name", "line", "reason"),
    grain="one row of an import that was refused, and why",
)
class FactImportReject:
    """A row that was read and not used."""

    import_id: str = column("The import")
    file_name: str = column("File within the import")
    line: int = column("Line, record or event in the file, from 1", lower=0)
    reason: str = column("Why it was refused, see docs/telemetry.md")
    text: str = column("The row as it stood, its first 200 characters")


@table(
    "fact_device_sample",
    key=("pipeline_id", "host", "device_id", "sampled_unix_ns"),
    grain="one sample of one device",
    bulk=True,
)
class FactDeviceSample:
    """What a device was doing at a moment. Missing is NULL, never 0."""

    pipeline_id: str = column(f"The run during which it was taken; {_NO_RUN}")
    attempt: int = column("Start of the training, from 0", lower=0)
    host: str = column("Host name")
    device_id: str = column(
        "'cpu', a GPU's UUID, its index as 'gpu-N' when no UUID is told, or UUID/gi/ci for a slice"
    )
    device_name: str | None = column("Model of the device; NULL when untold")
    sampled_unix_ns: int = column("When, UTC", unit="ns", lower=0)
    interval_s: float | None = column(
        "Time since the sample before; NULL when the source does not tell it", unit="s", lower=0
    )
    utilization_share: float | None = column(
        "Share of the interval with any work", lower=0, upper=1
    )
    memory_used_bytes: int | None = column("Memory in use", unit="bytes", lower=0)
    memory_total_bytes: int | None = column("Memory of the device", unit="bytes", lower=0)
    power_w: float | None = column("Power drawn", unit="W", lower=0)
    sampler_cpu_s: float | None = column(
        "CPU time the sampler itself has used so far; NULL when untold", unit="s", lower=0
    )
    gpu_instance_id: int | None = column("GPU instance of a MIG slice", lower=0, added=True)
    compute_instance_id: int | None = column("Compute instance of a MIG slice", lower=0, added=True)
    memory_busy_share: float | None = column(
        "Share of the interval in which memory was read or written", lower=0, upper=1, added=True
    )
    engine_active_share: float | None = column(
        "Share of cycles with the graphics or compute engine active", lower=0, upper=1, added=True
    )
    sm_active_share: float | None = column(
        "Share of cycles with a warp on an SM, mean over SMs", lower=0, upper=1, added=True
    )
    sm_occupancy_share: float | None = column(
        "Resident warps over the most there can be", lower=0, upper=1, added=True
    )
    tensor_active_share: float | None = column(
        "Share of cycles with the tensor pipe active", lower=0, upper=1, added=True
    )
    dram_active_share: float | None = column(
        "Share of cycles with the memory interface active", lower=0, upper=1, added=True
    )
    power_limit_w: float | None = column("Power limit", unit="W", lower=0, added=True)
    energy_j: float | None = column(
        "Energy counter since the driver was loaded", unit="J", lower=0, added=True
    )
    temperature_c: float | None = column("Temperature of the chip", unit="C", added=True)
    sm_clock_mhz: float | None = column("Clock of the SMs", unit="MHz", lower=0, added=True)
    memory_clock_mhz: float | None = column("Clock of the memory", unit="MHz", lower=0, added=True)
    pcie_sent_bytes_per_s: float | None = column(
        "Sent over PCIe", unit="bytes/s", lower=0, added=True
    )
    pcie_received_bytes_per_s: float | None = column(
        "Received over PCIe", unit="bytes/s", lower=0, added=True
    )
    nvlink_sent_bytes_per_s: float | None = column(
        "Sent over NVLink", unit="bytes/s", lower=0, added=True
    )
    nvlink_received_bytes_per_s: float | None = column(
        "Received over NVLink", unit="bytes/s", lower=0, added=True
    )
    network_sent_bytes_per_s: float | None = column(
        "Sent over the host's network, loopback left out", unit="bytes/s", lower=0, added=True
    )
    network_received_bytes_per_s: float | None = column(
        "Received over the host's network, loopback left out", unit="bytes/s", lower=0, added=True
    )
    num_processes: int | None = column("Processes on the device", lower=0, added=True)
    source_kind: str | None = column("What took it; NULL for samples of before", added=True)
    collector: str | None = column("Program and version that took it, when told", added=True)
    ingested_unix_ns: int | None = column(
        "When it came to us, UTC; NULL for samples of before", unit="ns", lower=0, added=True
    )


@table(
    "fact_device_minute",
    key=("pipeline_id", "host", "device_id", "minute_unix_ns"),
    grain="one device in one minute, of samples that were purged",
    bulk=True,
)
class FactDeviceMinute:
    """Sums over the samples of a minute, so that no total changes when the samples go."""

    pipeline_id: str = column(f"The run; {_NO_RUN}")
    attempt: int = column("Start of the training, from 0", lower=0)
    host: str = column("Host name")
    device_id: str = column("As in fact_device_sample")
    device_name: str | None = column("Model of the device; NULL when untold")
    minute_unix_ns: int = column("Start of the minute, UTC", unit="ns", lower=0)
    num_samples: int = column("Samples in it", lower=0)
    observed_s: float = column("Sum of the samples' intervals", unit="s", lower=0)
    utilization_observed_s: float = column(
        "Sum of the intervals whose utilisation is known", unit="s", lower=0
    )
    utilized_s: float = column("Sum of utilisation x interval", unit="s", lower=0)
    sm_active_observed_s: float = column(
        "Sum of the intervals whose SM activity is known", unit="s", lower=0
    )
    sm_active_s: float = column("Sum of SM activity x interval", unit="s", lower=0)
    power_observed_s: float = column("Sum of the intervals whose power is known", unit="s", lower=0)
    energy_j: float = column("Sum of power x interval", unit="J", lower=0)
    max_memory_used_bytes: int | None = column("Most memory in use", unit="bytes", lower=0)
    max_memory_total_bytes: int | None = column("Memory of the device", unit="bytes", lower=0)
    max_sampler_cpu_s: float | None = column(
        "CPU time the sampler had used by then", unit="s", lower=0
    )
    engine_active_observed_s: float | None = column(
        "Sum of the intervals whose engine activity is known; NULL without any",
        unit="s",
        lower=0,
        added=True,
    )
    engine_active_s: float | None = column(
        "Sum of engine activity x interval; NULL without any", unit="s", lower=0, added=True
    )
    metered_energy_j: float | None = column(
        "Energy by the counter where it is plausible, else power x interval; NULL without either",
        unit="J",
        lower=0,
        added=True,
    )
    max_num_processes: int | None = column("Most processes on the device", lower=0, added=True)
    last_sampled_unix_ns: int | None = column(
        "Latest sample in it, UTC", unit="ns", lower=0, added=True
    )
    last_energy_j: float | None = column(
        "Energy counter in that sample; NULL when untold", unit="J", lower=0, added=True
    )


@table(
    "dim_device_retention",
    key=("pipeline_id", "host", "device_id"),
    grain="one device whose samples were purged and whose source tells no intervals",
)
class DimDeviceRetention:
    """What the intervals of purged samples were made with, so that no total changes later."""

    pipeline_id: str = column(f"The run; {_NO_RUN}")
    host: str = column("Host name")
    device_id: str = column("As in fact_device_sample")
    gap_limit_s: float = column(
        "Longest gap to the sample before that counts as observed", unit="s", lower=0
    )


@table("dim_rank", key=("run_id", "rank"), grain="one rank of one run")
class DimRank:
    """Where a rank ran, and how far its clock was from rank 0's."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    rank: int = column("Rank", lower=0)
    local_rank: int | None = column("Rank within its host; NULL when untold", lower=0)
    host: str = column("Host name")
    device_id: str | None = column("Its device, as in fact_device_sample; NULL when untold")
    device_name: str | None = column("Model of its device; NULL when untold")
    clock_offset_ns: int | None = column(
        "Its clock less rank 0's at the same moment; NULL when untold", unit="ns"
    )
    clock_uncertainty_ns: int | None = column("Error of clock_offset_ns", unit="ns", lower=0)
    peak_memory_bytes: int | None = column(
        "Most device memory it held; NULL when untold", unit="bytes", lower=0
    )


@table(
    "dim_attempt", key=("pipeline_id", "attempt"), grain="one start of the training of a pipeline"
)
class DimAttempt:
    """When an attempt began and ended, and what it recorded; also of those that were not kept."""

    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    began_unix_ns: int | None = column("Start of its first record, UTC", unit="ns", lower=0)
    ended_unix_ns: int | None = column("End of its last record, UTC", unit="ns", lower=0)
    is_kept: bool = column("Whether its steps are the ones in fact_step")
    num_ranks: int = column("Ranks that recorded a step", lower=0)
    num_rank_steps: int = column("Recorded steps, counted once per rank", lower=0)
    window_s: float = column("All its recorded rank time", unit="s", lower=0)


@table(
    "fact_collective",
    key=("run_id", "rank", "step", "collective"),
    grain="one collective of one step on one rank",
)
class FactCollective:
    """When a rank arrived at a collective, when the last one did, and what that cost it.

    exposed_s = straggler_wait_s + wire_s where the arrivals of all ranks are known.
    """

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    rank: int = column("Rank", lower=0)
    step: int = column("Step, from 0", lower=0)
    collective: int = column("Its place in the step, the same on every rank, from 0", lower=0)
    kind: str = column("ids, rows, gradients, dense or other; or the operation, as all_reduce")
    label: str = column("Tells collectives of one kind in one step apart; may be empty")
    process_group: str | None = column("Process group or stream it ran on; NULL when untold")
    arrived_unix_ns: int = column("When this rank was ready for it, UTC", unit="ns", lower=0)
    last_arrived_unix_ns: int | None = column(
        "When the last rank was, on this rank's clock; NULL when not every arrival is known",
        unit="ns",
        lower=0,
    )
    began_unix_ns: int = column("When this rank's wait or kernel began, UTC", unit="ns", lower=0)
    duration_s: float | None = column(
        "From there to its end; NULL when its end was not recorded", unit="s", lower=0
    )
    exposed_s: float | None = column("Of it, outside compute; NULL when untold", unit="s", lower=0)
    straggler_wait_s: float | None = column(
        "Of exposed_s, before the last rank arrived; NULL when arrivals are not known",
        unit="s",
        lower=0,
    )
    wire_s: float | None = column("Of exposed_s, after that; NULL alike", unit="s", lower=0)
    last_rank: int | None = column(
        "The rank that arrived last; NULL when arrivals are not known", lower=0
    )
    sent_bytes: int | None = column(
        "Bytes of its input on this rank; NULL when untold", unit="bytes", lower=0
    )


@table(
    "fact_span",
    key=("pipeline_id", "attempt", "rank", "began_unix_ns", "span_kind"),
    grain="one stretch of a job's time outside its steps, on one rank or of the job",
)
class FactSpan:
    """What a job did besides training steps: start-up, evaluation, checkpoints, disruption; and
    reporting: loading, publishing and exporting once it is over, of which no share is told.
    """

    pipeline_id: str = column("The pipeline")
    attempt: int = column("Start of the training, from 0", lower=0)
    run_id: str | None = column("The run; NULL for what all arms share")
    rank: int = column("Rank; 0 also for what the job as a whole did", lower=0)
    span_kind: str = column(
        "start_up, data, checkpoint, evaluation, registration, disruption, reporting or other"
    )
    label: str = column("What exactly, in words")
    began_unix_ns: int = column("Start, UTC", unit="ns", lower=0)
    duration_s: float = column("Length", unit="s", lower=0)


@table(
    "fact_kernel_family",
    key=("run_id", "rank", "kernel_family", "kernel_name"),
    grain="one kernel of one rank's trace",
)
class FactKernelFamily:
    """How much device time each kernel took in a trace."""

    run_id: str = column("The run")
    pipeline_id: str = column("The pipeline")
    rank: int = column("Rank", lower=0)
    kernel_family: str = column(
        "communication, memory, gemm, attention, embedding, normalisation, optimizer, elementwise, "
        "reduction, sort or other"
    )
    kernel_name: str = column("Name of the kernel, or 'others' for the many small ones")
    num_kernels: int = column("How often it ran", lower=0)
    total_s: float = column("Sum of its durations", unit="s", lower=0)
    min_s: float = column("Shortest", unit="s", lower=0)
    max_s: float = column("Longest", unit="s", lower=0)
