-- rank_peak: how many operations a second a rank's device can do at most, in the run's precision.
-- Grain: one row per run and rank in dim_rank. Units: in the names.
-- Reads from: dim_rank, dim_run, rank_share, device_peak. Ranks that share a device share its peak. NULL for a device
-- or a precision whose dense peak is not known: it is never guessed.
-- peak_flops_per_s [1/s]: Dense peak that falls to this rank
-- peak_source []: The document that the peak is taken from
-- peak_doubt []: What speaks against the peak in the run's precision; NULL when nothing does
SELECT
    dim_rank.run_id,
    dim_rank.rank,
    CASE dim_run.precision
        WHEN 'fp32' THEN device_peak.fp32_flops_per_s
        WHEN 'tf32' THEN device_peak.tf32_flops_per_s
        WHEN 'bf16' THEN device_peak.bf16_flops_per_s
        WHEN 'fp16' THEN device_peak.fp16_flops_per_s
    END / rank_share.num_ranks_on_device AS peak_flops_per_s,
    device_peak.source AS peak_source,
    CASE
        WHEN list_contains(string_split(device_peak.not_confirmed, ', '), dim_run.precision)
            THEN device_peak.doubt
    END AS peak_doubt
FROM dim_rank
INNER JOIN dim_run ON dim_rank.run_id = dim_run.run_id
INNER JOIN rank_share
    ON dim_rank.run_id = rank_share.run_id AND dim_rank.rank = rank_share.rank
LEFT JOIN device_peak ON lower(dim_rank.device_name) = device_peak.device_name;
