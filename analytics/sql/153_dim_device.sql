-- dim_device: every device that anything tells of.
-- Grain: one row per host and device. Units: none.
-- Reads from: dim_rank, fact_device_sample, fact_device_minute, fact_pool_event. A device that was
-- allocated and never sampled has its row: denominators come from the allocation.
-- host []: Host name
-- device_id []: The device
-- device_name []: Its model; NULL when untold
-- pool_id []: The pool of its last event; NULL when it has none
-- is_ranked []: Whether a rank ran on it
-- is_sampled []: Whether it was sampled
-- is_allocated []: Whether it was ever allocated
WITH told AS (
    SELECT host, device_id, device_name, NULL AS pool_id, NULL AS event_unix_ns, 'ranked' AS how
    FROM dim_rank
    WHERE device_id IS NOT NULL
    UNION ALL
    SELECT host, device_id, max(device_name), NULL, NULL, 'sampled'
    FROM fact_device_sample
    GROUP BY host, device_id
    UNION ALL
    SELECT host, device_id, max(device_name), NULL, NULL, 'sampled'
    FROM fact_device_minute
    GROUP BY host, device_id
    UNION ALL
    SELECT host, device_id, NULL, pool_id, event_unix_ns, 'allocated'
    FROM fact_pool_event
)

SELECT
    host,
    device_id,
    max(device_name) AS device_name,
    arg_max(pool_id, event_unix_ns) AS pool_id,
    bool_or(how = 'ranked') AS is_ranked,
    bool_or(how = 'sampled') AS is_sampled,
    bool_or(how = 'allocated') AS is_allocated
FROM told
GROUP BY host, device_id;
