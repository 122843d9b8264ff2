-- run_noise: the gradient noise scale of a run, the batch size up to which more samples still pay.
-- Grain: one row per run with measured steps. Units: in the names.
-- Reads from: step_noise. Exponential averages of noise and signal are kept apart, 0.99 of the past
-- from one measured step to the next, and divided once. An estimate of the dense parameters, from
-- ranks that hold their samples at random; a run whose ranks were balanced by length has none.
-- num_noise_steps []: Measured steps
-- noise_scale_targets []: tr(S) / |G|^2; NULL while either average is not positive
-- noise_scale_sequences []: The same in sequences, of as many targets as theirs had
-- batch_sequences []: Mean global batch of the measured steps
-- steps_ratio []: Steps that this batch needs over the fewest possible, 1 + noise scale / batch
-- samples_ratio []: Samples that it needs over the fewest possible, 1 + batch / noise scale
WITH weighed AS (
    SELECT
        *,
        pow(
            0.99, count(*) OVER (PARTITION BY run_id) - row_number() OVER (
                PARTITION BY run_id ORDER BY step
            )
        ) AS weight
    FROM step_noise
),

averaged AS (
    SELECT
        run_id,
        count(*) AS num_noise_steps,
        sum(weight * noise ORDER BY step) / sum(weight ORDER BY step) AS noise,
        sum(weight * signal ORDER BY step) / sum(weight ORDER BY step) AS signal,
        sum(num_targets) / nullif(sum(num_sequences), 0) AS targets_per_sequence,
        avg(num_sequences) AS batch_sequences
    FROM weighed
    GROUP BY run_id
),

scaled AS (
    SELECT
        *,
        CASE WHEN noise > 0 AND signal > 0 THEN noise / signal END AS noise_scale_targets,
        noise_scale_targets / targets_per_sequence AS noise_scale_sequences
    FROM averaged
)

SELECT
    run_id,
    num_noise_steps,
    noise_scale_targets,
    noise_scale_sequences,
    batch_sequences,
    1 + noise_scale_sequences / batch_sequences AS steps_ratio,
    1 + batch_sequences / noise_scale_sequences AS samples_ratio
FROM scaled;
