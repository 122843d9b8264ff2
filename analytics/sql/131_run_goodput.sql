-- run_goodput: how much of a job's wall time went into steps that were kept, and where the rest went.
-- Grain: one row per pipeline with a run; all its arms share the job's time. Units: seconds, shares in
-- 0..1. Reads from: dim_run, fact_step, fact_span, job_cause. NULL for jobs that recorded no spans.
-- wall_s [s]: From the first record of the job to the end of the last, restarts included
-- goodput_share []: Share of wall_s in steps that were kept
-- start_up_share []: Share of wall_s in start-up
-- data_share []: Share of wall_s in getting data ready, outside of steps
-- checkpoint_share []: Share of wall_s in saving and restoring
-- evaluation_share []: Share of wall_s in evaluation
-- registration_share []: Share of wall_s in registering the model
-- disruption_share []: Share of wall_s in which the job was down
-- redone_share []: Share of wall_s in steps of attempts that were not kept
-- unknown_share []: Share of wall_s that nothing explains
-- bubble_share []: Share of the kept steps' rank time that was not the ranks' own work
-- effective_share []: goodput_share x (1 - bubble_share)
-- reporting_s [s]: Loading, publishing and exporting after the job, not in wall_s; NULL until loaded
WITH jobs AS (
    SELECT DISTINCT pipeline_id
    FROM dim_run
),

steps AS (
    SELECT
        pipeline_id,
        1 - sum(busy_s) / nullif(sum(window_s), 0) AS bubble_share
    FROM fact_step
    GROUP BY pipeline_id
),

reports AS (
    SELECT
        pipeline_id,
        sum(duration_s) AS reporting_s
    FROM fact_span
    WHERE rank = 0 AND span_kind = 'reporting'
    GROUP BY pipeline_id
),

shares AS (
    SELECT
        pipeline_id,
        CAST(sum(part_ns) AS BIGINT) / 1e9 AS wall_s,
        max(share) FILTER (WHERE cause = 'productive') AS goodput_share,
        max(share) FILTER (WHERE cause = 'start_up') AS start_up_share,
        max(share) FILTER (WHERE cause = 'data') AS data_share,
        max(share) FILTER (WHERE cause = 'checkpoint') AS checkpoint_share,
        max(share) FILTER (WHERE cause = 'evaluation') AS evaluation_share,
        max(share) FILTER (WHERE cause = 'registration') AS registration_share,
        max(share) FILTER (WHERE cause = 'disruption') AS disruption_share,
        max(share) FILTER (WHERE cause = 'redone') AS redone_share,
        max(share) FILTER (WHERE cause = 'unknown') AS unknown_share
    FROM job_cause
    GROUP BY pipeline_id
)

SELECT
    jobs.pipeline_id,
    shares.* EXCLUDE (pipeline_id),
    steps.bubble_share,
    shares.goodput_share * (1 - steps.bubble_share) AS effective_share,
    reports.reporting_s
FROM jobs
LEFT JOIN shares ON jobs.pipeline_id = shares.pipeline_id
LEFT JOIN steps ON jobs.pipeline_id = steps.pipeline_id
LEFT JOIN reports ON jobs.pipeline_id = reports.pipeline_id;
