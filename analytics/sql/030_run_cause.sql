-- run_cause: the cost of a run split over busy and every cause of a bubble.
-- Grain: one row per run and measured cause. Units: rank-seconds, share of the run's rank time,
-- money in the run's currency. Reads from: dim_run, run_parts.
-- The costs of a run add up to its cost exactly: whole micro-units by largest remainder, in
-- integers (nanoseconds x micro-units), so that no float decides who gets the last one.
-- cause []: busy, or the part of the bubble
-- cause_rank []: Fixed order of the causes, busy first
-- seconds [s]: Rank time of this cause
-- share []: Its share of the run's rank time
-- cost []: Its part of the run's cost
WITH named AS (
    UNPIVOT (
        SELECT
            run_id,
            busy_s AS busy,
            straggler_wait_s AS straggler_wait,
            exposed_comm_s AS exposed_comm,
            unsplit_comm_s AS exposed_comm_total,
            exposed_copy_s AS exposed_copy,
            data_wait_s AS data_wait,
            host_wait_s AS host_wait,
            kernel_gap_s AS kernel_gap,
            unattributed_s AS unattributed
        FROM run_parts
    )
    ON COLUMNS(* EXCLUDE (run_id))
    INTO NAME cause VALUE seconds
),

whole AS (
    SELECT
        named.run_id,
        named.cause,
        list_position(
            [
                'busy', 'straggler_wait', 'exposed_comm', 'exposed_comm_total', 'exposed_copy',
                'data_wait', 'host_wait', 'kernel_gap', 'unattributed'
            ],
            named.cause
        ) AS cause_rank,
        named.seconds,
        run_parts.window_s,
        CAST(round(named.seconds * 1e9) AS HUGEINT) AS part_ns,
        CAST(CAST(run_parts.cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) AS run_micros
    FROM named
    INNER JOIN run_parts ON named.run_id = run_parts.run_id
),

split AS (
    SELECT
        *,
        CAST(sum(part_ns) OVER (PARTITION BY run_id) AS HUGEINT) AS all_ns
    FROM whole
),

floored AS (
    SELECT
        *,
        run_micros * part_ns // all_ns AS floor_micros,
        run_micros * part_ns % all_ns AS remainder
    FROM split
    WHERE all_ns > 0
),

ranked AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY run_id ORDER BY remainder DESC, cause_rank) AS place,
        run_micros - CAST(sum(floor_micros) OVER (PARTITION BY run_id) AS HUGEINT) AS num_left
    FROM floored
)

SELECT
    ranked.run_id,
    dim_run.pipeline_id,
    dim_run.arm,
    ranked.cause,
    ranked.cause_rank,
    ranked.seconds,
    ranked.seconds / ranked.window_s AS share,
    CAST(
        CAST(floor_micros + CASE WHEN place <= num_left THEN 1 ELSE 0 END AS DECIMAL(24, 0))
        * 0.000001 AS DECIMAL(18, 6)
    ) AS cost,
    dim_run.currency
FROM ranked
INNER JOIN dim_run ON ranked.run_id = dim_run.run_id;
