-- step_balance: how evenly the ranks of a run shared each step.
-- Grain: one row per run and step. Units: seconds, unless the name says otherwise.
-- Reads from: dim_run, fact_step.
-- num_ranks []: Ranks that recorded this step
-- is_complete []: Whether every rank of the run recorded this step
-- step_s [s]: Mean window of the step over the ranks
-- mean_busy_s [s]: Mean over the ranks of their own work
-- max_busy_s [s]: Largest own work of a rank
-- mean_cpu_s [s]: Mean over the ranks of the CPU time of their own work
-- max_cpu_s [s]: Largest CPU time of a rank's own work
-- mean_predicted_cost_s [s]: Mean cost by cost model over the ranks
-- max_predicted_cost_s [s]: Largest cost by cost model of a rank
-- loss []: Sum of losses over the sum of targets, all ranks
SELECT
    fact_step.run_id,
    any_value(fact_step.pipeline_id) AS pipeline_id,
    fact_step.step,
    any_value(fact_step.epoch) AS epoch,
    any_value(fact_step.block) AS block,
    count(*) AS num_ranks,
    count(*) = any_value(dim_run.world_size) AS is_complete,
    avg(window_s) AS step_s,
    avg(busy_s) AS mean_busy_s,
    max(busy_s) AS max_busy_s,
    avg(cpu_s) AS mean_cpu_s,
    max(cpu_s) AS max_cpu_s,
    avg(predicted_cost_s) AS mean_predicted_cost_s,
    max(predicted_cost_s) AS max_predicted_cost_s,
    sum(loss_sum) / nullif(sum(num_targets), 0) AS loss
FROM fact_step
INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
GROUP BY fact_step.run_id, fact_step.step;
