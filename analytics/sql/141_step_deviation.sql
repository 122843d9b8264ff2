-- step_deviation: how many steps of a run took far longer than its usual one.
-- Grain: one row per run with a step that every rank recorded. Units: seconds, unless the name says so.
-- Reads from: step_balance. A step is anomalous when it is longer than the median + 3 MAD, MAD being the
-- median of the steps' distances from the median.
-- num_complete_steps []: Steps that every rank recorded
-- median_step_s [s]: Their median
-- mad_step_s [s]: Median of their distances from it
-- num_anomalous_steps []: Steps longer than median_step_s + 3 x mad_step_s
-- anomalous_share []: num_anomalous_steps / num_complete_steps
-- anomalous_s [s]: Time of anomalous steps beyond the median
-- longest_step_s [s]: The longest step
WITH usual AS (
    SELECT
        run_id,
        any_value(pipeline_id) AS pipeline_id,
        count(*) AS num_complete_steps,
        median(step_s) AS median_step_s,
        mad(step_s) AS mad_step_s,
        max(step_s) AS longest_step_s
    FROM step_balance
    WHERE is_complete
    GROUP BY run_id
)

SELECT
    usual.run_id,
    any_value(usual.pipeline_id) AS pipeline_id,
    any_value(usual.num_complete_steps) AS num_complete_steps,
    any_value(usual.median_step_s) AS median_step_s,
    any_value(usual.mad_step_s) AS mad_step_s,
    count(long.step) AS num_anomalous_steps,
    count(long.step) / any_value(usual.num_complete_steps) AS anomalous_share,
    coalesce(sum(long.step_s - usual.median_step_s), 0) AS anomalous_s,
    any_value(usual.longest_step_s) AS longest_step_s
FROM usual
LEFT JOIN step_balance AS long
    ON usual.run_id = long.run_id
    AND long.is_complete
    AND long.step_s > usual.median_step_s + 3 * usual.mad_step_s
GROUP BY usual.run_id;
