-- run_parts: where the rank time of a run went, in seconds, and what all of it cost.
-- Grain: one row per run with at least one recorded step. Units: rank-seconds.
-- Reads from: dim_run, fact_step, rank_share. A part that no step measured is NULL. Steps in which waiting
-- and wire were not told apart count in unsplit_comm_s and in neither of the two.
-- num_recorded_steps []: Steps that at least one rank recorded
-- num_rank_steps []: Recorded steps, counted once per rank
-- window_s [s]: All recorded rank time
-- unsplit_comm_s [s]: Blocked communication of steps in which waiting and wire were not told apart
-- num_samples []: Sequences trained on
-- num_trained_tokens []: Events trained on
-- device_s [s]: All recorded device time: ranks that share a device count for their share of it
-- cost []: Device time x price of a device-hour, in the run's currency
SELECT
    fact_step.run_id,
    count(DISTINCT step) AS num_recorded_steps,
    count(*) AS num_rank_steps,
    sum(window_s) AS window_s,
    sum(busy_s) AS busy_s,
    sum(straggler_wait_s) FILTER (WHERE exposed_comm_s IS NOT NULL) AS straggler_wait_s,
    sum(exposed_comm_s) FILTER (WHERE straggler_wait_s IS NOT NULL) AS exposed_comm_s,
    sum(exposed_comm_total_s) FILTER (
        WHERE straggler_wait_s IS NULL OR exposed_comm_s IS NULL
    ) AS unsplit_comm_s,
    sum(exposed_comm_total_s) AS exposed_comm_total_s,
    sum(exposed_copy_s) AS exposed_copy_s,
    sum(data_wait_s) AS data_wait_s,
    sum(host_wait_s) AS host_wait_s,
    sum(kernel_gap_s) AS kernel_gap_s,
    sum(unattributed_s) AS unattributed_s,
    sum(comm_s) AS comm_s,
    sum(overlapped_comm_s) AS overlapped_comm_s,
    CAST(sum(num_sequences) AS BIGINT) AS num_samples,
    CAST(sum(num_tokens) AS BIGINT) AS num_trained_tokens,
    CAST(sum(num_rows) AS BIGINT) AS num_rows,
    CAST(sum(num_rows_ahead) AS BIGINT) AS num_rows_ahead,
    sum(window_s * coalesce(rank_share.device_share, 1)) AS device_s,
    CAST(round(device_s / 3600 * any_value(dim_run.device_hour_cost), 6) AS DECIMAL(18, 6)) AS cost
FROM fact_step
INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
LEFT JOIN rank_share
    ON fact_step.run_id = rank_share.run_id AND fact_step.rank = rank_share.rank
GROUP BY fact_step.run_id;
