-- run_scaling: how much of each rank's worth is left when the same configuration runs on more ranks.
-- Grain: one row per run and kind of scaling, strong and weak. Units: in the names; efficiencies are
-- shares that noise may lift above 1. Reads from: dim_run, run_device_names, run_parts.
-- Runs are compared that have the same scaling_key and, for strong scaling, the same global batch, for
-- weak scaling the same batch of a rank. The baseline is all such runs at the smallest world size; NULL
-- when there is only one world size.
-- scaling_kind []: strong: T_1 / (N T_N) at a fixed global batch; weak: thr_N / (N thr_1) at a fixed batch of a rank
-- scaling_key []: Hash of all that must be the same: configuration but for ranks, batch and seed, data set, arm, device, version; NULL when untold
-- held_sequences []: Sequences of the global batch (strong) or of a rank (weak), which are the same
-- step_s [s]: Mean window of a step on a rank
-- samples_per_s [1/s]: Sequences trained on by all ranks in one second
-- baseline_world_size []: Smallest world size of the comparable runs
-- scaling_efficiency []: 1 when N ranks do N times what one does, the baseline's ranks counted as whole
-- scaling_cost []: 1 - scaling_efficiency of weak scaling: the part of the ranks that scaling costs
WITH sized AS (
    SELECT
        dim_run.run_id,
        dim_run.pipeline_id,
        dim_run.arm,
        dim_run.world_size,
        dim_run.global_batch_sequences,
        run_device_names.device_name,
        CASE
            WHEN dim_run.scaling_sha256 IS NOT NULL AND dim_run.dataset_id IS NOT NULL
                THEN md5(concat_ws(
                    '|', dim_run.scaling_sha256, dim_run.dataset_id, dim_run.arm,
                    coalesce(dim_run.placement, '-'), coalesce(dim_run.schedule, '-'),
                    coalesce(dim_run.transport, '-'), dim_run.device,
                    coalesce(run_device_names.device_name, '-'), dim_run.seqscale_version
                ))
        END AS scaling_key,
        run_parts.window_s,
        run_parts.num_rank_steps,
        run_parts.num_samples
    FROM dim_run
    LEFT JOIN run_device_names ON dim_run.run_id = run_device_names.run_id
    LEFT JOIN run_parts ON dim_run.run_id = run_parts.run_id
),

kinds AS (
    SELECT
        sized.*,
        kind.scaling_kind,
        CASE kind.scaling_kind
            WHEN 'strong' THEN CAST(global_batch_sequences AS DOUBLE)
            ELSE global_batch_sequences / world_size
        END AS held_sequences
    FROM sized
    CROSS JOIN (VALUES ('strong'), ('weak')) AS kind (scaling_kind)
),

grouped AS (
    SELECT
        scaling_key,
        scaling_kind,
        held_sequences,
        min(world_size) AS baseline_world_size
    FROM kinds
    WHERE scaling_key IS NOT NULL AND held_sequences IS NOT NULL AND window_s > 0
    GROUP BY scaling_key, scaling_kind, held_sequences
    HAVING min(world_size) < max(world_size)
),

baselines AS (
    SELECT
        grouped.*,
        sum(kinds.window_s) / sum(kinds.num_rank_steps) AS baseline_step_s,
        sum(kinds.num_samples) / sum(kinds.window_s) AS baseline_samples_per_rank_s
    FROM grouped
    INNER JOIN kinds
        ON grouped.scaling_key = kinds.scaling_key
        AND grouped.scaling_kind = kinds.scaling_kind
        AND grouped.held_sequences = kinds.held_sequences
        AND grouped.baseline_world_size = kinds.world_size
    WHERE kinds.window_s > 0
    GROUP BY ALL
),

measured AS (
    SELECT
        kinds.run_id,
        kinds.pipeline_id,
        kinds.arm,
        kinds.scaling_kind,
        kinds.scaling_key,
        kinds.device_name,
        kinds.world_size,
        kinds.held_sequences,
        kinds.window_s / nullif(kinds.num_rank_steps, 0) AS step_s,
        kinds.num_samples / nullif(kinds.window_s / kinds.world_size, 0) AS samples_per_s,
        baselines.baseline_world_size,
        CASE kinds.scaling_kind
            WHEN 'strong' THEN
                baselines.baseline_step_s * baselines.baseline_world_size
                / nullif(kinds.window_s / kinds.num_rank_steps * kinds.world_size, 0)
            ELSE
                kinds.num_samples / nullif(kinds.window_s, 0)
                / nullif(baselines.baseline_samples_per_rank_s, 0)
        END AS scaling_efficiency
    FROM kinds
    LEFT JOIN baselines
        ON kinds.scaling_key = baselines.scaling_key
        AND kinds.scaling_kind = baselines.scaling_kind
        AND kinds.held_sequences = baselines.held_sequences
)

SELECT
    *,
    CASE WHEN scaling_kind = 'weak' THEN 1 - scaling_efficiency END AS scaling_cost
FROM measured;
