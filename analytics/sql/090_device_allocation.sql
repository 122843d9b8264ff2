-- device_allocation: when a device was held, by whom, at which price: what every share is a share of.
-- Grain: one row per stretch of a device's allocation. Units: money per device-hour.
-- Reads from: fact_pool_event, rank_device, dim_run, fact_device_sample, fact_device_minute. The pool's own events
-- come first; a device without any was held by the runs that worked on it; one that has neither, for as
-- long as it was sampled, without a price.
-- began_unix_ns [ns]: When it was allocated, UTC
-- ended_unix_ns [ns]: When it was released or lost; the latest time known where it still is held
-- allocation_source []: pool_event, run or samples
WITH sampled AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        min(sampled_unix_ns - CAST(coalesce(interval_s, 0) * 1e9 AS BIGINT)) AS began_unix_ns,
        max(sampled_unix_ns) AS ended_unix_ns
    FROM fact_device_sample
    GROUP BY pipeline_id, host, device_id
    UNION ALL
    SELECT
        pipeline_id,
        host,
        device_id,
        min(minute_unix_ns) AS began_unix_ns,
        max(coalesce(last_sampled_unix_ns, minute_unix_ns + 60000000000)) AS ended_unix_ns
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id
),

worked AS (
    SELECT
        ranks.pipeline_id,
        ranks.host,
        ranks.device_id,
        least(min(ranks.began_unix_ns), min(dim_run.started_unix_ns)) AS began_unix_ns,
        max(ranks.ended_unix_ns) AS ended_unix_ns,
        max(dim_run.device_hour_cost) AS device_hour_cost,
        max(dim_run.currency) AS currency
    FROM rank_device AS ranks
    INNER JOIN dim_run ON ranks.run_id = dim_run.run_id
    WHERE ranks.device_id IS NOT NULL
    GROUP BY ranks.pipeline_id, ranks.host, ranks.device_id
),

latest AS (
    SELECT max(ended_unix_ns) AS ended_unix_ns
    FROM (
        SELECT ended_unix_ns FROM sampled
        UNION ALL
        SELECT ended_unix_ns FROM worked
        UNION ALL
        SELECT event_unix_ns FROM fact_pool_event
    )
),

changes AS (
    SELECT
        *,
        lead(event_unix_ns) OVER (
            PARTITION BY host, device_id
            ORDER BY event_unix_ns, event = 'allocated'
        ) AS next_unix_ns
    FROM fact_pool_event
),

pooled AS (
    SELECT DISTINCT
        host,
        device_id
    FROM fact_pool_event
),

ran AS (
    SELECT worked.*
    FROM worked
    ANTI JOIN pooled USING (host, device_id)
)

SELECT
    changes.host,
    changes.device_id,
    changes.pool_id,
    changes.pipeline_id,
    changes.event_unix_ns AS began_unix_ns,
    coalesce(changes.next_unix_ns, latest.ended_unix_ns) AS ended_unix_ns,
    changes.purchase,
    changes.device_hour_cost,
    changes.currency,
    'pool_event' AS allocation_source
FROM changes
CROSS JOIN latest
WHERE changes.event = 'allocated'
UNION ALL BY NAME
SELECT
    host,
    device_id,
    pipeline_id,
    began_unix_ns,
    ended_unix_ns,
    device_hour_cost,
    currency,
    'run' AS allocation_source
FROM ran
UNION ALL BY NAME
SELECT
    sampled.host,
    sampled.device_id,
    sampled.pipeline_id,
    min(sampled.began_unix_ns) AS began_unix_ns,
    max(sampled.ended_unix_ns) AS ended_unix_ns,
    'samples' AS allocation_source
FROM sampled
ANTI JOIN pooled USING (host, device_id)
ANTI JOIN ran USING (host, device_id)
GROUP BY sampled.host, sampled.device_id, sampled.pipeline_id;
