-- step_noise: what one step tells of the noise of gradients, after McCandlish et al. (2018).
-- Grain: one row per run and step whose norms every rank measured, two ranks with targets at least.
-- Units: targets; gradients have none. Reads from: fact_step, dim_run. For ranks of unequal size, as
-- training/planning/noise_scale.py: both estimates are unbiased, so that one step may tell negative ones.
-- num_targets []: B, targets of all ranks
-- num_sequences []: Sequences of all ranks
-- noise []: Variance of one target's gradient, tr(S); only the dense parameters are in it
-- signal []: Squared norm of the true gradient, |G|^2
WITH measured AS (
    SELECT
        fact_step.run_id,
        fact_step.step,
        any_value(dim_run.world_size) AS world_size,
        count(*) AS num_ranks,
        count(*) FILTER (WHERE fact_step.num_targets > 0) AS num_filled,
        count(fact_step.rank_gradient_norm_sq) FILTER (WHERE fact_step.num_targets > 0)
            AS num_measured,
        sum(fact_step.num_targets) AS num_targets,
        sum(fact_step.num_sequences) AS num_sequences,
        sum(fact_step.num_targets * fact_step.rank_gradient_norm_sq) AS weighed,
        max(fact_step.gradient_norm_sq) AS norm_sq
    FROM fact_step
    INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
    WHERE fact_step.gradient_norm_sq IS NOT NULL
    GROUP BY fact_step.run_id, fact_step.step
)

SELECT
    run_id,
    step,
    CAST(num_targets AS BIGINT) AS num_targets,
    CAST(num_sequences AS BIGINT) AS num_sequences,
    (weighed - num_targets * norm_sq) / (num_filled - 1) AS noise,
    norm_sq - noise / num_targets AS signal
FROM measured
WHERE num_ranks = world_size AND num_filled >= 2 AND num_measured = num_filled;
