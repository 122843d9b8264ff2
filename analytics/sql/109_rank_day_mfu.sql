-- rank_day_mfu: model FLOPs of each rank and what its device could have done, by day and pool.
-- Grain: one row per run, rank, device, pool and day of the steps' start. Units: in the names.
-- Reads from: fact_step, dim_rank, rank_peak, step_pool, time_zone. MFU of any sum of rows is
-- sum(model_flops) / sum(peak_flops). Only steps that told their FLOPs are in it; where the peak is not
-- known it is NULL, and so is every share that needs it.
-- date_key []: Day of the steps' start, in the configured time zone
-- pool_id []: Pool of the steps, as in step_pool; NULL when unknown
-- told_s [s]: Rank time of the steps that told their FLOPs
-- model_flops []: Their floating-point operations, of the real lengths
-- peak_flops []: Operations that the device could have done in that time; NULL when its peak is unknown
-- mfu_share []: model_flops / peak_flops
WITH summed AS (
    SELECT
        fact_step.run_id,
        fact_step.pipeline_id,
        fact_step.rank,
        dim_rank.host,
        dim_rank.device_id,
        step_pool.pool_id,
        CAST(
            (make_timestamp(fact_step.started_unix_ns // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE time_zone.time_zone AS DATE
        ) AS date_key,
        sum(fact_step.window_s) AS told_s,
        sum(fact_step.model_flops) AS model_flops,
        sum(fact_step.window_s) * any_value(rank_peak.peak_flops_per_s) AS peak_flops
    FROM fact_step
    CROSS JOIN time_zone
    LEFT JOIN dim_rank
        ON fact_step.run_id = dim_rank.run_id AND fact_step.rank = dim_rank.rank
    LEFT JOIN rank_peak
        ON fact_step.run_id = rank_peak.run_id AND fact_step.rank = rank_peak.rank
    LEFT JOIN step_pool
        ON
            fact_step.run_id = step_pool.run_id
            AND fact_step.rank = step_pool.rank
            AND fact_step.step = step_pool.step
    WHERE fact_step.model_flops IS NOT NULL
    GROUP BY ALL
)

SELECT
    *,
    model_flops / nullif(peak_flops, 0) AS mfu_share
FROM summed;
