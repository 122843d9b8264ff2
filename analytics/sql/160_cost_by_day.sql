-- cost_by_day: the cost of every cause of every run, by day, rank, device, pool and team.
-- Grain: one row per run, rank, cause, day and pool. Units: rank-seconds, money in `currency`.
-- Reads from: run_cause, rank_day_parts, dim_pool.
-- A step counts to the day it began in and to its pool in step_pool. The costs of a run and cause add up
-- to its cost in run_cause exactly, so that any sum over this view is exact: whole micro-units by
-- largest remainder.
-- pool_id []: The pool; NULL when unknown
-- team_id []: The team that pays for the pool; NULL when unknown
-- seconds [s]: Rank time of this cause
-- cost []: Its part of the cost of the run
WITH parts AS (
    SELECT
        run_id,
        rank,
        host,
        device_id,
        pool_id,
        date_key,
        busy_s AS busy,
        straggler_wait_s AS straggler_wait,
        exposed_comm_s AS exposed_comm,
        unsplit_comm_s AS exposed_comm_total,
        exposed_copy_s AS exposed_copy,
        data_wait_s AS data_wait,
        host_wait_s AS host_wait,
        kernel_gap_s AS kernel_gap,
        unattributed_s AS unattributed
    FROM rank_day_parts
),

named AS (
    UNPIVOT parts
    ON busy, straggler_wait, exposed_comm, exposed_comm_total, exposed_copy, data_wait, host_wait,
    kernel_gap, unattributed
    INTO NAME cause VALUE seconds
),

whole AS (
    SELECT
        named.*,
        CAST(round(named.seconds * 1e9) AS HUGEINT) AS part_ns,
        run_cause.pipeline_id,
        run_cause.arm,
        run_cause.cause_rank,
        run_cause.currency,
        CAST(CAST(run_cause.cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) AS all_micros,
        CAST(
            sum(CAST(round(named.seconds * 1e9) AS HUGEINT)) OVER (
                PARTITION BY named.run_id, named.cause
            ) AS HUGEINT
        ) AS all_ns
    FROM named
    INNER JOIN run_cause ON named.run_id = run_cause.run_id AND named.cause = run_cause.cause
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
            PARTITION BY run_id, cause ORDER BY remainder DESC, date_key, rank, pool_id
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
    ranked.rank,
    ranked.host,
    ranked.device_id,
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
