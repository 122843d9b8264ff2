-- run_device_parts: where the time of each device that a run was given went.
-- Grain: one row per run, host and device. Units: rank-seconds; shares are 0..1.
-- Reads from: rank_day_parts. Only devices that a rank of the run names:
-- others of the same host are not the run's. NULL for ranks that did not tell their device.
-- num_ranks []: Ranks that ran on the device
-- bubble_s [s]: Rank time that was not the ranks' own work
-- bubble_share []: bubble_s / window_s
-- overlap_share []: Share of communication time under compute; NULL without communication
WITH summed AS (
    SELECT
        run_id,
        any_value(pipeline_id) AS pipeline_id,
        host,
        device_id,
        any_value(device_name) AS device_name,
        count(DISTINCT rank) AS num_ranks,
        sum(COLUMNS('^(.*_s)$')) AS '\1',
        CAST(sum(COLUMNS('^(num_.*)$')) AS BIGINT) AS '\1'
    FROM rank_day_parts
    GROUP BY run_id, host, device_id
)

SELECT
    *,
    window_s - busy_s AS bubble_s,
    1 - busy_s / nullif(window_s, 0) AS bubble_share,
    overlapped_comm_s / nullif(comm_s, 0) AS overlap_share
FROM summed;
