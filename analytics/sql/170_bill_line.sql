-- bill_line: every line of a bill, with what it is for, and whether a later export replaced it.
-- Grain: one row per line of an imported export. Units: hours, money in `currency`.
-- Reads from: fact_cost, dim_import, fact_pool_event, dim_pool, dim_price, time_zone.
-- An export holds the whole billing period of an account up to its day. Of two exports of the same
-- account and period the one that was imported later is in force. Without a billing period a line
-- belongs to the month (UTC) in which its charge began.
-- date_key []: Day in which the charged period began, in the configured time zone
-- is_in_force []: Whether no later export of the same account and period was imported
-- line_kind []: device (hours of machines), service (other usage), tax, credit or purchase
-- matched_pool_id []: Pool by its tag, else by the host that its resource names; NULL: untagged
-- device_hours [h]: Billed device-hours; NULL when the pool's devices per instance are unknown
WITH lines AS (
    SELECT
        fact_cost.*,
        dim_import.imported_unix_ns,
        coalesce(fact_cost.billing_account_id, '') AS account,
        coalesce(
            fact_cost.billing_period_began_unix_ns // 1000,
            epoch_us(date_trunc('month', make_timestamp(fact_cost.charge_began_unix_ns // 1000)))
        ) AS period_us
    FROM fact_cost
    LEFT JOIN dim_import ON fact_cost.import_id = dim_import.import_id
),

latest AS (
    SELECT
        account,
        period_us,
        arg_max(import_id, (coalesce(imported_unix_ns, 0), import_id)) AS import_id
    FROM lines
    GROUP BY account, period_us
),

host_pool AS (
    SELECT host, arg_max(pool_id, event_unix_ns) AS pool_id
    FROM fact_pool_event
    GROUP BY host
),

devices AS (
    SELECT instance_type, any_value(num_devices) AS num_devices
    FROM dim_price
    GROUP BY instance_type
    HAVING count(DISTINCT num_devices) = 1
),

matched AS (
    SELECT
        lines.*,
        CAST(
            (make_timestamp(lines.charge_began_unix_ns // 1000) AT TIME ZONE 'UTC')
            AT TIME ZONE time_zone.time_zone AS DATE
        ) AS date_key,
        lines.import_id = latest.import_id AS is_in_force,
        CASE
            WHEN lines.charge_category = 'Tax' THEN 'tax'
            WHEN lines.charge_category = 'Credit' THEN 'credit'
            WHEN lines.charge_category <> 'Usage' THEN 'purchase'
            WHEN
                lower(lines.consumed_unit) IN ('hours', 'hour', 'hrs', 'hr')
                AND (
                    lower(lines.service_name) LIKE '%elastic compute cloud%'
                    OR lower(lines.service_name) LIKE '%virtual machines%'
                    OR lower(lines.resource_type) IN ('instance', 'virtual machine')
                )
                THEN 'device'
            ELSE 'service'
        END AS line_kind,
        coalesce(lines.pool_id, host_pool.pool_id) AS matched_pool_id
    FROM lines
    CROSS JOIN time_zone
    INNER JOIN latest ON lines.account = latest.account AND lines.period_us = latest.period_us
    LEFT JOIN host_pool
        ON lower(parse_filename(lines.resource_id, FALSE, 'forward_slash')) = lower(host_pool.host)
)

SELECT
    matched.* EXCLUDE (imported_unix_ns, account, period_us),
    CASE
        WHEN matched.line_kind = 'device' THEN matched.consumed_quantity * devices.num_devices
    END AS device_hours
FROM matched
LEFT JOIN dim_pool ON matched.matched_pool_id = dim_pool.pool_id
LEFT JOIN devices
    ON devices.instance_type
    = CASE
        WHEN matched.resource_type IN (SELECT instance_type FROM devices)
            THEN matched.resource_type
        ELSE dim_pool.instance_type
    END;
