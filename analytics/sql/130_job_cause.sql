-- job_cause: the wall time of a whole job, restarts included, split over steps kept and every cause.
-- Grain: one row per pipeline with recorded spans and cause, all nine causes. Units: seconds, whole
-- nanoseconds beside them: these add up to the job's wall time exactly. Shares are 0..1.
-- Reads from: fact_step, fact_span, dim_attempt.
-- The job lasts from its first record to the end of its last one, on rank 0's clock. A moment belongs to
-- the first of these that covers it: a step that was kept, checkpoint, evaluation, registration, data,
-- start_up, disruption; else the time of an attempt that was not kept is redone as far as it recorded
-- steps, the time between two attempts is disruption, and the rest unknown. Reporting begins when the
-- job is over and reaches the warehouse with a later load: it is no part of the job, or that load would
-- change every share.
-- cause []: productive for steps that were kept, or what the time was lost to
-- cause_rank []: Fixed order of the causes, productive first
-- part_ns [ns]: Time of this cause
-- seconds [s]: The same in seconds
-- share []: Its share of the job's wall time
WITH jobs AS (
    SELECT DISTINCT pipeline_id
    FROM fact_span
    WHERE pipeline_id <> '' AND span_kind <> 'reporting'
),

intervals AS (
    SELECT
        pipeline_id,
        'productive' AS kind,
        started_unix_ns AS began_ns,
        started_unix_ns + CAST(round(window_s * 1e9) AS BIGINT) AS ended_ns
    FROM fact_step
    WHERE rank = 0
    UNION ALL
    SELECT
        pipeline_id,
        span_kind AS kind,
        began_unix_ns AS began_ns,
        began_unix_ns + CAST(round(duration_s * 1e9) AS BIGINT) AS ended_ns
    FROM fact_span
    WHERE rank = 0 AND span_kind <> 'reporting'
    UNION ALL
    SELECT
        pipeline_id,
        CASE WHEN is_kept THEN 'kept' ELSE 'lost' END AS kind,
        began_unix_ns AS began_ns,
        greatest(began_unix_ns, ended_unix_ns) AS ended_ns
    FROM dim_attempt
    WHERE began_unix_ns IS NOT NULL AND ended_unix_ns IS NOT NULL
),

edges AS (
    SELECT
        pipeline_id,
        kind,
        began_ns AS at_ns,
        1 AS opened,
        0 AS closed
    FROM intervals
    WHERE pipeline_id IN (FROM jobs)
    UNION ALL
    SELECT
        pipeline_id,
        kind,
        ended_ns AS at_ns,
        0 AS opened,
        1 AS closed
    FROM intervals
    WHERE pipeline_id IN (FROM jobs)
),

moments AS (
    SELECT
        pipeline_id,
        at_ns,
        sum(opened - closed) FILTER (WHERE kind = 'productive') AS productive,
        sum(opened - closed) FILTER (WHERE kind = 'checkpoint') AS checkpoint,
        sum(opened - closed) FILTER (WHERE kind = 'evaluation') AS evaluation,
        sum(opened - closed) FILTER (WHERE kind = 'registration') AS registration,
        sum(opened - closed) FILTER (WHERE kind = 'data') AS data,
        sum(opened - closed) FILTER (WHERE kind = 'start_up') AS start_up,
        sum(opened - closed) FILTER (WHERE kind = 'disruption') AS disruption,
        sum(opened - closed) FILTER (WHERE kind = 'lost') AS lost,
        sum(opened - closed) FILTER (WHERE kind = 'kept') AS kept,
        sum(opened) FILTER (WHERE kind IN ('lost', 'kept')) AS begun
    FROM edges
    GROUP BY pipeline_id, at_ns
),

open AS (
    SELECT
        pipeline_id,
        lead(at_ns) OVER up_to_now - at_ns AS part_ns,
        sum(productive) OVER up_to_now AS productive,
        sum(checkpoint) OVER up_to_now AS checkpoint,
        sum(evaluation) OVER up_to_now AS evaluation,
        sum(registration) OVER up_to_now AS registration,
        sum(data) OVER up_to_now AS data,
        sum(start_up) OVER up_to_now AS start_up,
        sum(disruption) OVER up_to_now AS disruption,
        sum(lost) OVER up_to_now AS lost,
        sum(kept) OVER up_to_now AS kept,
        sum(begun) OVER up_to_now AS begun,
        sum(begun) OVER (PARTITION BY pipeline_id) AS all_begun
    FROM moments
    WINDOW up_to_now AS (PARTITION BY pipeline_id ORDER BY at_ns)
),

swept AS (
    SELECT
        pipeline_id,
        CASE
            WHEN productive > 0 THEN 'productive'
            WHEN checkpoint > 0 THEN 'checkpoint'
            WHEN evaluation > 0 THEN 'evaluation'
            WHEN registration > 0 THEN 'registration'
            WHEN data > 0 THEN 'data'
            WHEN start_up > 0 THEN 'start_up'
            WHEN disruption > 0 THEN 'disruption'
            WHEN lost > 0 THEN 'lost'
            WHEN kept > 0 THEN 'unknown'
            WHEN begun < all_begun THEN 'disruption'
            ELSE 'unknown'
        END AS kind,
        CAST(sum(part_ns) AS BIGINT) AS part_ns
    FROM open
    WHERE part_ns IS NOT NULL
    GROUP BY ALL
),

recorded_again AS (
    SELECT
        pipeline_id,
        CAST(sum(round(window_s / num_ranks * 1e9)) AS BIGINT) AS redone_ns
    FROM dim_attempt
    WHERE NOT is_kept AND num_ranks > 0
    GROUP BY pipeline_id
),

lost_time AS (
    SELECT
        swept.pipeline_id,
        swept.part_ns,
        least(swept.part_ns, coalesce(recorded_again.redone_ns, 0)) AS redone_ns
    FROM swept
    LEFT JOIN recorded_again ON swept.pipeline_id = recorded_again.pipeline_id
    WHERE swept.kind = 'lost'
),

parts AS (
    SELECT
        pipeline_id,
        kind AS cause,
        part_ns
    FROM swept
    WHERE kind <> 'lost'
    UNION ALL
    SELECT
        pipeline_id,
        'redone' AS cause,
        redone_ns AS part_ns
    FROM lost_time
    UNION ALL
    SELECT
        pipeline_id,
        'unknown' AS cause,
        part_ns - redone_ns AS part_ns
    FROM lost_time
),

causes AS (
    SELECT
        unnest([
            'productive', 'start_up', 'data', 'checkpoint', 'evaluation', 'registration',
            'disruption', 'redone', 'unknown'
        ]) AS cause,
        unnest(range(1, 10)) AS cause_rank
),

summed AS (
    SELECT
        jobs.pipeline_id,
        causes.cause,
        causes.cause_rank,
        CAST(coalesce(sum(parts.part_ns), 0) AS BIGINT) AS part_ns
    FROM jobs
    CROSS JOIN causes
    LEFT JOIN parts
        ON jobs.pipeline_id = parts.pipeline_id AND causes.cause = parts.cause
    GROUP BY jobs.pipeline_id, causes.cause, causes.cause_rank
)

SELECT
    pipeline_id,
    cause,
    cause_rank,
    part_ns,
    part_ns / 1e9 AS seconds,
    part_ns / nullif(sum(part_ns) OVER (PARTITION BY pipeline_id), 0) AS share
FROM summed;
