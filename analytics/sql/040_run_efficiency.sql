-- run_efficiency: what a run reached and what it cost, one line to compare arms by.
-- Grain: one row per run. Units: in the names; shares are 0..1 and sum(a)/sum(b), never a mean of
-- shares; money is in the run's currency.
-- Reads from: dim_run, dim_dataset, fact_evaluation, fact_schedule_trial, run_parts, run_noise,
-- rank_share, step_balance.
-- chosen_schedule []: The schedule a run went on with: its own, or what 'auto' picked; NULL when it ended before
-- step_s [s]: Mean window of a step on a rank
-- samples_per_s [1/s]: Sequences trained on by all ranks in one second
-- tokens_per_s [1/s]: Events trained on by all ranks in one second
-- bubble_share []: Share of rank time that was not the ranks' own work
-- busy_share []: Share of rank time that was the ranks' own work
-- straggler_wait_share []: Share of rank time blocked before the last rank arrived; NULL when some step could not tell
-- exposed_comm_share []: Share of rank time blocked in a collective after that; NULL alike
-- exposed_comm_total_share []: Share of rank time blocked in collectives, the two together
-- exposed_copy_share []: Share of rank time blocked in a copy
-- data_wait_share []: Share of rank time spent waiting for the next batch
-- host_wait_share []: Share of rank time idle before a late launch; NULL on CPU
-- kernel_gap_share []: Share of rank time in short gaps between kernels; NULL on CPU
-- unattributed_share []: Share of rank time that no other part explains
-- overlap_share []: Share of communication time under compute; NULL without communication
-- straggler_share []: 1 - mean / largest own work of the ranks, over steps; NULL for one rank
-- straggler_cpu_share []: The same in CPU time, which other load does not distort
-- rows_ahead_share []: Share of needed embedding rows that were fetched during the step before
-- noise_scale_sequences []: Gradient noise scale: up to about this batch, more sequences save steps; NULL if not measured
-- popularity_hr_at_10 []: HR@10 of popularity ranking on the same split
-- popularity_ndcg_at_10 []: NDCG@10 of popularity ranking on the same split
-- popularity_mrr []: MRR of popularity ranking on the same split
-- hr_at_10 []: Share of users whose test target is among the model's first ten
-- ndcg_at_10 []: Mean of 1/log2(1+rank) of the test target for ranks up to ten, else 0
-- mrr []: Mean of 1/rank of the test target
-- num_devices []: Devices of the ranks; those that share one count once, on CPU each rank for one
-- device_hours [h]: Recorded step windows of those devices; start-up and evaluation are not in it
-- cost []: Device-hours x price of a device-hour
-- bubble_cost []: The part of cost that was not the ranks' own work, all causes of run_cause
-- cost_per_1m_samples []: Cost of training on a million sequences
-- bubble_cost_per_1000_device_hours []: Bubble share x price of 1,000 device-hours
WITH balance AS (
    SELECT
        run_id,
        1 - sum(mean_busy_s) / nullif(sum(max_busy_s), 0) AS straggler_share,
        1 - sum(mean_cpu_s) / nullif(sum(max_cpu_s), 0) AS straggler_cpu_share
    FROM step_balance
    WHERE is_complete AND num_ranks > 1
    GROUP BY run_id
),

model AS (
    SELECT *
    FROM fact_evaluation
    WHERE split = 'test' AND ranker = 'model'
),

popularity AS (
    SELECT *
    FROM fact_evaluation
    WHERE split = 'test' AND ranker = 'popularity'
),

waste AS (
    SELECT
        run_id,
        CAST(sum(cost) FILTER (WHERE cause <> 'busy') AS DECIMAL(18, 6)) AS bubble_cost
    FROM run_cause
    GROUP BY run_id
),

shared AS (
    SELECT
        run_id,
        count(*) AS num_ranks,
        round(sum(device_share), 6) AS num_devices
    FROM rank_share
    GROUP BY run_id
),

picked AS (
    SELECT
        run_id,
        max(schedule) AS schedule
    FROM fact_schedule_trial
    WHERE is_chosen
    GROUP BY run_id
)

