-- run_mfu: model FLOPs of the real lengths over what the run's devices could do at most.
-- Grain: one row per run. Units: in the names. Reads from: dim_run, fact_step, rank_peak,
-- run_device_names.
-- Every rank of the run counts in the denominator, whether it recorded a step or not; ranks that share
-- a device share its peak. The peak is dense, of the run's precision; NULL with a reason when it is not
-- known: it is never guessed. Where the vendor's documents do not agree on it, peak_doubt says so.
-- model_flops []: Floating-point operations of the steps whose every recorded rank told them
-- told_s [s]: Time of these steps, the mean window of a step over its ranks
-- peak_flops_per_s [1/s]: Dense peak of all devices of the run together
-- peak_source []: The document that the peak is taken from, several in one line
-- peak_doubt []: What speaks against the peak in the run's precision; NULL when nothing does
-- mfu_share []: model_flops / (told_s x peak_flops_per_s)
-- mfu_reason []: Why there is no mfu_share; NULL when there is one
WITH steps AS (
    SELECT
        run_id,
        step,
        avg(window_s) AS step_s,
        sum(model_flops) AS model_flops
    FROM fact_step
    GROUP BY run_id, step
    HAVING count(model_flops) = count(*)
),

work AS (
    SELECT
        run_id,
        sum(step_s) AS told_s,
        sum(model_flops) AS model_flops
    FROM steps
    GROUP BY run_id
),

machines AS (
    SELECT
        run_id,
        CASE
            WHEN count(peak_flops_per_s) = count(*) THEN sum(peak_flops_per_s)
        END AS peak_flops_per_s,
        string_agg(DISTINCT peak_source, '; ' ORDER BY peak_source) AS peak_source,
        string_agg(DISTINCT peak_doubt, '; ' ORDER BY peak_doubt) AS peak_doubt
    FROM rank_peak
    GROUP BY run_id
),

joined AS (
    SELECT
        dim_run.run_id,
        dim_run.pipeline_id,
        dim_run.world_size,
        dim_run.device,
        dim_run.precision,
        run_device_names.device_name,
        run_device_names.num_told_ranks,
        work.model_flops,
        work.told_s,
        machines.peak_flops_per_s,
        machines.peak_source,
        machines.peak_doubt
    FROM dim_run
    LEFT JOIN run_device_names ON dim_run.run_id = run_device_names.run_id
    LEFT JOIN machines ON dim_run.run_id = machines.run_id
    LEFT JOIN work ON dim_run.run_id = work.run_id
),

reasoned AS (
    SELECT
        *,
        CASE
            WHEN device = 'cpu' THEN 'ranks on CPUs: no peak of a CPU is stated'
            WHEN model_flops IS NULL THEN 'no step told its model_flops'
            WHEN num_told_ranks IS NULL OR num_told_ranks < world_size OR device_name IS NULL
                THEN 'not every rank told its device'
            WHEN precision IS NULL THEN 'the run did not tell its precision'
            WHEN peak_flops_per_s IS NULL
                THEN concat('no dense peak of ', device_name, ' in ', precision, ' is known')
            WHEN told_s <= 0 THEN 'no time was recorded'
        END AS mfu_reason
    FROM joined
)

SELECT
    run_id,
    pipeline_id,
    world_size,
    device,
    precision,
    device_name,
    model_flops,
    told_s,
    peak_flops_per_s,
    peak_source,
    peak_doubt,
    CASE WHEN mfu_reason IS NULL THEN model_flops / (told_s * peak_flops_per_s) END AS mfu_share,
    mfu_reason
FROM reasoned;
