-- collective_exposure: what each kind of collective cost that no compute covered.
-- Grain: one row per run, kind and label of collective. Units: rank-seconds; shares are 0..1.
-- Reads from: fact_collective, fact_step. Waiting and wire are summed over the collectives whose
-- arrivals are known on every rank, the rest of exposed_s is unsplit_comm_s.
-- num_collectives []: Collectives, each counted once over its ranks
-- num_rank_collectives []: The same, counted once per rank
-- num_timed []: Of num_rank_collectives, those whose end was recorded
-- collective_s [s]: Sum of the durations of these; NULL when no end was recorded
-- exposed_s [s]: Of that, outside compute; NULL when untold
-- straggler_wait_s [s]: Of exposed_s, before the last rank arrived
-- wire_s [s]: Of exposed_s, after that
-- unsplit_comm_s [s]: Of exposed_s, where the two were not told apart
-- sent_bytes [bytes]: Bytes of their inputs; NULL when untold
-- window_s [s]: Rank time of the steps of which any collective is known
-- exposed_share []: exposed_s / window_s
WITH told_steps AS (
    SELECT DISTINCT
        run_id,
        rank,
        step
    FROM fact_collective
),

windows AS (
    SELECT
        told_steps.run_id,
        sum(fact_step.window_s) AS window_s
    FROM told_steps
    INNER JOIN fact_step
        ON told_steps.run_id = fact_step.run_id
        AND told_steps.rank = fact_step.rank
        AND told_steps.step = fact_step.step
    GROUP BY told_steps.run_id
),

summed AS (
    SELECT
        run_id,
        any_value(pipeline_id) AS pipeline_id,
        kind,
        label,
        count(DISTINCT (step, collective)) AS num_collectives,
        count(*) AS num_rank_collectives,
        count(duration_s) AS num_timed,
        sum(duration_s) AS collective_s,
        sum(exposed_s) AS exposed_s,
        sum(straggler_wait_s) FILTER (WHERE wire_s IS NOT NULL) AS straggler_wait_s,
        sum(wire_s) FILTER (WHERE straggler_wait_s IS NOT NULL) AS wire_s,
        sum(exposed_s) FILTER (WHERE straggler_wait_s IS NULL OR wire_s IS NULL) AS unsplit_comm_s,
        CAST(sum(sent_bytes) AS BIGINT) AS sent_bytes
    FROM fact_collective
    GROUP BY run_id, kind, label
)

SELECT
    summed.*,
    windows.window_s,
    summed.exposed_s / nullif(windows.window_s, 0) AS exposed_share
FROM summed
LEFT JOIN windows ON summed.run_id = windows.run_id;
