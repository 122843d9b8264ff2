-- allocation: from when to when a device was paid for, by whom and at which price.
-- Grain: one row per 'allocated' event. Units: ns, hours, money in `currency`.
-- Reads from: fact_pool_event, dim_pool, run_price, dim_attempt, fact_step, fact_span,
-- fact_device_sample, fact_device_minute.
-- A release ends the allocation of the run it names, or of any where it names none.
-- A device is paid for once: an allocation ends at its release, at the next allocation of the same
-- device, or, where the release is missing, with the last record of its run; without one of its run it
-- is still held at the latest time that anything is known of. A further 'allocated'
-- event of the same pool and run is a change of price. NULL price: neither the event nor the run
-- tells one; such hours have no cost and are counted all the same.
-- began_unix_ns [ns]: Start, UTC
-- ended_unix_ns [ns]: End, UTC
-- ended_by []: released, preempted or failed; renewed (by a new price); missing (no release told before the next allocation)
-- is_release_missing []: Whether the end is only known from other records
-- is_doubled []: Whether the device was given to another before it was released
-- purchase []: on_demand, spot, reserved or own, by the event or the pool; NULL when untold
-- device_hours [h]: Length of the allocation
-- device_hour_cost []: Price of one device-hour: the event's, or that of its run
-- cost []: device_hours x device_hour_cost
WITH given AS (
    SELECT
        *,
        lead(event_unix_ns) OVER device AS next_unix_ns,
        lead(pool_id) OVER device AS next_pool_id,
        lead(pipeline_id) OVER device AS next_pipeline_id
    FROM fact_pool_event
    WHERE event = 'allocated'
    WINDOW device AS (PARTITION BY host, device_id ORDER BY event_unix_ns, pool_id)
),

ends AS (
    SELECT pool_id, host, device_id, pipeline_id, event_unix_ns, min(event) AS event
    FROM fact_pool_event
    WHERE event <> 'allocated'
    GROUP BY pool_id, host, device_id, pipeline_id, event_unix_ns
),

unnamed_ends AS (
    SELECT * FROM ends WHERE pipeline_id = ''
),

last_record AS (
    SELECT pipeline_id, max(last_unix_ns) AS last_unix_ns
    FROM (
        SELECT pipeline_id, ended_unix_ns AS last_unix_ns
        FROM dim_attempt
        UNION ALL
        SELECT pipeline_id, max(started_unix_ns + CAST(round(window_s * 1e9) AS BIGINT))
        FROM fact_step
        GROUP BY pipeline_id
        UNION ALL
        SELECT pipeline_id, max(began_unix_ns + CAST(round(duration_s * 1e9) AS BIGINT))
        FROM fact_span
        WHERE span_kind <> 'reporting'  -- no device is held for it
        GROUP BY pipeline_id
    ) AS records
    WHERE pipeline_id <> ''
    GROUP BY pipeline_id
),

latest AS (
    SELECT max(last_unix_ns) AS last_unix_ns
    FROM (
        SELECT max(event_unix_ns) AS last_unix_ns FROM fact_pool_event
        UNION ALL
        SELECT max(last_unix_ns) FROM last_record
        UNION ALL
        SELECT max(sampled_unix_ns)
        FROM fact_device_sample
        -- a sample of a wrong clock, from after it came to us, ends nothing
        WHERE sampled_unix_ns <= coalesce(ingested_unix_ns, sampled_unix_ns) + 60000000000
        UNION ALL
        SELECT max(coalesce(last_sampled_unix_ns, minute_unix_ns + 60000000000))
        FROM fact_device_minute
    ) AS known
),

placed AS (
    SELECT
        given.*,
        CASE
            WHEN own_end.event_unix_ns <= coalesce(any_end.event_unix_ns, own_end.event_unix_ns)
                THEN own_end.event
            ELSE any_end.event
        END AS end_event,
        least(own_end.event_unix_ns, any_end.event_unix_ns) AS end_unix_ns,
        last_record.last_unix_ns AS run_last_unix_ns,
        coalesce(last_record.last_unix_ns, latest.last_unix_ns) AS last_unix_ns,
        coalesce(
            given.next_pool_id = given.pool_id AND given.next_pipeline_id = given.pipeline_id, FALSE
        ) AS is_renewed
    FROM given
    ASOF LEFT JOIN ends AS own_end
        ON given.pool_id = own_end.pool_id
        AND given.host = own_end.host
        AND given.device_id = own_end.device_id
        AND given.pipeline_id = own_end.pipeline_id
        AND given.event_unix_ns < own_end.event_unix_ns
    ASOF LEFT JOIN unnamed_ends AS any_end
        ON given.pool_id = any_end.pool_id
        AND given.host = any_end.host
        AND given.device_id = any_end.device_id
        AND given.event_unix_ns < any_end.event_unix_ns
    LEFT JOIN last_record ON given.pipeline_id = last_record.pipeline_id
    CROSS JOIN latest
),

ended AS (
    SELECT
        *,
        CASE
            WHEN end_unix_ns <= coalesce(next_unix_ns, end_unix_ns) THEN end_unix_ns
            WHEN is_renewed THEN next_unix_ns
            WHEN next_unix_ns IS NOT NULL
                THEN least(
                    next_unix_ns,
                    greatest(event_unix_ns, coalesce(run_last_unix_ns, next_unix_ns))
                )
            ELSE greatest(event_unix_ns, last_unix_ns)
        END AS ended_unix_ns,
        CASE
            WHEN end_unix_ns <= coalesce(next_unix_ns, end_unix_ns) THEN end_event
            WHEN is_renewed THEN 'renewed'
            ELSE 'missing'
        END AS ended_by,
        NOT is_renewed AND coalesce(
            next_unix_ns < end_unix_ns OR next_unix_ns < run_last_unix_ns, FALSE
        ) AND NOT coalesce(end_unix_ns <= next_unix_ns, FALSE) AS is_doubled
    FROM placed
)

SELECT
    ended.pool_id,
    dim_pool.team_id,
    ended.host,
    ended.device_id,
    ended.pipeline_id,
    ended.event_unix_ns AS began_unix_ns,
    ended.ended_unix_ns,
    ended.ended_by,
    ended.ended_by = 'missing' AS is_release_missing,
    ended.is_doubled,
    coalesce(ended.purchase, dim_pool.purchase) AS purchase,
    (ended.ended_unix_ns - ended.event_unix_ns) / 3.6e12 AS device_hours,
    coalesce(ended.device_hour_cost, run_price.device_hour_cost) AS device_hour_cost,
    CASE
        WHEN ended.device_hour_cost IS NOT NULL THEN ended.currency
        ELSE run_price.currency
    END AS currency,
    CAST(
        round(
            (ended.ended_unix_ns - ended.event_unix_ns) / 3.6e12
            * coalesce(ended.device_hour_cost, run_price.device_hour_cost),
            6
        ) AS DECIMAL(18, 6)
    ) AS cost
FROM ended
LEFT JOIN dim_pool ON ended.pool_id = dim_pool.pool_id
LEFT JOIN run_price ON ended.pipeline_id = run_price.pipeline_id;
