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
WITH lanes AS ( -- a number for each rank of a run: the joins below compare it instead of names
    SELECT
        *,
        row_number() OVER (ORDER BY run_id, rank) AS lane
    FROM rank_device
),

steps AS (
    SELECT
        lanes.lane,
        fact_step.step,
        fact_step.started_unix_ns AS began_ns,
        fact_step.started_unix_ns
        + CAST(round(fact_step.window_s * 1e9) AS BIGINT) AS ended_ns
    FROM fact_step
    INNER JOIN lanes ON fact_step.run_id = lanes.run_id AND fact_step.rank = lanes.rank
),

-- the samples that speak for any of a rank's time
samples AS MATERIALIZED (
    SELECT
        lanes.lane,
        seen.sampled_ns,
        seen.since_ns,
        seen.observed_s AS spoken_s,
        seen.utilization_share,
        seen.sm_active_share,
        seen.tensor_active_share,
        seen.dram_active_share,
        seen.memory_used_bytes,
        seen.metered_energy_j
    FROM (
        SELECT
            *,
            sampled_unix_ns AS sampled_ns,
            sampled_unix_ns - CAST(round(observed_s * 1e9) AS BIGINT) AS since_ns
        FROM device_sample_energy
        WHERE observed_s > 0
    ) AS seen
    INNER JOIN lanes
        ON
            seen.pipeline_id = lanes.sample_pipeline_id
            AND seen.host = lanes.host
            AND seen.device_id = lanes.device_id
            AND seen.sampled_ns > lanes.began_unix_ns
            AND seen.since_ns < lanes.ended_unix_ns
),

shared AS (
    SELECT -- each sample beside the step that it may end in
        steps.step,
        (samples.sampled_ns - greatest(samples.since_ns, steps.began_ns)) / 1e9 AS weight_s,
        samples.*
    FROM samples
    ASOF INNER JOIN steps
        ON samples.lane = steps.lane AND samples.sampled_ns > steps.began_ns
    WHERE samples.sampled_ns <= steps.ended_ns
    UNION ALL BY NAME
    SELECT -- the one sample that ends after the step and began in or before it
        steps.step,
        (steps.ended_ns - greatest(samples.since_ns, steps.began_ns)) / 1e9 AS weight_s,
        samples.*
    FROM steps
    ASOF INNER JOIN samples
        ON steps.lane = samples.lane AND steps.ended_ns < samples.sampled_ns
    WHERE samples.since_ns < steps.ended_ns
),

weighed AS (
    SELECT
        lane,
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
    GROUP BY lane, step
)

SELECT
    fact_step.run_id,
    fact_step.pipeline_id,
    fact_step.rank,
    fact_step.step,
    lanes.host,
    lanes.device_id,
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
    weighed.energy_j / lanes.num_ranks_on_device AS energy_j
FROM fact_step
INNER JOIN lanes ON fact_step.run_id = lanes.run_id AND fact_step.rank = lanes.rank
LEFT JOIN weighed ON lanes.lane = weighed.lane AND fact_step.step = weighed.step;
