-- forecast_gain: what the best placement would be worth against random placement, by forecast.
-- Grain: one row per pipeline, data set, number of ranks and sequences per rank. Units: in the names;
-- shares are 0..1; money is in `currency`.
-- Reads from: fact_straggler_forecast. All placements of a row speak of the same batches.
-- random_straggler_share []: Straggler share of random placement with equal counts
-- best_placement []: Placement with the least straggler share
-- best_straggler_share []: Its straggler share
-- gain_share []: random_straggler_share - best_straggler_share
-- gain_cost_per_1000_device_hours []: gain_share x price of 1,000 device-hours
WITH placed AS (
    SELECT
        pipeline_id,
        dataset_id,
        num_ranks,
        sequences_per_rank,
        max(straggler_share) FILTER (WHERE placement = 'random_equal') AS random_straggler_share,
        arg_min(placement, straggler_share) AS best_placement,
        min(straggler_share) AS best_straggler_share,
        min(bound_share) AS bound_share,
        max(straggler_cost_per_1000_device_hours)
            FILTER (WHERE placement = 'random_equal') AS random_cost,
        min(straggler_cost_per_1000_device_hours) AS best_cost,
        any_value(currency) AS currency,
        any_value(instance_type) AS instance_type
    FROM fact_straggler_forecast
    GROUP BY pipeline_id, dataset_id, num_ranks, sequences_per_rank
)

SELECT
    pipeline_id,
    dataset_id,
    num_ranks,
    sequences_per_rank,
    random_straggler_share,
    best_placement,
    best_straggler_share,
    random_straggler_share - best_straggler_share AS gain_share,
    bound_share,
    CAST(random_cost - best_cost AS DECIMAL(18, 6)) AS gain_cost_per_1000_device_hours,
    currency,
    instance_type
FROM placed;
