-- device_sample_minute: the raw samples of each device in sums over minutes; a purge keeps these.
-- Grain: one row per device and minute with a raw sample. Units: as in fact_device_minute.
-- Reads from: device_sample_energy. A sample counts in the minute in which it was taken, sums are taken
-- in the order of time, so that they come out the same to the bit.
-- minute_unix_ns [ns]: Start of the minute, UTC
-- num_samples []: Samples in it
-- observed_s [s]: Sum of the samples' intervals
-- utilization_observed_s [s]: Sum of the intervals whose utilisation is known
-- utilized_s [s]: Sum of utilisation x interval
-- sm_active_observed_s [s]: Sum of the intervals whose SM activity is known
-- sm_active_s [s]: Sum of SM activity x interval
-- engine_active_observed_s [s]: Sum of the intervals whose engine activity is known
-- engine_active_s [s]: Sum of engine activity x interval
-- power_observed_s [s]: Sum of the intervals whose power is known
-- energy_j [J]: Sum of power x interval
-- metered_energy_j [J]: By the counter where it is plausible, else by the power; NULL without either
-- max_memory_used_bytes [bytes]: Most memory in use
-- max_memory_total_bytes [bytes]: Memory of the device
-- max_sampler_cpu_s [s]: CPU time the sampler had used by then
-- max_num_processes []: Most processes on the device
-- last_sampled_unix_ns [ns]: Latest sample in it, UTC
-- last_energy_j [J]: The counter in that sample
WITH placed AS (
    SELECT
        *,
        sampled_unix_ns // 60000000000 * 60000000000 AS minute_unix_ns,
        coalesce(observed_s, 0) AS spoken_s
    FROM device_sample_energy
)

SELECT
    pipeline_id,
    max(attempt) AS attempt,
    host,
    device_id,
    max(device_name) AS device_name,
    minute_unix_ns,
    count(*) AS num_samples,
    sum(spoken_s ORDER BY sampled_unix_ns) AS observed_s,
    coalesce(
        sum(spoken_s ORDER BY sampled_unix_ns) FILTER (WHERE utilization_share IS NOT NULL), 0
    ) AS utilization_observed_s,
    coalesce(
        sum(utilization_share * spoken_s ORDER BY sampled_unix_ns), 0
    ) AS utilized_s,
    coalesce(
        sum(spoken_s ORDER BY sampled_unix_ns) FILTER (WHERE sm_active_share IS NOT NULL), 0
    ) AS sm_active_observed_s,
    coalesce(sum(sm_active_share * spoken_s ORDER BY sampled_unix_ns), 0) AS sm_active_s,
    sum(spoken_s ORDER BY sampled_unix_ns) FILTER (
        WHERE engine_active_share IS NOT NULL
    ) AS engine_active_observed_s,
    sum(engine_active_share * spoken_s ORDER BY sampled_unix_ns) AS engine_active_s,
    coalesce(
        sum(spoken_s ORDER BY sampled_unix_ns) FILTER (WHERE power_w IS NOT NULL), 0
    ) AS power_observed_s,
    coalesce(sum(power_energy_j ORDER BY sampled_unix_ns), 0) AS energy_j,
    sum(metered_energy_j ORDER BY sampled_unix_ns) AS metered_energy_j,
    max(memory_used_bytes) AS max_memory_used_bytes,
    max(memory_total_bytes) AS max_memory_total_bytes,
    max(sampler_cpu_s) AS max_sampler_cpu_s,
    max(num_processes) AS max_num_processes,
    max(sampled_unix_ns) AS last_sampled_unix_ns,
    arg_max({'energy_j': energy_j}, sampled_unix_ns).energy_j AS last_energy_j
FROM placed
GROUP BY pipeline_id, host, device_id, minute_unix_ns;
