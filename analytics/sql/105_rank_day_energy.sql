-- rank_day_energy: the energy of each rank's steps, by day, device and pool; sums of it are by any of them.
-- Grain: one row per run, rank, device, pool and day of the steps' start. Units: joules, rank-seconds.
-- Reads from: step_device, fact_step, step_pool, time_zone. Ranks that share a device have each its
-- part of the energy. Steps whose samples were purged count as not observed.
-- date_key []: Day of the steps' start, in the configured time zone
-- pool_id []: Pool of the steps, as in step_pool; NULL when unknown
-- window_s [s]: Recorded rank time
-- energy_observed_s [s]: Of it, the time whose energy is known
-- energy_j [J]: Energy in that time; NULL when none is known
SELECT
    seen.run_id,
    seen.pipeline_id,
    seen.rank,
    seen.host,
    seen.device_id,
    step_pool.pool_id,
    CAST(
        (make_timestamp(fact_step.started_unix_ns // 1000) AT TIME ZONE 'UTC')
        AT TIME ZONE time_zone.time_zone AS DATE
    ) AS date_key,
    sum(seen.window_s) AS window_s,
    coalesce(sum(seen.energy_observed_s), 0) AS energy_observed_s,
    sum(seen.energy_j) AS energy_j
FROM step_device AS seen
INNER JOIN fact_step
    ON
        seen.run_id = fact_step.run_id
        AND seen.rank = fact_step.rank
        AND seen.step = fact_step.step
LEFT JOIN step_pool
    ON
        seen.run_id = step_pool.run_id
        AND seen.rank = step_pool.rank
        AND seen.step = step_pool.step
CROSS JOIN time_zone
GROUP BY ALL;
