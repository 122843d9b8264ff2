-- run_rank_parts: where the time of each rank of a run went.
-- Grain: one row per run and rank. Units: rank-seconds; shares are 0..1.
-- Reads from: rank_day_parts. A part that no step measured is NULL and counts 0 in the sum.
-- bubble_s [s]: Rank time that was not the ranks' own work
-- bubble_share []: bubble_s / window_s
-- overlap_share []: Share of communication time under compute; NULL without communication
WITH summed AS (
    SELECT
        run_id,
        any_value(pipeline_id) AS pipeline_id,
        rank,
        any_value(host) AS host,
        any_value(device_id) AS device_id,
        any_value(device_name) AS device_name,
        sum(COLUMNS('^(.*_s)$')) AS '\1',
        CAST(sum(COLUMNS('^(num_.*)$')) AS BIGINT) AS '\1'
    FROM rank_day_parts
    GROUP BY run_id, rank
)

SELECT
    *,
    window_s - busy_s AS bubble_s,
    1 - busy_s / nullif(window_s, 0) AS bubble_share,
    overlapped_comm_s / nullif(comm_s, 0) AS overlap_share
FROM summed;
