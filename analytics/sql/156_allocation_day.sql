-- allocation_day: every allocation cut at the ends of days, its cost shared out exactly.
-- Grain: one row per allocation and day. Units: ns, hours, money in `currency`.
-- Reads from: allocation, dim_date. The costs of the days of an allocation add up to its cost:
-- whole micro-units by largest remainder, the earlier day first.
-- date_key []: The day, in the configured time zone
-- began_unix_ns [ns]: Start of the part of the allocation that lies in this day, UTC
-- ended_unix_ns [ns]: End of that part, UTC
-- allocated_unix_ns [ns]: Start of the whole allocation, UTC
-- device_hours [h]: Length of the part
-- cost []: The part's share of the cost of the allocation
WITH parts AS (
    SELECT
        allocation.* EXCLUDE (began_unix_ns, ended_unix_ns),
        allocation.began_unix_ns AS allocated_unix_ns,
        dim_date.date_key,
        greatest(allocation.began_unix_ns, dim_date.began_unix_ns) AS began_unix_ns,
        least(allocation.ended_unix_ns, dim_date.ended_unix_ns) AS ended_unix_ns,
        CAST(allocation.ended_unix_ns - allocation.began_unix_ns AS HUGEINT) AS all_ns,
        CAST(CAST(allocation.cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) AS all_micros
    FROM allocation
    INNER JOIN dim_date
        ON allocation.began_unix_ns < dim_date.ended_unix_ns
        AND allocation.ended_unix_ns > dim_date.began_unix_ns
    WHERE allocation.ended_unix_ns > allocation.began_unix_ns
),

floored AS (
    SELECT
        *,
        all_micros * (ended_unix_ns - began_unix_ns) // all_ns AS floor_micros,
        all_micros * (ended_unix_ns - began_unix_ns) % all_ns AS remainder
    FROM parts
),

ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY host, device_id, pool_id, allocated_unix_ns
            ORDER BY remainder DESC, date_key
        ) AS place,
        all_micros - CAST(
            sum(floor_micros) OVER (PARTITION BY host, device_id, pool_id, allocated_unix_ns)
            AS HUGEINT
        ) AS num_left
    FROM floored
)

SELECT
    pool_id,
    team_id,
    host,
    device_id,
    pipeline_id,
    date_key,
    began_unix_ns,
    ended_unix_ns,
    allocated_unix_ns,
    purchase,
    (ended_unix_ns - began_unix_ns) / 3.6e12 AS device_hours,
    device_hour_cost,
    currency,
    CAST(
        CAST(floor_micros + CASE WHEN place <= num_left THEN 1 ELSE 0 END AS DECIMAL(24, 0))
        * 0.000001 AS DECIMAL(18, 6)
    ) AS cost
FROM ranked;
