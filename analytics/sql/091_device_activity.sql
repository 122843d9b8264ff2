-- device_activity: what the samples of each device tell of a minute: the same before and after a purge.
-- Grain: one row per host, device and minute that samples speak for. Units: seconds, shares in 0..1.
-- Reads from: device_interval, fact_device_minute. Activity is that of the SMs, else of the engine, else
-- utilisation. Sources that tell of one device and minute are not added up: the longest time counts,
-- and samples of one minute speak for no more than a minute and one of their intervals.
-- minute_unix_ns [ns]: Start of the minute in which the samples were taken, UTC
-- since_unix_ns [ns]: Start of the time that they speak for, which may lie in an earlier minute
-- until_unix_ns [ns]: Its end: the last of them
-- observed_s [s]: That time
-- active_share []: Activity over it; NULL when no sample tells any
-- max_num_processes []: Most processes on the device; NULL when no sample tells
-- is_idle []: At most 1 % of activity, or no process; NULL when neither is told
WITH sums AS (
    SELECT
        host,
        device_id,
        sampled_unix_ns // 60000000000 * 60000000000 AS minute_unix_ns,
        max(sampled_unix_ns) AS last_ns,
        count(*) AS num_samples,
        coalesce(sum(observed_s), 0) AS observed_s,
        sum(utilization_share * observed_s) AS utilized_s,
        sum(observed_s) FILTER (WHERE utilization_share IS NOT NULL) AS utilization_observed_s,
        sum(sm_active_share * observed_s) AS sm_active_s,
        sum(observed_s) FILTER (WHERE sm_active_share IS NOT NULL) AS sm_active_observed_s,
        sum(engine_active_share * observed_s) AS engine_active_s,
        sum(observed_s) FILTER (WHERE engine_active_share IS NOT NULL) AS engine_active_observed_s,
        max(num_processes) AS max_num_processes
    FROM device_interval
    GROUP BY pipeline_id, host, device_id, sampled_unix_ns // 60000000000
    UNION ALL BY NAME
    SELECT
        host,
        device_id,
        minute_unix_ns,
        coalesce(last_sampled_unix_ns, minute_unix_ns + 60000000000) AS last_ns,
        num_samples,
        observed_s,
        utilized_s,
        utilization_observed_s,
        sm_active_s,
        sm_active_observed_s,
        engine_active_s,
        engine_active_observed_s,
        max_num_processes
    FROM fact_device_minute
),

bounded AS (
    SELECT * REPLACE (least(observed_s, 60 + observed_s / num_samples) AS observed_s)
    FROM sums
),

seen AS (
    SELECT
        host,
        device_id,
        minute_unix_ns,
        max(last_ns) - CAST(round(max(observed_s) * 1e9) AS BIGINT) AS since_unix_ns,
        max(last_ns) AS until_unix_ns,
        max(observed_s) AS observed_s,
        coalesce(
            sum(sm_active_s) / nullif(sum(sm_active_observed_s), 0),
            sum(engine_active_s) / nullif(sum(engine_active_observed_s), 0),
            sum(utilized_s) / nullif(sum(utilization_observed_s), 0)
        ) AS active_share,
        max(max_num_processes) AS max_num_processes
    FROM bounded
    GROUP BY host, device_id, minute_unix_ns
    HAVING max(observed_s) > 0
)

SELECT
    *,
    CASE WHEN max_num_processes = 0 THEN TRUE ELSE active_share <= 0.01 END AS is_idle
FROM seen;