SELECT
    dim_run.run_id,
    dim_run.pipeline_id,
    dim_run.attempt,
    dim_run.arm,
    dim_run.placement,
    dim_run.schedule,
    CASE
        WHEN dim_run.schedule = 'auto' THEN picked.schedule
        ELSE dim_run.schedule
    END AS chosen_schedule,
    dim_run.transport,
    dim_run.dataset_id,
    dim_dataset.dataset_name,
    dim_run.device,
    dim_run.world_size,
    dim_run.num_steps,
    run_parts.num_recorded_steps,
    run_parts.window_s / run_parts.num_rank_steps AS step_s,
    run_parts.num_samples / nullif(run_parts.window_s / dim_run.world_size, 0) AS samples_per_s,
    run_parts.num_trained_tokens
    / nullif(run_parts.window_s / dim_run.world_size, 0) AS tokens_per_s,
    1 - run_parts.busy_s / nullif(run_parts.window_s, 0) AS bubble_share,
    run_parts.busy_s / nullif(run_parts.window_s, 0) AS busy_share,
    CASE
        WHEN run_parts.unsplit_comm_s IS NULL
            THEN run_parts.straggler_wait_s / nullif(run_parts.window_s, 0)
    END AS straggler_wait_share,
    CASE
        WHEN run_parts.unsplit_comm_s IS NULL
            THEN run_parts.exposed_comm_s / nullif(run_parts.window_s, 0)
    END AS exposed_comm_share,
    run_parts.exposed_comm_total_s / nullif(run_parts.window_s, 0) AS exposed_comm_total_share,
    run_parts.exposed_copy_s / nullif(run_parts.window_s, 0) AS exposed_copy_share,
    run_parts.data_wait_s / nullif(run_parts.window_s, 0) AS data_wait_share,
    run_parts.host_wait_s / nullif(run_parts.window_s, 0) AS host_wait_share,
    run_parts.kernel_gap_s / nullif(run_parts.window_s, 0) AS kernel_gap_share,
    run_parts.unattributed_s / nullif(run_parts.window_s, 0) AS unattributed_share,
    run_parts.overlapped_comm_s / nullif(run_parts.comm_s, 0) AS overlap_share,
    balance.straggler_share,
    balance.straggler_cpu_share,
    dim_run.predicted_straggler_share,
    dim_run.bound_straggler_share,
    dim_run.collision_share,
    run_parts.num_rows_ahead / nullif(run_parts.num_rows, 0) AS rows_ahead_share,
    run_noise.noise_scale_sequences,
    model.num_users,
    model.num_cold_targets,
    model.hr_at_10,
    model.ndcg_at_10,
    model.mrr,
    popularity.hr_at_10 AS popularity_hr_at_10,
    popularity.ndcg_at_10 AS popularity_ndcg_at_10,
    popularity.mrr AS popularity_mrr,
    dim_run.instance_type,
    dim_run.device_hour_cost,
    dim_run.world_size + coalesce(shared.num_devices - shared.num_ranks, 0) AS num_devices,
    run_parts.device_s / 3600 AS device_hours,
    run_parts.cost,
    waste.bubble_cost,
    CAST(
        run_parts.cost / nullif(run_parts.num_samples, 0) * 1000000 AS DECIMAL(18, 6)
    ) AS cost_per_1m_samples,
    CAST(
        (1 - run_parts.busy_s / nullif(run_parts.window_s, 0)) * dim_run.device_hour_cost * 1000
        AS DECIMAL(18, 6)
    ) AS bubble_cost_per_1000_device_hours,
    dim_run.currency,
    dim_run.started_unix_ns
FROM dim_run
LEFT JOIN dim_dataset ON dim_run.dataset_id = dim_dataset.dataset_id
LEFT JOIN run_parts ON dim_run.run_id = run_parts.run_id
LEFT JOIN balance ON dim_run.run_id = balance.run_id
LEFT JOIN model ON dim_run.run_id = model.run_id
LEFT JOIN popularity ON dim_run.run_id = popularity.run_id
LEFT JOIN waste ON dim_run.run_id = waste.run_id
LEFT JOIN shared ON dim_run.run_id = shared.run_id
LEFT JOIN run_noise ON dim_run.run_id = run_noise.run_id
LEFT JOIN picked ON dim_run.run_id = picked.run_id;
