-- bill_vs_estimate: what was billed beside what was estimated, and what the difference is made of.
-- Grain: one row per scope, day, its pool or run, and currency. Units: hours, money in `currency`.
-- Reads from: bill_line, estimate_day. Every line in force and every estimate is in both scopes once;
-- what names no pool or run has its row with an empty scope_id. Where a day's bill and estimate are
-- in two currencies nothing is summed: is_comparable is false, and the difference NULL.
-- The parts add up to difference_cost exactly. negotiated_discount_cost and commitment_discount_cost
-- tell of the price part; NULL when a line of devices lacks the figure.
-- scope []: pool or run: what the row is about
-- scope_id []: The pool or pipeline; NULL for what names none
-- estimate_hours [h]: Device-hours that were recorded
-- estimate_cost []: What was estimated
-- billed_hours [h]: Device-hours that were billed; NULL when devices per instance are unknown
-- billed_cost []: What was billed, all lines
-- is_comparable []: Whether bill and estimate are in one currency
-- difference_cost []: billed_cost - estimate_cost
-- time_cost []: Hours billed beyond those recorded, at the estimate's mean price: idle, start-up
-- price_cost []: Billed hours x difference of the prices: discounts and changes of price
-- unsplit_cost []: Devices' difference where hours are unknown, so that time and price stay one
-- untagged_cost []: Devices' difference that belongs to no pool or run
-- service_cost []: Storage, network and other services
-- tax_cost []: Taxes
-- credit_cost []: Credits, mostly negative
-- purchase_cost []: Commitments that were bought, and adjustments
-- rounding_cost []: What rounding the parts to six places leaves
-- negotiated_discount_cost []: Of the devices: list price less contracted price
-- commitment_discount_cost []: Of the devices: contracted price less effective price
WITH lines AS MATERIALIZED (
    SELECT * FROM bill_line WHERE is_in_force
),

days AS MATERIALIZED (
    SELECT * FROM estimate_day
),

billed AS (
    SELECT 'pool' AS scope, matched_pool_id AS scope_id, * EXCLUDE (pool_id, pipeline_id)
    FROM lines
    UNION ALL
    SELECT 'run', pipeline_id, * EXCLUDE (pool_id, pipeline_id)
    FROM lines
),

bill AS (
    SELECT
        scope,
        scope_id,
        date_key,
        currency,
        sum(billed_cost) AS billed_cost,
        coalesce(sum(billed_cost) FILTER (WHERE line_kind = 'device'), 0) AS device_cost,
        coalesce(sum(billed_cost) FILTER (WHERE line_kind = 'service'), 0) AS service_cost,
        coalesce(sum(billed_cost) FILTER (WHERE line_kind = 'tax'), 0) AS tax_cost,
        coalesce(sum(billed_cost) FILTER (WHERE line_kind = 'credit'), 0) AS credit_cost,
        coalesce(sum(billed_cost) FILTER (WHERE line_kind = 'purchase'), 0) AS purchase_cost,
        count(*) FILTER (WHERE line_kind = 'device') AS num_device_lines,
        CASE
            WHEN count(*) FILTER (WHERE line_kind = 'device') = count(device_hours)
                THEN coalesce(sum(device_hours), 0)
        END AS billed_hours,
        CASE
            WHEN
                count(*) FILTER (WHERE line_kind = 'device')
                = count(*) FILTER (
                    WHERE line_kind = 'device' AND list_cost + contracted_cost IS NOT NULL
                )
                THEN sum(list_cost - contracted_cost) FILTER (WHERE line_kind = 'device')
        END AS negotiated_discount_cost,
        CASE
            WHEN
                count(*) FILTER (WHERE line_kind = 'device')
                = count(*) FILTER (
                    WHERE line_kind = 'device' AND contracted_cost + effective_cost IS NOT NULL
                )
                THEN sum(contracted_cost - effective_cost) FILTER (WHERE line_kind = 'device')
        END AS commitment_discount_cost
    FROM billed
    GROUP BY scope, scope_id, date_key, currency
),

estimated AS (
    SELECT 'pool' AS scope, pool_id AS scope_id, date_key, currency, device_hours, estimate_cost
    FROM days
    UNION ALL
    SELECT 'run', pipeline_id, date_key, currency, device_hours, estimate_cost
    FROM days
),

estimate AS (
    SELECT
        scope,
        scope_id,
        date_key,
        currency,
        sum(device_hours) AS estimate_hours,
        CASE WHEN count(*) = count(estimate_cost) THEN sum(estimate_cost) END AS estimate_cost
    FROM estimated
    GROUP BY scope, scope_id, date_key, currency
),

