-- pipeline_cost: what a pipeline cost, and what a million trained sequences cost in it.
-- Grain: one row per pipeline. Units: hours, money in `currency`.
-- Reads from: dim_run, run_parts, fact_step, attempt_redone, allocation. Every kept sequence counts
-- once; steps that were redone or skipped are in the cost alone.
-- recorded_cost []: Recorded steps of all arms x price of a device-hour
-- redone_cost []: Cost of the steps of attempts that were not kept
-- allocated_hours [h]: Device-hours that were allocated to the pipeline; NULL when no event tells
-- allocated_cost []: Their cost; NULL when no event tells, or an hour has no price
-- cost_basis []: allocated where the allocation is known and priced, else recorded
-- cost []: allocated_cost, or recorded_cost + redone_cost
-- num_kept_samples []: Sequences whose steps were kept and not skipped
-- cost_per_1m_samples []: cost / num_kept_samples x 1,000,000
WITH runs AS (
    SELECT
        dim_run.pipeline_id,
        CASE
            WHEN count(*) = count(run_parts.cost) AND count(DISTINCT dim_run.currency) = 1
                THEN sum(run_parts.cost)
        END AS recorded_cost,
        any_value(dim_run.currency) AS currency
    FROM dim_run
    INNER JOIN run_parts ON dim_run.run_id = run_parts.run_id
    GROUP BY dim_run.pipeline_id
),

kept AS (
    SELECT
        pipeline_id,
        CAST(sum(num_sequences) FILTER (WHERE NOT coalesce(was_skipped, FALSE)) AS BIGINT)
            AS num_kept_samples
    FROM fact_step
    GROUP BY pipeline_id
),

redone AS (
    SELECT
        pipeline_id,
        CASE WHEN count(*) = count(cost) THEN sum(cost) END AS redone_cost
    FROM attempt_redone
    GROUP BY pipeline_id
),

allocated AS (
    SELECT
        pipeline_id,
        sum(device_hours) AS allocated_hours,
        CASE
            WHEN count(*) = count(cost) AND count(DISTINCT currency) = 1 THEN sum(cost)
        END AS allocated_cost,
        any_value(currency) AS currency
    FROM allocation
    WHERE pipeline_id <> ''
    GROUP BY pipeline_id
),

both_ways AS (
    SELECT
        runs.pipeline_id,
        runs.recorded_cost,
        CASE WHEN redone.pipeline_id IS NULL THEN 0 ELSE redone.redone_cost END AS redone_cost,
        allocated.allocated_hours,
        allocated.allocated_cost,
        CASE WHEN allocated.allocated_cost IS NULL THEN 'recorded' ELSE 'allocated' END
            AS cost_basis,
        kept.num_kept_samples,
        CASE WHEN allocated.allocated_cost IS NULL THEN runs.currency ELSE allocated.currency END
            AS currency
    FROM runs
    LEFT JOIN kept ON runs.pipeline_id = kept.pipeline_id
    LEFT JOIN redone ON runs.pipeline_id = redone.pipeline_id
    LEFT JOIN allocated ON runs.pipeline_id = allocated.pipeline_id
),

chosen AS (
    SELECT
        *,
        CASE
            WHEN cost_basis = 'allocated' THEN allocated_cost ELSE recorded_cost + redone_cost
        END AS cost
    FROM both_ways
)

SELECT
    pipeline_id,
    CAST(recorded_cost AS DECIMAL(28, 6)) AS recorded_cost,
    CAST(redone_cost AS DECIMAL(28, 6)) AS redone_cost,
    allocated_hours,
    CAST(allocated_cost AS DECIMAL(28, 6)) AS allocated_cost,
    cost_basis,
    CAST(cost AS DECIMAL(28, 6)) AS cost,
    num_kept_samples,
    CAST(
        CAST(cost AS DOUBLE) / nullif(num_kept_samples, 0) * 1000000 AS DECIMAL(28, 6)
    ) AS cost_per_1m_samples,
    currency
FROM chosen;
