-- run_block: the sums of each block of steps, so that two arms can be compared block by block.
-- Grain: one row per run and block; only steps that every rank recorded count.
-- Units: rank-seconds, except imbalances, which are sums over steps of largest - mean rank.
-- Reads from: dim_run, fact_step, step_balance.
-- num_block_steps []: Complete steps in the block
-- first_step []: First complete step of the block
-- last_step []: Last complete step of the block
-- cpu_imbalance_s [s]: Sum over steps of the largest less the mean CPU time of the ranks
-- bubble_s [s]: Rank time that was not the ranks' own work
WITH parts AS (
    SELECT
        fact_step.run_id,
        fact_step.step,
        sum(window_s) AS window_s,
        sum(busy_s) AS busy_s,
        CASE
            WHEN count(straggler_wait_s) = count(*) THEN sum(straggler_wait_s)
        END AS straggler_wait_s
    FROM fact_step
    GROUP BY fact_step.run_id, fact_step.step
)

SELECT
    step_balance.run_id,
    any_value(dim_run.pipeline_id) AS pipeline_id,
    any_value(dim_run.arm) AS arm,
    any_value(dim_run.world_size) AS world_size,
    step_balance.block,
    count(*) AS num_block_steps,
    min(step_balance.step) AS first_step,
    max(step_balance.step) AS last_step,
    sum(parts.window_s) AS window_s,
    sum(parts.window_s - parts.busy_s) AS bubble_s,
    CASE
        WHEN count(parts.straggler_wait_s) = count(*) THEN sum(parts.straggler_wait_s)
    END AS straggler_wait_s,
    sum(step_balance.max_cpu_s - step_balance.mean_cpu_s) AS cpu_imbalance_s
FROM step_balance
INNER JOIN parts
    ON step_balance.run_id = parts.run_id AND step_balance.step = parts.step
INNER JOIN dim_run ON step_balance.run_id = dim_run.run_id
WHERE step_balance.is_complete
GROUP BY step_balance.run_id, step_balance.block;
