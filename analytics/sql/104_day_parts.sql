-- day_parts: where the time of each day's steps went, all runs together.
-- Grain: one row per day of the steps' start. Units: rank-seconds; shares are 0..1.
-- Reads from: rank_day_parts. A step that begins before midnight counts to that day as a whole.
-- date_key []: Day, in the configured time zone
-- num_runs []: Runs with a step in it
-- bubble_s [s]: Rank time that was not the ranks' own work
-- bubble_share []: bubble_s / window_s
-- overlap_share []: Share of communication time under compute; NULL without communication
WITH summed AS (
    SELECT
        date_key,
        count(DISTINCT run_id) AS num_runs,
        sum(COLUMNS('^(.*_s)$')) AS '\1',
        CAST(sum(COLUMNS('^(num_.*)$')) AS BIGINT) AS '\1'
    FROM rank_day_parts
    GROUP BY date_key
)

SELECT
    *,
    window_s - busy_s AS bubble_s,
    1 - busy_s / nullif(window_s, 0) AS bubble_share,
    overlapped_comm_s / nullif(comm_s, 0) AS overlap_share
FROM summed;
