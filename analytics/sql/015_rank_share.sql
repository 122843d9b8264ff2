-- rank_share: how much of a device is a rank's, since ranks that share one pay for it once.
-- Grain: one row per run and rank in dim_rank. Units: counts, shares in 0..1.
-- Reads from: dim_rank, dim_run.
-- num_ranks_on_device []: Ranks of the run on the same device; 1 where the device is not told
-- device_share []: 1 / num_ranks_on_device; 1 on CPU, where each rank stands for a device of the price list
SELECT
    dim_rank.run_id,
    dim_rank.rank,
    count(*) OVER device AS num_ranks_on_device,
    CASE WHEN dim_run.device = 'cpu' THEN 1 ELSE 1 / count(*) OVER device END AS device_share
FROM dim_rank
INNER JOIN dim_run ON dim_rank.run_id = dim_run.run_id
WINDOW device AS (
    PARTITION BY
        dim_rank.run_id,
        dim_rank.host,
        coalesce(dim_rank.device_id, 'rank ' || dim_rank.rank)
);
