-- run_energy: energy of a run's steps, and of a million samples where nearly all of it is known.
-- Grain: one row per run with a recorded step. Units: joules, rank-seconds, shares in 0..1.
-- Reads from: step_device, fact_step. NULL without a counter or power. Steps whose samples were purged
-- count as not observed.
-- window_s [s]: All recorded rank time
-- energy_observed_s [s]: Of it, the time whose energy is known
-- energy_observed_share []: The same as a share
-- energy_j [J]: Energy in the observed time
-- num_samples []: Sequences trained on
-- energy_per_1m_samples_j [J]: Energy of a million sequences; NULL when less than 95 % was observed
WITH sums AS (
    SELECT
        seen.run_id,
        sum(seen.window_s) AS window_s,
        sum(seen.energy_observed_s) AS energy_observed_s,
        sum(seen.energy_j) AS energy_j,
        CAST(sum(fact_step.num_sequences) AS BIGINT) AS num_samples
    FROM step_device AS seen
    INNER JOIN fact_step
        ON
            seen.run_id = fact_step.run_id
            AND seen.rank = fact_step.rank
            AND seen.step = fact_step.step
    GROUP BY seen.run_id
)

SELECT
    run_id,
    window_s,
    energy_observed_s,
    energy_observed_s / nullif(window_s, 0) AS energy_observed_share,
    energy_j,
    num_samples,
    CASE WHEN energy_observed_s >= 0.95 * window_s
        THEN 1e6 * energy_j / nullif(num_samples, 0)
    END AS energy_per_1m_samples_j
FROM sums;
