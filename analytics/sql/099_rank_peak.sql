-- rank_peak: how many operations a second a rank's device can do at most, in the run's precision.
-- Grain: one row per run and rank in dim_rank. Units: in the names.
-- Reads from: dim_rank, dim_run, device_peak. Ranks that share a device share its peak. NULL for a device
-- or a precision whose dense peak is not known: it is never guessed.
-- peak_flops_per_s [1/s]: Dense peak that falls to this rank
SELECT
    dim_rank.run_id,
    dim_rank.rank,
    CASE dim_run.precision
        WHEN 'fp32' THEN device_peak.fp32_flops_per_s
        WHEN 'tf32' THEN device_peak.tf32_flops_per_s
        WHEN 'bf16' THEN device_peak.bf16_flops_per_s
        WHEN 'fp16' THEN device_peak.fp16_flops_per_s
    END / count(*) OVER (
        PARTITION BY
            dim_rank.run_id,
            dim_rank.host,
            coalesce(dim_rank.device_id, 'rank ' || dim_rank.rank)
    ) AS peak_flops_per_s
FROM dim_rank
INNER JOIN dim_run ON dim_rank.run_id = dim_run.run_id
LEFT JOIN device_peak ON lower(dim_rank.device_name) = device_peak.device_name;
