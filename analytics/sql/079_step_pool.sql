-- step_pool: which pool each step of a rank was worked in.
-- Grain: one row per run, rank and step. Units: none. Reads from: fact_step, dim_rank, allocation.
-- It is the pool that the rank's device was allocated from when the step began; where the device or its
-- allocation at that time is not known, the only pool of the pipeline.
-- pool_id []: The pool; NULL when unknown
WITH given AS MATERIALIZED (
    SELECT
        pool_id,
        host,
        device_id,
        pipeline_id,
        began_unix_ns,
        ended_unix_ns
    FROM allocation
),

-- two pools that gave the device away at the same moment: one of them, always the same
lent AS (
    SELECT *
    FROM given
    QUALIFY row_number() OVER (PARTITION BY host, device_id, began_unix_ns ORDER BY pool_id) = 1
),

only_pool AS (
    SELECT
        pipeline_id,
        any_value(pool_id) AS pool_id
    FROM given
    WHERE pipeline_id <> ''
    GROUP BY pipeline_id
    HAVING count(DISTINCT pool_id) = 1
)

SELECT
    fact_step.run_id,
    fact_step.rank,
    fact_step.step,
    coalesce(
        CASE WHEN fact_step.started_unix_ns < lent.ended_unix_ns THEN lent.pool_id END,
        only_pool.pool_id
    ) AS pool_id
FROM fact_step
LEFT JOIN dim_rank ON fact_step.run_id = dim_rank.run_id AND fact_step.rank = dim_rank.rank
ASOF LEFT JOIN lent
    ON dim_rank.host = lent.host
    AND dim_rank.device_id = lent.device_id
    AND fact_step.started_unix_ns >= lent.began_unix_ns
LEFT JOIN only_pool ON fact_step.pipeline_id = only_pool.pipeline_id;
