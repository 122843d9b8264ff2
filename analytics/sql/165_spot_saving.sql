-- spot_saving: what spot devices saved against on-demand, after what preemptions made be redone.
-- Grain: one row per pipeline, pool and currency with an allocation on spot. Units: hours, money in
-- `currency`. Reads from: allocation, fact_pool_event, dim_price, dim_pool, attempt_redone.
-- The on-demand price is the last one that an allocation of the same pool had at that time; without
-- one, that of dim_price for the pool's instance type; both in the same currency, else NULL.
-- num_devices []: Devices that were allocated on spot
-- spot_hours [h]: Device-hours on spot
-- spot_cost []: What they cost
-- on_demand_cost []: The same hours at the on-demand price; NULL when some hour has none
-- saving_cost []: on_demand_cost - spot_cost
-- num_preemptions []: Spot devices that were taken away
-- redone_hours [h]: Device-hours of attempts that a preemption ended; on-demand needs them not
-- redone_cost []: redone_hours at the mean on-demand price of the spot hours
-- net_saving_cost []: saving_cost - redone_cost; negative when spot cost more
WITH on_demand AS (
    SELECT
        pool_id,
        currency,
        event_unix_ns,
        max(device_hour_cost) AS device_hour_cost
    FROM fact_pool_event
    WHERE event = 'allocated' AND purchase = 'on_demand' AND device_hour_cost IS NOT NULL
    GROUP BY pool_id, currency, event_unix_ns
),

listed AS (
    SELECT
        instance_type,
        currency,
        arg_max(device_hour_cost, price_date) AS device_hour_cost
    FROM dim_price
    GROUP BY instance_type, currency
),

spot AS (
    SELECT
        allocation.*,
        coalesce(on_demand.device_hour_cost, listed.device_hour_cost) AS on_demand_price
    FROM allocation
    ASOF LEFT JOIN on_demand
        ON allocation.pool_id = on_demand.pool_id
        AND allocation.currency = on_demand.currency
        AND allocation.began_unix_ns >= on_demand.event_unix_ns
    LEFT JOIN dim_pool ON allocation.pool_id = dim_pool.pool_id
    LEFT JOIN listed
        ON dim_pool.instance_type = listed.instance_type
        AND allocation.currency = listed.currency
    WHERE allocation.purchase = 'spot'
),

summed AS (
    SELECT
        pipeline_id,
        pool_id,
        currency,
        count(DISTINCT (host, device_id)) AS num_devices,
        sum(device_hours) AS spot_hours,
        sum(cost) AS spot_cost,
        CASE
            WHEN count(*) = count(on_demand_price)
                THEN sum(CAST(round(device_hours * on_demand_price, 6) AS DECIMAL(28, 6)))
        END AS on_demand_cost,
        count(*) FILTER (WHERE ended_by = 'preempted') AS num_preemptions
    FROM spot
    GROUP BY pipeline_id, pool_id, currency
),

redone AS (
    SELECT pipeline_id, sum(redone_s) / 3600 AS redone_hours
    FROM attempt_redone
    WHERE was_preempted
    GROUP BY pipeline_id
),

shared AS (
    SELECT
        summed.*,
        CASE
            WHEN sum(num_preemptions) OVER (PARTITION BY summed.pipeline_id) > 0
                THEN coalesce(redone.redone_hours, 0) * num_preemptions
                / sum(num_preemptions) OVER (PARTITION BY summed.pipeline_id)
            ELSE 0
        END AS redone_hours
    FROM summed
    LEFT JOIN redone ON summed.pipeline_id = redone.pipeline_id
),

valued AS (
    SELECT
        *,
        CAST(
            round(redone_hours * CAST(on_demand_cost AS DOUBLE) / nullif(spot_hours, 0), 6)
            AS DECIMAL(28, 6)
        ) AS redone_cost
    FROM shared
)

SELECT
    pipeline_id,
    pool_id,
    num_devices,
    spot_hours,
    CAST(spot_cost AS DECIMAL(28, 6)) AS spot_cost,
    CAST(on_demand_cost AS DECIMAL(28, 6)) AS on_demand_cost,
    CAST(on_demand_cost - spot_cost AS DECIMAL(28, 6)) AS saving_cost,
    num_preemptions,
    redone_hours,
    redone_cost,
    CAST(on_demand_cost - spot_cost - redone_cost AS DECIMAL(28, 6)) AS net_saving_cost,
    currency
FROM valued;
