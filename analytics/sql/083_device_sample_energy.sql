-- device_sample_energy: what each raw sample tells of energy.
-- Grain: one row per raw sample. Units: joules, seconds.
-- Reads from: device_interval, fact_device_minute (the last purged sample comes before the first left).
-- A counter that fell has begun anew, so its own reading is what was used since. A difference above what
-- the device can draw (its power limit, 3,000 W when unknown, and a half more, as for our own sampler
-- in telemetry/counters.py) is not believed.
-- power_energy_j [J]: Power x the stretch the sample speaks for; NULL without power
-- counted_energy_j [J]: By the counter since the sample before; NULL without one or not plausible
-- metered_energy_j [J]: By the counter, else by the power
-- was_reset []: Whether the counter fell since the sample before
-- is_implausible []: Whether the counter tells more than the device can draw
WITH counted AS (
    SELECT DISTINCT
        pipeline_id,
        host,
        device_id
    FROM fact_device_sample
    WHERE energy_j IS NOT NULL
),

purged AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        arg_max(
            {'sampled_unix_ns': last_sampled_unix_ns, 'energy_j': last_energy_j},
            minute_unix_ns
        ) AS last
    FROM fact_device_minute
    GROUP BY pipeline_id, host, device_id
),

stepped AS (
    SELECT
        samples.*,
        coalesce(
            lag(samples.sampled_unix_ns) OVER device,
            CASE WHEN purged.last.sampled_unix_ns < samples.sampled_unix_ns
                THEN purged.last.sampled_unix_ns
            END
        ) AS before_ns,
        CASE
            WHEN lag(samples.sampled_unix_ns) OVER device IS NOT NULL
                THEN lag(samples.energy_j) OVER device
            WHEN purged.last.sampled_unix_ns < samples.sampled_unix_ns THEN purged.last.energy_j
        END AS before_j
    FROM device_interval AS samples
    INNER JOIN counted USING (pipeline_id, host, device_id)
    LEFT JOIN purged USING (pipeline_id, host, device_id)
    WINDOW device AS (
        PARTITION BY samples.pipeline_id, samples.host, samples.device_id
        ORDER BY samples.sampled_unix_ns
    )
),

used AS (
    SELECT
        *,
        CASE WHEN energy_j >= before_j THEN energy_j - before_j
            WHEN energy_j < before_j THEN energy_j
        END AS used_j,
        energy_j < before_j AS was_reset,
        coalesce(nullif(power_limit_w, 0), 3000) * 1.5 * (sampled_unix_ns - before_ns) / 1e9 AS most_j
    FROM stepped
),

told AS (
    SELECT
        * EXCLUDE (before_ns, before_j, used_j, most_j),
        CASE WHEN used_j <= most_j THEN used_j END AS counted_energy_j,
        used_j > most_j AS is_implausible
    FROM used
    UNION ALL BY NAME
    SELECT
        samples.*,
        CAST(NULL AS DOUBLE) AS counted_energy_j,
        CAST(NULL AS BOOLEAN) AS was_reset,
        CAST(NULL AS BOOLEAN) AS is_implausible
    FROM device_interval AS samples
    ANTI JOIN counted USING (pipeline_id, host, device_id)
)

SELECT
    *,
    power_w * observed_s AS power_energy_j,
    coalesce(counted_energy_j, power_w * observed_s) AS metered_energy_j
FROM told;
