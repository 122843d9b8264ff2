-- device_gap: how far apart the samples of a device lie, where its source does not tell intervals.
-- Grain: one row per sample of a device that has a sample without an interval. Units: seconds.
-- Reads from: fact_device_sample, fact_device_minute (the last purged sample comes before the first
-- that is left). NULL for the first sample of a device.
-- gap_s [s]: Time since the sample before
WITH untold AS (
    SELECT DISTINCT
        pipeline_id,
        host,
        device_id
    FROM fact_device_sample
    WHERE interval_s IS NULL
),

purged AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        max(last_sampled_unix_ns) AS last_ns
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id
),

spaced AS (
    SELECT
        samples.*,
        coalesce(
            lag(samples.sampled_unix_ns) OVER device,
            CASE WHEN purged.last_ns < samples.sampled_unix_ns THEN purged.last_ns END
        ) AS before_ns
    FROM fact_device_sample AS samples
    INNER JOIN untold USING (pipeline_id, host, device_id)
    LEFT JOIN purged USING (pipeline_id, host, device_id)
    WINDOW device AS (
        PARTITION BY samples.pipeline_id, samples.host, samples.device_id
        ORDER BY samples.sampled_unix_ns
    )
)

SELECT
    * EXCLUDE (before_ns),
    (sampled_unix_ns - before_ns) / 1e9 AS gap_s
FROM spaced;
