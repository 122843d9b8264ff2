-- device_use: what the sampler saw of each device while a pipeline trained.
-- Grain: one row per pipeline, host and device. Units: seconds, bytes, shares in 0..1.
-- Reads from: device_interval, fact_device_minute. Samples without a value do not count as 0; NULL when a
-- device never gave one. sampler_cpu_share is the sampler's own CPU time, of one core.
-- num_device_samples []: Samples taken
-- sampled_s [s]: Time that the samples cover
-- utilization_share []: Share of that time with any work, weighted by each sample's interval
-- sm_active_share []: Share of cycles with a warp on an SM, weighted by each sample's interval
-- memory_used_bytes [bytes]: Most memory in use in any sample
-- sampler_cpu_share []: CPU time of the sampler itself / sampled time
WITH parts AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        attempt,
        max(device_name) AS device_name,
        count(*) AS num_samples,
        sum(observed_s) AS observed_s,
        sum(utilization_share * observed_s) AS utilized_s,
        sum(observed_s) FILTER (WHERE utilization_share IS NOT NULL) AS utilization_observed_s,
        sum(sm_active_share * observed_s) AS sm_active_s,
        sum(observed_s) FILTER (WHERE sm_active_share IS NOT NULL) AS sm_active_observed_s,
        max(memory_used_bytes) AS memory_used_bytes,
        max(memory_total_bytes) AS memory_total_bytes,
        max(sampler_cpu_s) AS sampler_cpu_s
    FROM device_interval
    GROUP BY pipeline_id, host, device_id, attempt
    UNION ALL BY NAME
    SELECT
        pipeline_id,
        host,
        device_id,
        attempt,
        max(device_name) AS device_name,
        sum(num_samples) AS num_samples,
        sum(observed_s) AS observed_s,
        sum(utilized_s) AS utilized_s,
        sum(utilization_observed_s) AS utilization_observed_s,
        sum(sm_active_s) AS sm_active_s,
        sum(sm_active_observed_s) AS sm_active_observed_s,
        max(max_memory_used_bytes) AS memory_used_bytes,
        max(max_memory_total_bytes) AS memory_total_bytes,
        max(max_sampler_cpu_s) AS sampler_cpu_s
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id, attempt
),

-- each attempt has a sampler of its own, whose CPU time begins at 0
samplers AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        sum(sampler_cpu_s) AS sampler_cpu_s
    FROM (
        SELECT
            pipeline_id,
            host,
            device_id,
            attempt,
            max(sampler_cpu_s) AS sampler_cpu_s
        FROM parts
        GROUP BY pipeline_id, host, device_id, attempt
    )
    GROUP BY pipeline_id, host, device_id
)

SELECT
    pipeline_id,
    host,
    device_id,
    max(device_name) AS device_name,
    CAST(sum(num_samples) AS BIGINT) AS num_device_samples,
    nullif(sum(observed_s), 0) AS sampled_s,
    sum(utilized_s) / nullif(sum(utilization_observed_s), 0) AS utilization_share,
    sum(sm_active_s) / nullif(sum(sm_active_observed_s), 0) AS sm_active_share,
    max(memory_used_bytes) AS memory_used_bytes,
    max(memory_total_bytes) AS memory_total_bytes,
    any_value(samplers.sampler_cpu_s) / nullif(sum(observed_s), 0) AS sampler_cpu_share
FROM parts
LEFT JOIN samplers USING (pipeline_id, host, device_id)
GROUP BY pipeline_id, host, device_id;
