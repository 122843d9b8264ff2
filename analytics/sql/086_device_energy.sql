-- device_energy: energy that each device used while it was sampled.
-- Grain: one row per pipeline, host and device. Units: joules, seconds.
-- Reads from: device_sample_energy, fact_device_minute. NULL where neither counter nor power is told.
-- The two ways of telling energy stand beside each other: on idle devices they are known to differ.
-- metered_energy_j [J]: By the counter where it is plausible, else by the power
-- power_energy_j [J]: Power x the time each sample speaks for
-- power_observed_s [s]: Time whose power is known
-- num_counter_resets []: Times that the counter fell, in samples that are not purged
-- num_implausible []: Times that it told more than the device can draw, in samples not purged
WITH parts AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        sum(metered_energy_j) AS metered_energy_j,
        sum(power_energy_j) AS power_energy_j,
        sum(observed_s) FILTER (WHERE power_w IS NOT NULL) AS power_observed_s,
        count(*) FILTER (WHERE was_reset) AS num_counter_resets,
        count(*) FILTER (WHERE is_implausible) AS num_implausible
    FROM device_sample_energy
    GROUP BY pipeline_id, host, device_id
    UNION ALL BY NAME
    SELECT
        pipeline_id,
        host,
        device_id,
        sum(metered_energy_j) AS metered_energy_j,
        sum(energy_j) FILTER (WHERE power_observed_s > 0) AS power_energy_j,
        sum(power_observed_s) FILTER (WHERE power_observed_s > 0) AS power_observed_s
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id
)

SELECT
    pipeline_id,
    host,
    device_id,
    sum(metered_energy_j) AS metered_energy_j,
    sum(power_energy_j) AS power_energy_j,
    sum(power_observed_s) AS power_observed_s,
    CAST(coalesce(sum(num_counter_resets), 0) AS BIGINT) AS num_counter_resets,
    CAST(coalesce(sum(num_implausible), 0) AS BIGINT) AS num_implausible
FROM parts
GROUP BY pipeline_id, host, device_id;
