-- run_device_names: which devices a run's ranks named, for whatever tells runs apart by them.
-- Grain: one row per run with a rank that told of itself. Units: counts. Reads from: dim_rank.
-- num_told_ranks []: Ranks that told of themselves, with or without a device
-- device_name []: Model of the ranks' devices, the several ones of a mixed run in one line; NULL when untold
SELECT
    run_id,
    count(*) AS num_told_ranks,
    string_agg(DISTINCT device_name, ', ' ORDER BY device_name) AS device_name
FROM dim_rank
GROUP BY run_id;
