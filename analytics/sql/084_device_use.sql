-- device_use: what the samplers saw of each device while a pipeline trained and was evaluated.
-- Grain: one row per pipeline, host and device. Units: seconds, bytes, shares in 0..1.
-- Reads from: device_interval, fact_device_sample, fact_device_minute. Samples without a value do not count as 0; NULL when a
-- device never gave one. sampler_cpu_share is the sampler's own CPU time, of one core.
-- num_device_samples []: Samples taken
-- sampled_s [s]: Time that the samples cover
-- utilization_share []: Share of that time with any work, weighted by each sample's interval
-- sm_active_share []: Share of cycles with a warp on an SM, weighted by each sample's interval
-- memory_used_bytes [bytes]: Most memory in use in any sample
-- sampler_cpu_share []: CPU time of the samplers themselves / sampled time
WITH parts AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        max(device_name) AS device_name,
        count(*) AS num_samples,
        sum(observed_s) AS observed_s,
        sum(utilization_share * observed_s) AS utilized_s,
        sum(observed_s) FILTER (WHERE utilization_share IS NOT NULL) AS utilization_observed_s,
        sum(sm_active_share * observed_s) AS sm_active_s,
        sum(observed_s) FILTER (WHERE sm_active_share IS NOT NULL) AS sm_active_observed_s,
        max(memory_used_bytes) AS memory_used_bytes,
        max(memory_total_bytes) AS memory_total_bytes
    FROM device_interval
    GROUP BY pipeline_id, host, device_id
    UNION ALL BY NAME
    SELECT
        pipeline_id,
        host,
        device_id,
        max(device_name) AS device_name,
        sum(num_samples) AS num_samples,
        sum(observed_s) AS observed_s,
        sum(utilized_s) AS utilized_s,
        sum(utilization_observed_s) AS utilization_observed_s,
        sum(sm_active_s) AS sm_active_s,
        sum(sm_active_observed_s) AS sm_active_observed_s,
        max(max_memory_used_bytes) AS memory_used_bytes,
        max(max_memory_total_bytes) AS memory_total_bytes
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id
),

-- a sampler counts its CPU time from 0: where it falls, as from training to evaluation, another began
watching AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        cpu_s,
        lag(cpu_s) OVER (
            PARTITION BY pipeline_id, host, device_id, attempt ORDER BY minute
        ) AS before_s
    FROM (
        SELECT
            pipeline_id,
            host,
            device_id,
            attempt,
            sampled_unix_ns // 60000000000 AS minute,
            max(sampler_cpu_s) AS cpu_s
        FROM fact_device_sample
        WHERE sampler_cpu_s IS NOT NULL
        GROUP BY pipeline_id, host, device_id, attempt, sampled_unix_ns // 60000000000
        UNION ALL
        SELECT
            pipeline_id,
            host,
            device_id,
            attempt,
            minute_unix_ns // 60000000000,
            max_sampler_cpu_s
        FROM fact_device_minute
        WHERE max_sampler_cpu_s IS NOT NULL
    )
),

samplers AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        sum(CASE WHEN cpu_s < before_s THEN cpu_s ELSE cpu_s - coalesce(before_s, 0) END)
            AS sampler_cpu_s
    FROM watching
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
