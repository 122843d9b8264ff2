-- device_interval: every raw sample with the stretch of time that it speaks for.
-- Grain: one row per raw sample. Units: as in fact_device_sample.
-- Reads from: fact_device_sample, device_gap, device_gap_limit. The interval is the one that the source
-- tells, else the gap to the sample before, but no more than three median gaps: nothing is invented
-- over a hole. NULL for the first sample of a device whose source tells no intervals.
-- observed_s [s]: Stretch that ends with the sample and that it speaks for
SELECT
    *,
    interval_s AS observed_s
FROM fact_device_sample
WHERE interval_s IS NOT NULL
UNION ALL BY NAME
SELECT
    device_gap.* EXCLUDE (gap_s),
    CASE WHEN device_gap.gap_s IS NOT NULL -- least() passes over NULL
        THEN least(device_gap.gap_s, limits.gap_limit_s)
    END AS observed_s
FROM device_gap
INNER JOIN device_gap_limit AS limits USING (pipeline_id, host, device_id)
WHERE device_gap.interval_s IS NULL;