beside AS (
    SELECT
        coalesce(bill.scope, estimate.scope) AS scope,
        coalesce(bill.scope_id, estimate.scope_id) AS scope_id,
        coalesce(bill.date_key, estimate.date_key) AS date_key,
        coalesce(bill.currency, estimate.currency) AS currency,
        CASE
            WHEN estimate.scope IS NULL THEN 0 ELSE estimate.estimate_hours
        END AS estimate_hours,
        CASE WHEN estimate.scope IS NULL THEN 0 ELSE estimate.estimate_cost END AS estimate_cost,
        CASE WHEN bill.scope IS NULL THEN 0 ELSE bill.billed_hours END AS billed_hours,
        coalesce(bill.billed_cost, 0) AS billed_cost,
        coalesce(bill.device_cost, 0) AS device_cost,
        coalesce(bill.service_cost, 0) AS service_cost,
        coalesce(bill.tax_cost, 0) AS tax_cost,
        coalesce(bill.credit_cost, 0) AS credit_cost,
        coalesce(bill.purchase_cost, 0) AS purchase_cost,
        bill.negotiated_discount_cost,
        bill.commitment_discount_cost,
        count(*) OVER (
            PARTITION BY
                coalesce(bill.scope, estimate.scope),
                coalesce(bill.scope_id, estimate.scope_id),
                coalesce(bill.date_key, estimate.date_key)
        ) = 1
        AND (estimate.scope IS NULL OR estimate.estimate_cost IS NOT NULL) AS is_comparable
    FROM bill
    FULL JOIN estimate
        ON bill.scope = estimate.scope
        AND bill.scope_id IS NOT DISTINCT FROM estimate.scope_id
        AND bill.date_key = estimate.date_key
        AND bill.currency IS NOT DISTINCT FROM estimate.currency
),

priced AS (
    SELECT
        *,
        CAST(estimate_cost AS DOUBLE) / nullif(estimate_hours, 0) AS estimate_price,
        CASE WHEN is_comparable THEN device_cost - estimate_cost END AS device_difference_cost
    FROM beside
),

split AS (
    SELECT
        *,
        CAST(
            CASE
                WHEN NOT is_comparable THEN NULL
                WHEN scope_id IS NULL OR billed_hours IS NULL THEN 0
                WHEN estimate_price IS NULL THEN device_difference_cost
                ELSE round((billed_hours - estimate_hours) * estimate_price, 6)
            END AS DECIMAL(28, 6)
        ) AS time_cost,
        CAST(
            CASE
                WHEN NOT is_comparable THEN NULL
                WHEN scope_id IS NULL OR billed_hours IS NULL OR estimate_price IS NULL THEN 0
                ELSE round(CAST(device_cost AS DOUBLE) - billed_hours * estimate_price, 6)
            END AS DECIMAL(28, 6)
        ) AS price_cost,
        CASE
            WHEN scope_id IS NOT NULL AND billed_hours IS NULL THEN device_difference_cost
            ELSE 0 * device_difference_cost
        END AS unsplit_cost,
        CASE
            WHEN scope_id IS NULL THEN device_difference_cost ELSE 0 * device_difference_cost
        END AS untagged_cost
    FROM priced
)

SELECT
    scope,
    scope_id,
    date_key,
    currency,
    estimate_hours,
    CAST(estimate_cost AS DECIMAL(28, 6)) AS estimate_cost,
    billed_hours,
    CAST(billed_cost AS DECIMAL(28, 6)) AS billed_cost,
    is_comparable,
    CASE
        WHEN is_comparable THEN CAST(billed_cost - estimate_cost AS DECIMAL(28, 6))
    END AS difference_cost,
    time_cost,
    price_cost,
    CAST(unsplit_cost AS DECIMAL(28, 6)) AS unsplit_cost,
    CAST(untagged_cost AS DECIMAL(28, 6)) AS untagged_cost,
    CASE WHEN is_comparable THEN CAST(service_cost AS DECIMAL(28, 6)) END AS service_cost,
    CASE WHEN is_comparable THEN CAST(tax_cost AS DECIMAL(28, 6)) END AS tax_cost,
    CASE WHEN is_comparable THEN CAST(credit_cost AS DECIMAL(28, 6)) END AS credit_cost,
    CASE WHEN is_comparable THEN CAST(purchase_cost AS DECIMAL(28, 6)) END AS purchase_cost,
    CAST(
        device_difference_cost - time_cost - price_cost - unsplit_cost - untagged_cost
        AS DECIMAL(28, 6)
    ) AS rounding_cost,
    CAST(negotiated_discount_cost AS DECIMAL(28, 6)) AS negotiated_discount_cost,
    CAST(commitment_discount_cost AS DECIMAL(28, 6)) AS commitment_discount_cost
FROM split;
