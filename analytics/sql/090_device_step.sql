-- device_step: how much of each minute a device was in recorded steps.
-- Grain: one row per host, device and minute that a step touches. Units: seconds.
-- Reads from: fact_step, rank_device. Ranks that share a device train at the same time: a step lasts
-- as long as the longest of their windows.
-- minute_unix_ns [ns]: Start of the minute, UTC
-- stepped_s [s]: Time of the minute in recorded steps, at most the minute
WITH steps AS (
    SELECT
        placed.host,
        placed.device_id,
        min(fact_step.started_unix_ns) AS began_unix_ns,
        min(fact_step.started_unix_ns)
        + CAST(round(max(fact_step.window_s) * 1e9) AS BIGINT) AS ended_unix_ns
    FROM fact_step
    INNER JOIN rank_device AS placed
        ON fact_step.run_id = placed.run_id AND fact_step.rank = placed.rank
    WHERE placed.device_id IS NOT NULL
    GROUP BY placed.host, placed.device_id, fact_step.run_id, fact_step.step
),

touched AS (
    SELECT
        *,
        unnest(
            generate_series(began_unix_ns // 60000000000, (ended_unix_ns - 1) // 60000000000)
        ) AS minute
    FROM steps
    WHERE ended_unix_ns > began_unix_ns
)

SELECT
    host,
    device_id,
    minute * 60000000000 AS minute_unix_ns,
    least(
        sum(
            least(ended_unix_ns, (minute + 1) * 60000000000)
            - greatest(began_unix_ns, minute * 60000000000)
        ) / 1e9, 60
    ) AS stepped_s
FROM touched
GROUP BY host, device_id, minute;
