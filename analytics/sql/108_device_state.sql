-- device_state: how long each device was in each state, and what that cost.
-- Grain: one row per host, device, state and currency. Units: seconds; money in `currency`.
-- Reads from: device_state_day. What a minute was not allocated counts as unallocated and costs nothing.
-- num_minutes []: Minutes of that state
-- state_s [s]: Time in it
-- cost []: Its cost, unobserved time included; NULL without a price
SELECT
    host,
    device_id,
    state,
    currency,
    CAST(sum(num_minutes) AS BIGINT) AS num_minutes,
    sum(state_s) AS state_s,
    CAST(sum(cost) AS DECIMAL(28, 6)) AS cost
FROM device_state_day
GROUP BY host, device_id, state, currency;
