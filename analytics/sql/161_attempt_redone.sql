-- attempt_redone: what the attempts of a pipeline that were not kept had trained, and what it cost.
-- Grain: one row per attempt that was not kept. Units: rank-seconds, money in `currency`.
-- Reads from: dim_attempt, dim_run, fact_pool_event. Its steps are trained again by a later attempt:
-- they are in the cost and in no number of samples.
-- redone_s [s]: Rank time of the attempt's steps
-- was_preempted []: Whether a device of the pipeline was preempted before the next attempt began
-- cost []: redone_s x price of the pipeline; NULL without one price
WITH run_price AS (
    SELECT
        pipeline_id,
        any_value(device_hour_cost) AS device_hour_cost,
        any_value(currency) AS currency
    FROM dim_run
    WHERE device_hour_cost IS NOT NULL
    GROUP BY pipeline_id
    HAVING count(DISTINCT (device_hour_cost, currency)) = 1
),

spanned AS (
    SELECT
        *,
        lead(began_unix_ns) OVER (PARTITION BY pipeline_id ORDER BY attempt) AS next_unix_ns
    FROM dim_attempt
)

SELECT
    spanned.pipeline_id,
    spanned.attempt,
    spanned.window_s AS redone_s,
    EXISTS (
        SELECT 1
        FROM fact_pool_event
        WHERE
            fact_pool_event.pipeline_id = spanned.pipeline_id
            AND fact_pool_event.event = 'preempted'
            AND fact_pool_event.event_unix_ns >= spanned.began_unix_ns
            AND fact_pool_event.event_unix_ns
            <= coalesce(spanned.next_unix_ns, fact_pool_event.event_unix_ns)
    ) AS was_preempted,
    CAST(
        round(spanned.window_s / 3600 * run_price.device_hour_cost, 6) AS DECIMAL(18, 6)
    ) AS cost,
    run_price.currency
FROM spanned
LEFT JOIN run_price ON spanned.pipeline_id = run_price.pipeline_id
WHERE NOT spanned.is_kept;
