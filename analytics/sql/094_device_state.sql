-- device_state: how long each device was in each state, and what that cost.
-- Grain: one row per host, device, state and currency. Units: seconds; money in `currency`.
-- Reads from: device_minute. What a minute was not allocated counts as unallocated and costs nothing.
-- num_minutes []: Minutes of that state
-- state_s [s]: Time in it
-- cost []: Its cost, unobserved time included; NULL without a price
WITH parts AS (
    SELECT
        host,
        device_id,
        state,
        currency,
        count(*) AS num_minutes,
        sum(CASE WHEN state = 'unallocated' THEN known_s ELSE allocated_s END) AS state_s,
        sum(cost) AS cost
    FROM device_minute
    GROUP BY host, device_id, state, currency
    UNION ALL BY NAME
    SELECT
        host,
        device_id,
        'unallocated' AS state,
        0 AS num_minutes,
        sum(known_s - allocated_s) AS state_s
    FROM device_minute
    WHERE allocated_s > 0 AND known_s > allocated_s
    GROUP BY host, device_id
)

SELECT
    host,
    device_id,
    state,
    currency,
    CAST(sum(num_minutes) AS BIGINT) AS num_minutes,
    sum(state_s) AS state_s,
    CAST(round(sum(cost), 6) AS DECIMAL(28, 6)) AS cost
FROM parts
GROUP BY host, device_id, state, currency;
