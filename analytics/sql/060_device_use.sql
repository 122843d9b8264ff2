-- device_use: what the sampler saw of each device while a pipeline trained.
-- Grain: one row per pipeline, host and device. Units: seconds, bytes, shares in 0..1.
-- Reads from: fact_device_sample. Samples without a value do not count as 0; NULL when a device never
-- gave one. sampler_cpu_share is the sampler's own CPU time, of one core.
-- num_device_samples []: Samples taken
-- sampled_s [s]: Time that the samples cover
-- utilization_share []: Share of that time with any work, weighted by each sample's interval
-- memory_used_bytes [bytes]: Most memory in use in any sample
-- sampler_cpu_share []: CPU time of the sampler itself / sampled time
SELECT
    pipeline_id,
    host,
    device_id,
    any_value(device_name) AS device_name,
    count(*) AS num_device_samples,
    sum(interval_s) AS sampled_s,
    sum(utilization_share * interval_s)
    / nullif(sum(interval_s) FILTER (WHERE utilization_share IS NOT NULL), 0)
        AS utilization_share,
    max(memory_used_bytes) AS memory_used_bytes,
    max(memory_total_bytes) AS memory_total_bytes,
    max(sampler_cpu_s) / nullif(sum(interval_s), 0) AS sampler_cpu_share
FROM fact_device_sample
GROUP BY pipeline_id, host, device_id;
