-- dim_date: every day of the years that the facts lie in, as the configured time zone counts days.
-- Grain: one row per day, whole years without a gap; empty without any fact. Units: instants in ns.
-- Reads from: time_zone, dim_run, fact_step, fact_span, fact_device_sample, fact_device_minute,
-- fact_pool_event, allocation, fact_cost.
-- date_key []: The day
-- year_number []: Its year
-- quarter_number []: Its quarter, 1 to 4
-- month_number []: Its month, 1 to 12
-- day_number []: Its day of the month
-- iso_week_number []: Its week by ISO 8601
-- weekday_number []: Its day of the week by ISO 8601, Monday 1
-- began_unix_ns [ns]: Start of the day, UTC
-- ended_unix_ns [ns]: Its end; a day of a clock change has 23 or 25 hours
-- time_zone []: Zone in which the day begins
WITH seen AS (
    SELECT min(started_unix_ns) AS first_ns, max(started_unix_ns) AS last_ns FROM dim_run
    UNION ALL
    SELECT
        min(started_unix_ns),
        max(started_unix_ns + CAST(round(window_s * 1e9) AS BIGINT))
    FROM fact_step
    UNION ALL
    SELECT
        min(began_unix_ns),
        max(began_unix_ns + CAST(round(duration_s * 1e9) AS BIGINT))
    FROM fact_span
    UNION ALL
    SELECT min(sampled_unix_ns), max(sampled_unix_ns) FROM fact_device_sample
    UNION ALL
    SELECT min(minute_unix_ns), max(minute_unix_ns) FROM fact_device_minute
    UNION ALL
    SELECT min(event_unix_ns), max(event_unix_ns) FROM fact_pool_event
    UNION ALL
    SELECT min(began_unix_ns), max(ended_unix_ns) FROM allocation
    UNION ALL
    SELECT min(charge_began_unix_ns), max(charge_began_unix_ns) FROM fact_cost
),

years AS (
    SELECT
        time_zone.time_zone,
        year(
            (make_timestamp(min(seen.first_ns) // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE time_zone.time_zone
        ) AS first_year,
        year(
            (make_timestamp(max(seen.last_ns) // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE time_zone.time_zone
        ) AS last_year
    FROM seen
    CROSS JOIN time_zone
    GROUP BY time_zone.time_zone
),

days AS (
    SELECT
        time_zone,
        CAST(
            unnest(
                generate_series(
                    make_date(first_year, 1, 1), make_date(last_year, 12, 31), INTERVAL 1 DAY
                )
            ) AS DATE
        ) AS date_key
    FROM years
)

SELECT
    date_key,
    year(date_key) AS year_number,
    quarter(date_key) AS quarter_number,
    month(date_key) AS month_number,
    day(date_key) AS day_number,
    weekofyear(date_key) AS iso_week_number,
    isodow(date_key) AS weekday_number,
    epoch_us(CAST(date_key AS TIMESTAMP) AT TIME ZONE time_zone) * 1000 AS began_unix_ns,
    epoch_us(CAST(date_key + 1 AS TIMESTAMP) AT TIME ZONE time_zone) * 1000 AS ended_unix_ns,
    time_zone
FROM days;
