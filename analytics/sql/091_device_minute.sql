-- device_minute: what each device was in each minute in which it is known: the four states.
-- Grain: one row per host, device and minute. Units: seconds, shares in 0..1.
-- Reads from: device_allocation, fact_pool_event, device_interval, fact_device_minute. A device that gave no
-- sample at all has its minutes too. Activity is that of the SMs, else of the engine, else utilisation; at
-- most 1 %, or no process, is idle. A minute without a sample of its own belongs to the next sample that
-- reaches back into it; if there is none, or it tells no activity, the minute is unobserved, not idle.
-- minute_unix_ns [ns]: Start of the minute, UTC
-- known_s [s]: Time of the minute in which the device is known to have been there
-- allocated_s [s]: Of it, allocated
-- observed_s [s]: Time of the minute that its own samples speak for, at most the minute
-- active_share []: Activity over that time
-- state []: unallocated, allocated_idle, training or unobserved
-- cost []: Allocated time x the price of the time, not rounded; NULL without a price
WITH latest AS (
    SELECT max(ended_unix_ns) AS ended_unix_ns
    FROM device_allocation
),

spans AS (
    SELECT
        events.host,
        events.device_id,
        min(events.event_unix_ns) AS began_unix_ns,
        greatest(max(events.event_unix_ns), any_value(latest.ended_unix_ns)) AS ended_unix_ns
    FROM fact_pool_event AS events
    CROSS JOIN latest
    GROUP BY events.host, events.device_id
    UNION ALL
    SELECT
        host,
        device_id,
        began_unix_ns,
        ended_unix_ns
    FROM device_allocation
    WHERE allocation_source <> 'pool_event'
),

-- a stretch of time as its minutes
known AS (
    SELECT
        host,
        device_id,
        minute * 60000000000 AS minute_unix_ns,
        least(
            sum(
                least(ended_unix_ns, (minute + 1) * 60000000000)
                - greatest(began_unix_ns, minute * 60000000000)
            ) / 1e9, 60
        ) AS known_s
    FROM (
        SELECT
            *,
            unnest(
                generate_series(
                    began_unix_ns // 60000000000, (ended_unix_ns - 1) // 60000000000
                )
            ) AS minute
        FROM spans
        WHERE ended_unix_ns > began_unix_ns
    )
    GROUP BY host, device_id, minute
),

held AS (
    SELECT
        host,
        device_id,
        minute * 60000000000 AS minute_unix_ns,
        max(pipeline_id) AS pipeline_id,
        max(pool_id) AS pool_id,
        max(currency) AS currency,
        least(sum(held_ns) / 1e9, 60) AS allocated_s,
        sum(held_ns / 3600e9 * device_hour_cost) AS cost
    FROM (
        SELECT
            *,
            least(ended_unix_ns, (minute + 1) * 60000000000)
            - greatest(began_unix_ns, minute * 60000000000) AS held_ns
        FROM (
            SELECT
                *,
                unnest(
                    generate_series(
                        began_unix_ns // 60000000000, (ended_unix_ns - 1) // 60000000000
                    )
                ) AS minute
            FROM device_allocation
            WHERE ended_unix_ns > began_unix_ns
        )
    )
    GROUP BY host, device_id, minute
),

sums AS (
    SELECT
        host,
        device_id,
        sampled_unix_ns // 60000000000 * 60000000000 AS minute_unix_ns,
        max(sampled_unix_ns) AS last_ns,
        coalesce(sum(observed_s), 0) AS observed_s,
        sum(utilization_share * observed_s) AS utilized_s,
        sum(observed_s) FILTER (WHERE utilization_share IS NOT NULL) AS utilization_observed_s,
        sum(sm_active_share * observed_s) AS sm_active_s,
        sum(observed_s) FILTER (WHERE sm_active_share IS NOT NULL) AS sm_active_observed_s,
        sum(engine_active_share * observed_s) AS engine_active_s,
        sum(observed_s) FILTER (WHERE engine_active_share IS NOT NULL) AS engine_active_observed_s,
        max(num_processes) AS max_num_processes
    FROM device_interval
    GROUP BY host, device_id, sampled_unix_ns // 60000000000
    UNION ALL BY NAME
    SELECT
        host,
        device_id,
        minute_unix_ns,
        coalesce(last_sampled_unix_ns, minute_unix_ns + 59999999999) AS last_ns,
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

seen AS (
    SELECT
        host,
        device_id,
        minute_unix_ns,
        max(last_ns) - CAST(round(max(observed_s) * 1e9) AS BIGINT) AS since_ns,
        least(max(observed_s), 60) AS observed_s,
        coalesce(
            sum(sm_active_s) / nullif(sum(sm_active_observed_s), 0),
            sum(engine_active_s) / nullif(sum(engine_active_observed_s), 0),
            sum(utilized_s) / nullif(sum(utilization_observed_s), 0)
        ) AS active_share,
        max(max_num_processes) AS max_num_processes
    FROM sums
    GROUP BY host, device_id, minute_unix_ns
    HAVING max(observed_s) > 0
),

-- each minute beside the first observed one that is not before it: a window, since an ASOF join of
-- these is planned as a quadratic one (100 s for 170,000 minutes)
beside AS (
    SELECT
        host,
        device_id,
        minute_unix_ns,
        known.known_s,
        first_value(
            CASE WHEN seen.minute_unix_ns IS NOT NULL THEN
                {
                    'minute_unix_ns': seen.minute_unix_ns,
                    'since_ns': seen.since_ns,
                    'observed_s': seen.observed_s,
                    'active_share': seen.active_share,
                    'max_num_processes': seen.max_num_processes
                }
            END IGNORE NULLS
        ) OVER (
            PARTITION BY host, device_id
            ORDER BY minute_unix_ns
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS next
    FROM known
    FULL JOIN seen USING (host, device_id, minute_unix_ns)
),

told AS (
    SELECT
        host,
        device_id,
        minute_unix_ns,
        known_s,
        CASE WHEN next.since_ns < minute_unix_ns + 60000000000
            THEN next.active_share
        END AS active_share,
        CASE WHEN next.since_ns < minute_unix_ns + 60000000000
            THEN next.max_num_processes
        END AS max_num_processes,
        CASE WHEN next.minute_unix_ns = minute_unix_ns
            THEN next.observed_s
            ELSE 0
        END AS observed_s
    FROM beside
    WHERE known_s IS NOT NULL
)

SELECT
    told.host,
    told.device_id,
    told.minute_unix_ns,
    held.pipeline_id,
    held.pool_id,
    told.known_s,
    coalesce(held.allocated_s, 0) AS allocated_s,
    told.observed_s,
    told.active_share,
    CASE
        WHEN coalesce(held.allocated_s, 0) = 0 THEN 'unallocated'
        WHEN told.max_num_processes = 0 OR told.active_share <= 0.01 THEN 'allocated_idle'
        WHEN told.active_share > 0.01 THEN 'training'
        ELSE 'unobserved'
    END AS state,
    held.cost,
    held.currency
FROM told
LEFT JOIN held USING (host, device_id, minute_unix_ns);
