-- cost_by_day: the cost of every cause of every run, by day, pool and team.
-- Grain: one row per run, cause, day and pool. Units: rank-seconds, money in `currency`.
-- Reads from: run_cause, fact_step, dim_run, dim_rank, dim_pool, dim_setting, allocation.
-- A step counts to the day it began in. The costs of a run and cause add up to its cost in run_cause
-- exactly, so that any sum over this view is exact: whole micro-units by largest remainder.
-- A rank belongs to the pool that its device was allocated from to its pipeline; without a record of
-- its device, to the only pool of the pipeline; NULL when neither is known.
-- date_key []: The day, in the configured time zone
-- pool_id []: The pool; NULL when unknown
-- team_id []: The team that pays for the pool; NULL when unknown
-- seconds [s]: Rank time of this cause
-- cost []: Its part of the cost of the run
WITH zone AS (
    SELECT coalesce(max(value) FILTER (WHERE setting = 'time_zone'), 'UTC') AS time_zone
    FROM dim_setting
),

given AS MATERIALIZED (
    SELECT pool_id, host, device_id, pipeline_id, began_unix_ns FROM allocation
),

rank_pool AS (
    SELECT
        dim_rank.run_id,
        dim_rank.rank,
        arg_max(given.pool_id, given.began_unix_ns) AS pool_id
    FROM dim_rank
    INNER JOIN given
        ON dim_rank.pipeline_id = given.pipeline_id
        AND dim_rank.host = given.host
        AND dim_rank.device_id = given.device_id
    GROUP BY dim_rank.run_id, dim_rank.rank
),

only_pool AS (
    SELECT pipeline_id, any_value(pool_id) AS pool_id
    FROM given
    WHERE pipeline_id <> ''
    GROUP BY pipeline_id
    HAVING count(DISTINCT pool_id) = 1
),

rank_day AS (
    SELECT
        fact_step.run_id,
        fact_step.rank,
        any_value(fact_step.pipeline_id) AS pipeline_id,
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
    GROUP BY fact_step.run_id, fact_step.rank, 4
),

named AS (
    UNPIVOT rank_day
    ON busy, straggler_wait, exposed_comm, exposed_comm_total, exposed_copy, data_wait, host_wait,
    kernel_gap, unattributed
    INTO NAME cause VALUE seconds
),

pooled AS (
    SELECT
        named.run_id,
        named.cause,
        named.date_key,
        coalesce(rank_pool.pool_id, only_pool.pool_id) AS pool_id,
        sum(named.seconds) AS seconds,
        CAST(round(sum(named.seconds) * 1e9) AS HUGEINT) AS part_ns
    FROM named
    LEFT JOIN rank_pool ON named.run_id = rank_pool.run_id AND named.rank = rank_pool.rank
    LEFT JOIN only_pool ON named.pipeline_id = only_pool.pipeline_id
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
