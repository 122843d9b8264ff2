-- cost_by_day: the cost of every cause of every run, by day, pool and team.
-- Grain: one row per run, cause, day and pool. Units: rank-seconds, money in `currency`.
-- Reads from: run_cause, fact_step, step_pool, dim_pool, dim_setting.
-- A step counts to the day it began in. The costs of a run and cause add up to its cost in run_cause
-- exactly, so that any sum over this view is exact: whole micro-units by largest remainder.
-- A step belongs to its pool in step_pool.
-- date_key []: The day, in the configured time zone
-- pool_id []: The pool; NULL when unknown
-- team_id []: The team that pays for the pool; NULL when unknown
-- seconds [s]: Rank time of this cause
-- cost []: Its part of the cost of the run
WITH zone AS (
    SELECT coalesce(max(value) FILTER (WHERE setting = 'time_zone'), 'UTC') AS time_zone
    FROM dim_setting
),

pool_day AS (
    SELECT
        fact_step.run_id,
        step_pool.pool_id,
        CAST(
            (make_timestamp(started_unix_ns // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE zone.time_zone AS DATE
        ) AS date_key,
        sum(busy_s) AS busy,
        sum(straggler_wait_s) FILTER (WHERE exposed_comm_s IS NOT NULL) AS straggler_wait,
        sum(exposed_comm_s) FILTER (WHERE straggler_wait_s IS NOT NULL) AS exposed_comm,
        sum(exposed_comm_total_s) FILTER (
            WHERE straggler_wait_s IS NULL OR exposed_comm_s IS NULL
        ) AS exposed_comm_total,
        sum(exposed_copy_s) AS exposed_copy,
        sum(data_wait_s) AS data_wait,
        sum(host_wait_s) AS host_wait,
        sum(kernel_gap_s) AS kernel_gap,
        sum(unattributed_s) AS unattributed
    FROM fact_step
    CROSS JOIN zone
    LEFT JOIN step_pool
        ON
            fact_step.run_id = step_pool.run_id
            AND fact_step.rank = step_pool.rank
            AND fact_step.step = step_pool.step
    GROUP BY fact_step.run_id, step_pool.pool_id, 3
),

named AS (
    UNPIVOT pool_day
    ON busy, straggler_wait, exposed_comm, exposed_comm_total, exposed_copy, data_wait, host_wait,
    kernel_gap, unattributed
    INTO NAME cause VALUE seconds
),

pooled AS (
    SELECT
        named.run_id,
        named.cause,
        named.date_key,
        named.pool_id,
        sum(named.seconds) AS seconds,
        CAST(round(sum(named.seconds) * 1e9) AS HUGEINT) AS part_ns
    FROM named
    GROUP BY ALL
),

whole AS (
    SELECT
        pooled.*,
        run_cause.pipeline_id,
        run_cause.arm,
        run_cause.cause_rank,
        run_cause.currency,
        CAST(run_cause.cost * 1000000 AS HUGEINT) AS all_micros,
        CAST(sum(pooled.part_ns) OVER (PARTITION BY pooled.run_id, pooled.cause) AS HUGEINT)
            AS all_ns
    FROM pooled
    INNER JOIN run_cause ON pooled.run_id = run_cause.run_id AND pooled.cause = run_cause.cause
),

floored AS (
    SELECT
        *,
        coalesce(all_micros * part_ns // nullif(all_ns, 0), 0 * all_micros) AS floor_micros,
        coalesce(all_micros * part_ns % nullif(all_ns, 0), 0) AS remainder
    FROM whole
),

ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY run_id, cause ORDER BY remainder DESC, date_key, pool_id
        ) AS place,
        all_micros - CAST(sum(floor_micros) OVER (PARTITION BY run_id, cause) AS HUGEINT)
            AS num_left
    FROM floored
)

SELECT
    ranked.run_id,
    ranked.pipeline_id,
    ranked.arm,
    ranked.date_key,
    ranked.pool_id,
    dim_pool.team_id,
    ranked.cause,
    ranked.cause_rank,
    ranked.seconds,
    ranked.currency,
    CAST(
        CAST(floor_micros + CASE WHEN place <= num_left THEN 1 ELSE 0 END AS DECIMAL(24, 0))
        * 0.000001 AS DECIMAL(28, 6)
    ) AS cost
FROM ranked
LEFT JOIN dim_pool ON ranked.pool_id = dim_pool.pool_id;
