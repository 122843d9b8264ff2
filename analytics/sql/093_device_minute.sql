-- device_minute: what each device was in each minute in which it is known: the four states.
-- Grain: one row per host, device and minute. Units: seconds, shares in 0..1.
-- Reads from: device_allocation, fact_pool_event, device_activity, device_step. A device that gave no
-- sample at all has its minutes too. An allocated minute is training when recorded steps fill at least
-- half of it; else what the samples tell, idle or training; without any, training if a step touches it.
-- A minute without a sample of its own belongs to the next sample that speaks for at least half of it;
-- if there is neither sample nor step, or no activity is told, the minute is unobserved, not idle.
-- Costs of the minutes of an allocation add up to its cost exactly: a minute's is the cost until its end
-- less that until its start, each rounded down to a micro-unit.
-- minute_unix_ns [ns]: Start of the minute, UTC
-- known_s [s]: Time of the minute in which the device is known to have been there
-- allocated_s [s]: Of it, allocated
-- observed_s [s]: Time of the minute that its own samples speak for, at most the minute
-- active_share []: Activity over that time
-- state []: unallocated, allocated_idle, training or unobserved
-- cost []: Its part of the cost of what it was allocated for; NULL without a price or in two currencies
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

held_minute AS (
    SELECT
        *,
        CAST(ended_unix_ns - began_unix_ns AS HUGEINT) AS all_ns,
        CAST(CAST(cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) AS all_micros,
        unnest(
            generate_series(began_unix_ns // 60000000000, (ended_unix_ns - 1) // 60000000000)
        ) AS minute
    FROM device_allocation
    WHERE ended_unix_ns > began_unix_ns
),

held AS (
    SELECT
        host,
        device_id,
        minute * 60000000000 AS minute_unix_ns,
        max(pipeline_id) AS pipeline_id,
        max(pool_id) AS pool_id,
        least(sum(held_ns) / 1e9, 60) AS allocated_s,
        -- money of two currencies is never added
        CASE WHEN count(DISTINCT currency) = 1 THEN max(currency) END AS currency,
        CASE WHEN count(DISTINCT currency) = 1
            THEN
                CAST(
                    CAST(sum(until_micros - since_micros) AS DECIMAL(24, 0)) * 0.000001
                    AS DECIMAL(28, 6)
                )
        END AS cost
    FROM (
        SELECT
            *,
            until_ns - since_ns AS held_ns,
            all_micros * (since_ns - began_unix_ns) // all_ns AS since_micros,
            all_micros * (until_ns - began_unix_ns) // all_ns AS until_micros
        FROM (
            SELECT
                *,
                greatest(began_unix_ns, minute * 60000000000) AS since_ns,
                least(ended_unix_ns, (minute + 1) * 60000000000) AS until_ns
            FROM held_minute
        )
    )
    GROUP BY host, device_id, minute
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
                    'since_ns': seen.since_unix_ns,
                    'observed_s': least(seen.observed_s, 60),
                    'active_share': seen.active_share,
                    'is_idle': seen.is_idle
                }
            END IGNORE NULLS
        ) OVER (
            PARTITION BY host, device_id
            ORDER BY minute_unix_ns
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS next
    FROM known
    FULL JOIN device_activity AS seen USING (host, device_id, minute_unix_ns)
),

told AS (
    SELECT
        host,
        device_id,
        minute_unix_ns,
        known_s,
        CASE
            WHEN
                next.minute_unix_ns = minute_unix_ns
                OR next.since_ns <= minute_unix_ns + 30000000000
                THEN next.active_share
        END AS active_share,
        CASE
            WHEN
                next.minute_unix_ns = minute_unix_ns
                OR next.since_ns <= minute_unix_ns + 30000000000
                THEN next.is_idle
        END AS is_idle,
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
        WHEN stepped.stepped_s >= held.allocated_s / 2 THEN 'training'
        WHEN told.is_idle THEN 'allocated_idle'
        WHEN NOT told.is_idle OR stepped.stepped_s > 0 THEN 'training'
        ELSE 'unobserved'
    END AS state,
    held.cost,
    held.currency
FROM told
LEFT JOIN held USING (host, device_id, minute_unix_ns)
LEFT JOIN device_step AS stepped USING (host, device_id, minute_unix_ns);
