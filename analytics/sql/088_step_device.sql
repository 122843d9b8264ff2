-- step_device: what the device of a rank was seen to do during each of its steps.
-- Grain: one row per run, rank and step; without a sample its figures are NULL. Units: seconds, joules,
-- bytes, shares in 0..1.
-- Reads from: fact_step, rank_device, device_sample_energy. Each sample weighs as much as its interval
-- overlaps the step. A device that ranks share gives each its part of the energy. Samples that were
-- purged tell of no step any more.
-- observed_s [s]: Time of the step that samples speak for
-- num_device_samples []: Samples that speak for any of it
-- resolution_s [s]: Longest interval among them
-- is_resolved []: Whether the step is as long as that; if not, it shares samples with its neighbours
-- utilization_share []: Share of the observed time with any work
-- sm_active_share []: Share of cycles with a warp on an SM
-- tensor_active_share []: Share of cycles with the tensor pipe active
-- dram_active_share []: Share of cycles with the memory interface active
-- memory_used_bytes [bytes]: Most memory in use
-- energy_observed_s [s]: Time of the step whose energy is known
-- energy_j [J]: Energy in that time, the rank's part
WITH steps AS (
    SELECT
        fact_step.run_id,
        fact_step.rank,
        fact_step.step,
        placed.host,
        placed.device_id,
        placed.sample_pipeline_id,
        placed.num_ranks_on_device,
        fact_step.started_unix_ns AS began_ns,
        fact_step.started_unix_ns
        + CAST(round(fact_step.window_s * 1e9) AS BIGINT) AS ended_ns
    FROM fact_step
    INNER JOIN rank_device AS placed
        ON fact_step.run_id = placed.run_id AND fact_step.rank = placed.rank
),

samples AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        sampled_unix_ns AS sampled_ns,
        sampled_unix_ns - CAST(round(observed_s * 1e9) AS BIGINT) AS since_ns,
        observed_s AS spoken_s,
        utilization_share,
        sm_active_share,
        tensor_active_share,
        dram_active_share,
        memory_used_bytes,
        metered_energy_j
    FROM device_sample_energy
    WHERE observed_s > 0
),

-- a rank's samples, each beside the step that it may end in
ended AS (
    SELECT
        lanes.run_id,
        lanes.rank,
        samples.*
    FROM samples
    INNER JOIN rank_device AS lanes
        ON
            samples.pipeline_id = lanes.sample_pipeline_id
            AND samples.host = lanes.host
            AND samples.device_id = lanes.device_id
            AND samples.sampled_ns BETWEEN lanes.began_unix_ns AND lanes.ended_unix_ns
),

shared AS (
    SELECT
        steps.run_id,
        steps.rank,
        steps.step,
        (ended.sampled_ns - greatest(ended.since_ns, steps.began_ns)) / 1e9 AS weight_s,
        ended.* EXCLUDE (run_id, rank)
    FROM ended
    ASOF INNER JOIN steps
        ON
            ended.run_id = steps.run_id
            AND ended.rank = steps.rank
            AND ended.sampled_ns > steps.began_ns
    WHERE ended.sampled_ns <= steps.ended_ns
    UNION ALL BY NAME
    SELECT -- the one sample that ends after the step and began in or before it
        steps.run_id,
        steps.rank,
        steps.step,
        (steps.ended_ns - greatest(samples.since_ns, steps.began_ns)) / 1e9 AS weight_s,
        samples.*
    FROM steps
    ASOF INNER JOIN samples
        ON
            steps.sample_pipeline_id = samples.pipeline_id
            AND steps.host = samples.host
            AND steps.device_id = samples.device_id
            AND steps.ended_ns < samples.sampled_ns
    WHERE samples.since_ns < steps.ended_ns
),

weighed AS (
    SELECT
        run_id,
        rank,
        step,
        sum(weight_s) AS observed_s,
        count(*) AS num_device_samples,
        max(spoken_s) AS resolution_s,
        sum(utilization_share * weight_s)
        / nullif(sum(weight_s) FILTER (WHERE utilization_share IS NOT NULL), 0)
            AS utilization_share,
        sum(sm_active_share * weight_s)
        / nullif(sum(weight_s) FILTER (WHERE sm_active_share IS NOT NULL), 0) AS sm_active_share,
        sum(tensor_active_share * weight_s)
        / nullif(sum(weight_s) FILTER (WHERE tensor_active_share IS NOT NULL), 0)
            AS tensor_active_share,
        sum(dram_active_share * weight_s)
        / nullif(sum(weight_s) FILTER (WHERE dram_active_share IS NOT NULL), 0)
            AS dram_active_share,
        max(memory_used_bytes) AS memory_used_bytes,
        sum(weight_s) FILTER (WHERE metered_energy_j IS NOT NULL) AS energy_observed_s,
        sum(metered_energy_j * weight_s / spoken_s) AS energy_j
    FROM shared
    GROUP BY run_id, rank, step
)

SELECT
    fact_step.run_id,
    fact_step.pipeline_id,
    fact_step.rank,
    fact_step.step,
    placed.host,
    placed.device_id,
    fact_step.window_s,
    coalesce(weighed.observed_s, 0) AS observed_s,
    coalesce(weighed.num_device_samples, 0) AS num_device_samples,
    weighed.resolution_s,
    fact_step.window_s >= weighed.resolution_s AS is_resolved,
    weighed.utilization_share,
    weighed.sm_active_share,
    weighed.tensor_active_share,
    weighed.dram_active_share,
    weighed.memory_used_bytes,
    weighed.energy_observed_s,
    weighed.energy_j / placed.num_ranks_on_device AS energy_j
FROM fact_step
INNER JOIN rank_device AS placed
    ON fact_step.run_id = placed.run_id AND fact_step.rank = placed.rank
LEFT JOIN weighed
    ON
        fact_step.run_id = weighed.run_id
        AND fact_step.rank = weighed.rank
        AND fact_step.step = weighed.step;
