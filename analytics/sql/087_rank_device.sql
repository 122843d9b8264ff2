-- rank_device: which device a rank of a run worked on, and whose samples of it speak for the run.
-- Grain: one row per run and rank with a recorded step. Units: counts.
-- Reads from: fact_step, dim_run, dim_rank, fact_device_sample, fact_device_minute. Where dim_rank does not tell the device: the
-- host's processor for a run on CPU, else the host's only accelerator; among several none is guessed.
-- device_id []: The device; NULL when it is not known
-- sample_pipeline_id []: The pipeline whose samples are used: the run's own if it has any, else imported
-- num_ranks_on_device []: Ranks of the run that share the device
WITH ranks AS (
    SELECT
        run_id,
        rank,
        min(started_unix_ns) AS began_unix_ns,
        max(started_unix_ns + CAST(round(window_s * 1e9) AS BIGINT)) AS ended_unix_ns
    FROM fact_step
    GROUP BY run_id, rank
),

devices AS (
    SELECT DISTINCT
        pipeline_id,
        host,
        device_id
    FROM fact_device_sample
    UNION
    SELECT
        pipeline_id,
        host,
        device_id
    FROM fact_device_minute
),

lone AS (
    SELECT
        host,
        min(device_id) AS device_id
    FROM devices
    WHERE device_id <> 'cpu'
    GROUP BY host
    HAVING count(DISTINCT device_id) = 1
),

placed AS (
    SELECT
        ranks.*,
        dim_run.pipeline_id,
        coalesce(dim_rank.host, dim_run.host) AS host,
        coalesce(
            dim_rank.device_id,
            CASE WHEN dim_run.device = 'cpu' THEN 'cpu' ELSE lone.device_id END
        ) AS device_id
    FROM ranks
    INNER JOIN dim_run ON ranks.run_id = dim_run.run_id
    LEFT JOIN dim_rank ON ranks.run_id = dim_rank.run_id AND ranks.rank = dim_rank.rank
    LEFT JOIN lone ON coalesce(dim_rank.host, dim_run.host) = lone.host
)

SELECT
    placed.*,
    coalesce(devices.pipeline_id, '') AS sample_pipeline_id,
    count(*) OVER (
        PARTITION BY placed.run_id, placed.host, placed.device_id
    ) AS num_ranks_on_device
FROM placed
LEFT JOIN devices
    ON
        placed.pipeline_id = devices.pipeline_id
        AND placed.host = devices.host
        AND placed.device_id = devices.device_id;
