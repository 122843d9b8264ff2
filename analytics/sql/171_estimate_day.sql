-- estimate_day: what devices cost by estimate, by day, pool and pipeline.
-- Grain: one row per day, pool, pipeline, currency and basis. Units: hours, money in `currency`.
-- Reads from: allocation_day, cost_by_day, fact_pool_event. From allocations where they are known; a pipeline without
-- any is estimated by the windows of its steps.
-- estimate_basis []: allocated or recorded
-- device_hours [h]: Device-hours
-- estimate_cost []: Their cost; NULL when some hour has no price
SELECT
    date_key,
    pool_id,
    nullif(pipeline_id, '') AS pipeline_id,
    'allocated' AS estimate_basis,
    sum(device_hours) AS device_hours,
    CAST(CASE WHEN count(*) = count(cost) THEN sum(cost) END AS DECIMAL(28, 6)) AS estimate_cost,
    currency
FROM allocation_day
GROUP BY date_key, pool_id, pipeline_id, currency
UNION ALL
SELECT
    date_key,
    pool_id,
    pipeline_id,
    'recorded',
    sum(seconds) / 3600,
    CAST(CASE WHEN count(*) = count(cost) THEN sum(cost) END AS DECIMAL(28, 6)),
    currency
FROM cost_by_day
WHERE pipeline_id NOT IN (SELECT pipeline_id FROM fact_pool_event WHERE event = 'allocated')
GROUP BY date_key, pool_id, pipeline_id, currency;
