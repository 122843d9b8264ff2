-- rank_day_parts: where the time of each rank went on each day; the views of parts sum over it.
-- Grain: one row per run, rank, device, pool and UTC day of the steps' start. Units: rank-seconds.
-- Reads from: fact_step, dim_rank, fact_pool_event.
-- A part that no step measured is NULL and counts 0 in the sum: the window is busy + straggler wait
-- + exposed comm + unsplit comm + copy + data wait + host wait + kernel gap + unattributed.
-- day_utc []: Day of the steps' start, UTC, as YYYY-MM-DD
-- pool_id []: Pool that the device was allocated from then; NULL when no event tells
-- num_rank_steps []: Recorded steps, counted once per rank
-- window_s [s]: All recorded rank time
-- unsplit_comm_s [s]: Blocked communication of steps in which waiting and wire were not told apart
-- num_samples []: Sequences trained on
WITH placed AS (
    SELECT
        fact_step.*,
        dim_rank.host,
        dim_rank.device_id,
        dim_rank.device_name
    FROM fact_step
    LEFT JOIN dim_rank
        ON fact_step.run_id = dim_rank.run_id AND fact_step.rank = dim_rank.rank
),

allocation AS (
    SELECT *
    FROM fact_pool_event
    QUALIFY row_number() OVER (
        PARTITION BY host, device_id, event_unix_ns
        ORDER BY event = 'allocated' DESC, pool_id
    ) = 1
),

pooled AS (
    SELECT
        placed.*,
        CASE WHEN allocation.event = 'allocated' THEN allocation.pool_id END AS pool_id
    FROM placed
    ASOF LEFT JOIN allocation
        ON placed.host = allocation.host
        AND placed.device_id = allocation.device_id
        AND placed.started_unix_ns >= allocation.event_unix_ns
)

SELECT
    run_id,
    any_value(pipeline_id) AS pipeline_id,
    rank,
    host,
    device_id,
    any_value(device_name) AS device_name,
    pool_id,
    strftime(make_timestamp(started_unix_ns // 1000), '%Y-%m-%d') AS day_utc,
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
FROM pooled
GROUP BY run_id, rank, host, device_id, pool_id, day_utc;
