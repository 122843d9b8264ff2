-- step_parts: where the time of each step went, over the ranks; what two runs are compared by.
-- Grain: one row per run and step that every rank recorded. Units: seconds, the mean over the ranks.
-- Reads from: fact_step, dim_run. A part that some rank did not measure is NULL.
-- num_ranks []: Ranks of the run
-- step_s [s]: Mean window of the step over the ranks
-- bubble_s [s]: Mean of the time that was not a rank's own work
-- num_samples []: Sequences trained on by all ranks
-- num_targets []: Positions with a target of all ranks; NULL when some rank did not tell
WITH summed AS (
    SELECT
        run_id,
        step,
        any_value(block) AS block,
        count(*) AS num_ranks,
        sum(window_s) AS window_s,
        sum(busy_s) AS busy_s,
        CASE WHEN count(straggler_wait_s) = count(*) THEN sum(straggler_wait_s) END
            AS straggler_wait_s,
        CASE WHEN count(exposed_comm_s) = count(*) THEN sum(exposed_comm_s) END AS exposed_comm_s,
        sum(exposed_comm_total_s) AS exposed_comm_total_s,
        sum(exposed_copy_s) AS exposed_copy_s,
        sum(data_wait_s) AS data_wait_s,
        CASE WHEN count(host_wait_s) = count(*) THEN sum(host_wait_s) END AS host_wait_s,
        CASE WHEN count(kernel_gap_s) = count(*) THEN sum(kernel_gap_s) END AS kernel_gap_s,
        sum(unattributed_s) AS unattributed_s,
        CASE
            WHEN count(num_sequences) = count(*) THEN CAST(sum(num_sequences) AS BIGINT)
        END AS num_samples,
        CASE
            WHEN count(num_targets) = count(*) THEN CAST(sum(num_targets) AS BIGINT)
        END AS num_targets
    FROM fact_step
    GROUP BY run_id, step
)

SELECT
    summed.run_id,
    summed.step,
    summed.block,
    summed.num_ranks,
    summed.window_s / summed.num_ranks AS step_s,
    (summed.window_s - summed.busy_s) / summed.num_ranks AS bubble_s,
    summed.busy_s / summed.num_ranks AS busy_s,
    summed.straggler_wait_s / summed.num_ranks AS straggler_wait_s,
    summed.exposed_comm_s / summed.num_ranks AS exposed_comm_s,
    summed.exposed_comm_total_s / summed.num_ranks AS exposed_comm_total_s,
    summed.exposed_copy_s / summed.num_ranks AS exposed_copy_s,
    summed.data_wait_s / summed.num_ranks AS data_wait_s,
    summed.host_wait_s / summed.num_ranks AS host_wait_s,
    summed.kernel_gap_s / summed.num_ranks AS kernel_gap_s,
    summed.unattributed_s / summed.num_ranks AS unattributed_s,
    summed.num_samples,
    summed.num_targets
FROM summed
INNER JOIN dim_run ON summed.run_id = dim_run.run_id
WHERE summed.num_ranks = dim_run.world_size;
