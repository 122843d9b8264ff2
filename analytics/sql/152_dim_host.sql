-- dim_host: every host that anything tells of.
-- Grain: one row per host. Units: counts.
-- Reads from: dim_run, dim_rank, fact_device_sample, fact_device_minute, fact_pool_event. A host
-- that was allocated and never sampled has its row, as has one that was sampled and not allocated.
-- host []: Host name
-- num_devices []: Devices of it that ranks, samples or allocations tell of
-- is_ranked []: Whether a rank ran on it
-- is_sampled []: Whether a device of it was sampled
-- is_allocated []: Whether a device of it was ever allocated
WITH told AS (
    SELECT host, NULL AS device_id, 'ranked' AS how FROM dim_run
    UNION ALL
    SELECT host, device_id, 'ranked' FROM dim_rank
    UNION ALL
    SELECT DISTINCT host, device_id, 'sampled' FROM fact_device_sample
    UNION ALL
    SELECT DISTINCT host, device_id, 'sampled' FROM fact_device_minute
    UNION ALL
    SELECT host, device_id, 'allocated' FROM fact_pool_event
)

SELECT
    host,
    count(DISTINCT device_id) AS num_devices,
    bool_or(how = 'ranked') AS is_ranked,
    bool_or(how = 'sampled') AS is_sampled,
    bool_or(how = 'allocated') AS is_allocated
FROM told
GROUP BY host;
