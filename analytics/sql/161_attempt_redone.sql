-- attempt_redone: what the attempts of a pipeline that were not kept had trained, and what it cost.
-- Grain: one row per attempt that was not kept. Units: rank-seconds, money in `currency`.
-- Reads from: dim_attempt, run_price, dim_run, rank_share, fact_pool_event. Its steps are trained again by a later attempt:
-- they are in the cost and in no number of samples.
-- redone_s [s]: Rank time of the attempt's steps
-- was_preempted []: Whether a device of the pipeline was preempted before the next attempt began
-- cost []: redone_s, shared by the ranks of a device as in the pipeline's runs, x their price; NULL without one price
WITH shared AS (
    SELECT
        dim_run.pipeline_id,
        avg(rank_share.device_share) AS device_share
    FROM rank_share
    INNER JOIN dim_run ON rank_share.run_id = dim_run.run_id
    GROUP BY dim_run.pipeline_id
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
        round(
            spanned.window_s * coalesce(shared.device_share, 1) / 3600
            * run_price.device_hour_cost,
            6
        ) AS DECIMAL(18, 6)
    ) AS cost,
    run_price.currency
FROM spanned
LEFT JOIN run_price ON spanned.pipeline_id = run_price.pipeline_id
LEFT JOIN shared ON spanned.pipeline_id = shared.pipeline_id
WHERE NOT spanned.is_kept;
