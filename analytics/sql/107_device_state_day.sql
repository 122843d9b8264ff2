-- device_state_day: how long each device was in each state on each day, by pool, and what that cost.
-- Grain: one row per host, device, pool, day, state and currency. Units: seconds; money in `currency`.
-- Reads from: device_minute, time_zone. A minute counts to the day it began in. What a minute was not
-- allocated counts as unallocated and costs nothing. Its sums over days and pools are device_state.
-- date_key []: Day, in the configured time zone
-- pool_id []: Pool that the device was allocated from; NULL when it was not, or none is known
-- num_minutes []: Minutes of that state
-- state_s [s]: Time in it
-- cost []: Its cost, the sum of that of its minutes, exactly; NULL without a price
WITH dated AS (
    SELECT
        device_minute.*,
        CAST(
            (make_timestamp(device_minute.minute_unix_ns // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE time_zone.time_zone AS DATE
        ) AS date_key
    FROM device_minute
    CROSS JOIN time_zone
)

SELECT
    host,
    device_id,
    pool_id,
    date_key,
    state,
    currency,
    count(*) AS num_minutes,
    sum(CASE WHEN state = 'unallocated' THEN known_s ELSE allocated_s END) AS state_s,
    sum(cost) AS cost
FROM dated
GROUP BY ALL
UNION ALL BY NAME
SELECT
    host,
    device_id,
    pool_id,
    date_key,
    'unallocated' AS state,
    0 AS num_minutes,
    sum(known_s - allocated_s) AS state_s
FROM dated
WHERE allocated_s > 0 AND known_s > allocated_s
GROUP BY host, device_id, pool_id, date_key;
