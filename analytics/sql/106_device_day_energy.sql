-- device_day_energy: the energy that each device used on each day while it was sampled.
-- Grain: one row per pipeline, host, device and day. Units: joules, seconds.
-- Reads from: device_sample_minute, fact_device_minute, time_zone. Its days add up to device_energy.
-- A minute counts to the day it began in.
-- date_key []: Day, in the configured time zone
-- observed_s [s]: Time that samples speak for
-- metered_energy_j [J]: By the counter where it is plausible, else by the power; NULL without either
-- power_energy_j [J]: Power x time; NULL without power
WITH minutes AS (
    FROM device_sample_minute
    UNION ALL BY NAME
    FROM fact_device_minute
)

SELECT
    minutes.pipeline_id,
    minutes.host,
    minutes.device_id,
    CAST(
        (make_timestamp(minutes.minute_unix_ns // 1000) AT TIME ZONE 'UTC')
        AT TIME ZONE time_zone.time_zone AS DATE
    ) AS date_key,
    sum(minutes.observed_s) AS observed_s,
    sum(minutes.metered_energy_j) AS metered_energy_j,
    sum(minutes.energy_j) FILTER (WHERE minutes.power_observed_s > 0) AS power_energy_j
FROM minutes
CROSS JOIN time_zone
GROUP BY ALL;
