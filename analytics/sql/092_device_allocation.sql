-- device_allocation: when a device was held, by whom, at which price: what every share is a share of.
-- Grain: one row per stretch of a device's allocation. Units: money per device-hour.
-- Reads from: allocation, fact_pool_event, rank_device, dim_run, device_activity, fact_device_sample,
-- fact_device_minute. The pool's own events come first; a device without any was held by the runs that
-- worked on it; one that has neither, for as long as it was sampled, without a price.
-- began_unix_ns [ns]: When it was allocated, UTC
-- ended_unix_ns [ns]: When it was released, lost or given to another, as in allocation
-- cost []: Cost of the stretch: that of the allocation, or its hours x the price; NULL without one
-- allocation_source []: pool_event, run or samples
WITH minutes AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        min(sampled_unix_ns) // 60000000000 * 60000000000 AS first_minute_unix_ns,
        max(sampled_unix_ns) AS last_unix_ns
    FROM fact_device_sample
    -- samples from after they came to us are of a wrong clock: no device was held until then
    WHERE sampled_unix_ns <= coalesce(ingested_unix_ns, sampled_unix_ns) + 60000000000
    GROUP BY pipeline_id, host, device_id
    UNION ALL
    SELECT
        pipeline_id,
        host,
        device_id,
        min(minute_unix_ns) AS first_minute_unix_ns,
        max(coalesce(last_sampled_unix_ns, minute_unix_ns + 60000000000)) AS last_unix_ns
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id
),

-- from the first minute with a sample, or since when that speaks, so that a purge changes nothing
sampled AS (
    SELECT
        minutes.pipeline_id,
        minutes.host,
        minutes.device_id,
        min(
            least(
                minutes.first_minute_unix_ns,
                coalesce(activity.since_unix_ns, minutes.first_minute_unix_ns)
            )
        ) AS began_unix_ns,
        max(minutes.last_unix_ns) AS ended_unix_ns
    FROM minutes
    LEFT JOIN device_activity AS activity
        ON minutes.host = activity.host
        AND minutes.device_id = activity.device_id
        AND minutes.first_minute_unix_ns = activity.minute_unix_ns
    GROUP BY minutes.pipeline_id, minutes.host, minutes.device_id
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
    host,
    device_id,
    pool_id,
    pipeline_id,
    began_unix_ns,
    ended_unix_ns,
    purchase,
    device_hour_cost,
    currency,
    cost,
    'pool_event' AS allocation_source
FROM allocation
UNION ALL BY NAME
SELECT
    host,
    device_id,
    pipeline_id,
    began_unix_ns,
    ended_unix_ns,
    device_hour_cost,
    currency,
    CAST(
        round((ended_unix_ns - began_unix_ns) / 3.6e12 * device_hour_cost, 6) AS DECIMAL(18, 6)
    ) AS cost,
    'run' AS allocation_source
FROM ran
UNION ALL BY NAME
SELECT
    sampled.host,
    sampled.device_id,
    sampled.pipeline_id,
    sampled.began_unix_ns,
    sampled.ended_unix_ns,
    'samples' AS allocation_source
FROM sampled
ANTI JOIN pooled USING (host, device_id)
ANTI JOIN ran USING (host, device_id);
