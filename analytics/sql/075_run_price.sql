-- run_price: what an hour of one device costs by a pipeline's own runs.
-- Grain: one row per pipeline whose runs tell one price; none where they tell none or several.
-- Units: money in `currency`. Reads from: dim_run.
-- device_hour_cost []: Price of one device-hour
SELECT
    pipeline_id,
    any_value(device_hour_cost) AS device_hour_cost,
    any_value(currency) AS currency
FROM dim_run
WHERE device_hour_cost IS NOT NULL
GROUP BY pipeline_id
HAVING count(DISTINCT (device_hour_cost, currency)) = 1;
