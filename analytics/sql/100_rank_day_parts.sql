-- rank_day_parts: where the time of each rank went on each day; the views of parts sum over it.
-- Grain: one row per run, rank, device, pool and day of the steps' start. Units: rank-seconds.
-- Reads from: fact_step, dim_rank, step_pool, time_zone.
-- A part that no step measured is NULL and counts 0 in the sum: the window is busy + straggler wait
-- + exposed comm + unsplit comm + copy + data wait + host wait + kernel gap + unattributed.
-- date_key []: Day of the steps' start, in the configured time zone
-- pool_id []: Pool of the steps, as in step_pool; NULL when unknown
-- num_rank_steps []: Recorded steps, counted once per rank
-- window_s [s]: All recorded rank time
-- unsplit_comm_s [s]: Blocked communication of steps in which waiting and wire were not told apart
-- num_samples []: Sequences trained on
WITH placed AS (
    SELECT
        fact_step.*,
        dim_rank.host,
        dim_rank.device_id,
        dim_rank.device_name,
        step_pool.pool_id,
        CAST(
            (make_timestamp(fact_step.started_unix_ns // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE time_zone.time_zone AS DATE
        ) AS date_key
    FROM fact_step
    CROSS JOIN time_zone
    LEFT JOIN dim_rank
        ON fact_step.run_id = dim_rank.run_id AND fact_step.rank = dim_rank.rank
    LEFT JOIN step_pool
        ON
            fact_step.run_id = step_pool.run_id
            AND fact_step.rank = step_pool.rank
            AND fact_step.step = step_pool.step
)

SELECT
    run_id,
    any_value(pipeline_id) AS pipeline_id,
    rank,
    host,
    device_id,
    any_value(device_name) AS device_name,
    pool_id,
    date_key,
    count(*) AS num_rank_steps,
    sum(window_s) AS window_s,
    sum(busy_s) AS busy_s,
    sum(straggler_wait_s) FILTER (WHERE exposed_comm_s IS NOT NULL) AS straggler_wait_s,
    sum(exposed_comm_s) FILTER (WHERE straggler_wait_s IS NOT NULL) AS exposed_comm_s,
    sum(exposed_comm_total_s) FILTER (
        WHERE straggler_wait_s IS NULL OR exposed_comm_s IS NULL
    ) AS unsplit_comm_s,
    sum(exposed_copy_s) AS exposed_copy_s,
    sum(data_wait_s) AS data_wait_s,
    sum(host_wait_s) AS host_wait_s,
    sum(kernel_gap_s) AS kernel_gap_s,
    sum(unattributed_s) AS unattributed_s,
    sum(comm_s) AS comm_s,
    sum(overlapped_comm_s) AS overlapped_comm_s,
    CAST(sum(num_sequences) AS BIGINT) AS num_samples
FROM placed
GROUP BY run_id, rank, host, device_id, pool_id, date_key;
