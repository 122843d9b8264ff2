-- allocation_day: every allocation cut at the ends of days, its cost shared out exactly.
-- Grain: one row per allocation and day. Units: ns, hours, money in `currency`.
-- Reads from: allocation, dim_date. The costs of the days of an allocation add up to its cost
-- exactly, and to those of its minutes: a day's is the cost until its end less that until its start,
-- each rounded down to a micro-unit.
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
        CAST(
            all_micros * (ended_unix_ns - allocated_unix_ns) // all_ns
            - all_micros * (began_unix_ns - allocated_unix_ns) // all_ns AS DECIMAL(24, 0)
        ) * 0.000001 AS DECIMAL(18, 6)
    ) AS cost
FROM parts;
