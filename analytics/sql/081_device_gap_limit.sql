-- device_gap_limit: the longest stretch before a sample that the sample speaks for, where its source
-- does not tell intervals: three times the median gap. What lies further back was not observed.
-- Grain: one row per device that needs it. Units: seconds.
-- Reads from: device_gap, dim_device_retention (a limit that a purge has used stays).
-- gap_limit_s [s]: Longest gap that counts as observed
WITH medians AS (
    SELECT
        pipeline_id,
        host,
        device_id,
        3 * median(gap_s) AS gap_limit_s
    FROM device_gap
    GROUP BY pipeline_id, host, device_id
)

SELECT
    medians.pipeline_id,
    medians.host,
    medians.device_id,
    coalesce(kept.gap_limit_s, medians.gap_limit_s) AS gap_limit_s
FROM medians
LEFT JOIN dim_device_retention AS kept USING (pipeline_id, host, device_id);
