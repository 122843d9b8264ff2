-- allocation_state: what allocated device time was used for, and what each use cost.
-- Grain: one row per allocation, day and state, states of no time left out. Units: device-seconds,
-- money in `currency`. Reads from: allocation_day, dim_rank, fact_step, fact_device_sample,
-- fact_device_minute. The seconds of the states add up to the allocation and their costs to its
-- cost, exactly. training: in a recorded step; ranks that share a device train at the same time, and
-- the longest window of a step counts. allocated_idle: sampled with at most 1 % of
-- utilisation, or of SM activity where that is measured. other_work: sampled and neither.
-- unobserved: neither step nor sample: it is not idle and not busy, and priced all the same.
-- cause []: The state: training, other_work, allocated_idle or unobserved
-- cause_rank []: Its place in the fixed order of dim_cause
-- seconds [s]: Device time in this state
-- cost []: Its part of the cost of the allocation on this day
WITH days AS MATERIALIZED (
    SELECT *, row_number() OVER () AS part_id FROM allocation_day
),

-- a row for each day of UTC that a part touches: joined by equality, no sample meets every day
part_day AS (
    SELECT
        part_id,
        host,
        device_id,
        began_unix_ns,
        ended_unix_ns,
        unnest(
            generate_series(
                began_unix_ns // 86400000000000, (ended_unix_ns - 1) // 86400000000000
            )
        ) AS utc_day
    FROM days
),

device_step AS (
    SELECT
        dim_rank.host,
        dim_rank.device_id,
        min(fact_step.started_unix_ns) AS started_unix_ns,
        max(fact_step.window_s) AS step_s
    FROM fact_step
    INNER JOIN dim_rank ON fact_step.run_id = dim_rank.run_id AND fact_step.rank = dim_rank.rank
    WHERE dim_rank.device_id IS NOT NULL
    GROUP BY dim_rank.host, dim_rank.device_id, fact_step.run_id, fact_step.step
),

stepped AS (
    SELECT part_day.part_id, sum(device_step.step_s) AS step_s
    FROM part_day
    INNER JOIN device_step
        ON part_day.host = device_step.host
        AND part_day.device_id = device_step.device_id
        AND part_day.utc_day = device_step.started_unix_ns // 86400000000000
        AND device_step.started_unix_ns >= part_day.began_unix_ns
        AND device_step.started_unix_ns < part_day.ended_unix_ns
    GROUP BY part_day.part_id
),

samples AS (
    SELECT
        host,
        device_id,
        sampled_unix_ns AS seen_unix_ns,
        interval_s AS observed_s,
        coalesce(sm_active_share, utilization_share) AS active_share
    FROM fact_device_sample
    WHERE interval_s IS NOT NULL
    UNION ALL
    SELECT
        host,
        device_id,
        minute_unix_ns,
        observed_s,
        coalesce(
            sm_active_s / nullif(sm_active_observed_s, 0),
            utilized_s / nullif(utilization_observed_s, 0)
        )
    FROM fact_device_minute
),

sampled AS (
    SELECT
        part_day.part_id,
        coalesce(sum(samples.observed_s) FILTER (WHERE active_share <= 0.01), 0) AS idle_s,
        coalesce(sum(samples.observed_s) FILTER (WHERE active_share IS NOT NULL), 0) AS observed_s
    FROM part_day
    INNER JOIN samples
        ON part_day.host = samples.host
        AND part_day.device_id = samples.device_id
        AND part_day.utc_day = samples.seen_unix_ns // 86400000000000
        AND samples.seen_unix_ns >= part_day.began_unix_ns
        AND samples.seen_unix_ns < part_day.ended_unix_ns
    GROUP BY part_day.part_id
),

told AS (
    SELECT
        days.*,
        days.ended_unix_ns - days.began_unix_ns AS all_ns,
        CAST(round(coalesce(stepped.step_s, 0) * 1e9) AS BIGINT) AS step_ns,
        CAST(round(coalesce(sampled.idle_s, 0) * 1e9) AS BIGINT) AS idle_ns,
        CAST(round(coalesce(sampled.observed_s, 0) * 1e9) AS BIGINT) AS observed_ns
    FROM days
    LEFT JOIN stepped USING (part_id)
    LEFT JOIN sampled USING (part_id)
),

cut AS (
    SELECT
        *,
        least(step_ns, all_ns) AS training_ns,
        least(idle_ns, all_ns - least(step_ns, all_ns)) AS allocated_idle_ns
    FROM told
),

whole AS (
    SELECT
        *,
        least(
            greatest(observed_ns - training_ns - allocated_idle_ns, 0),
            all_ns - training_ns - allocated_idle_ns
        ) AS other_work_ns
    FROM cut
),

states AS (
    SELECT *, unnest([
        {'cause': 'training', 'cause_rank': 10, 'part_ns': training_ns},
        {'cause': 'other_work', 'cause_rank': 11, 'part_ns': other_work_ns},
        {'cause': 'allocated_idle', 'cause_rank': 12, 'part_ns': allocated_idle_ns},
        {
            'cause': 'unobserved',
            'cause_rank': 13,
            'part_ns': all_ns - training_ns - other_work_ns - allocated_idle_ns
        }
    ], recursive := TRUE)
    FROM whole
),

floored AS (
    SELECT
        *,
        CAST(cost * 1000000 AS HUGEINT) AS all_micros,
        CAST(cost * 1000000 AS HUGEINT) * part_ns // all_ns AS floor_micros,
        CAST(cost * 1000000 AS HUGEINT) * part_ns % all_ns AS remainder
    FROM states
    WHERE part_ns > 0
),

ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY part_id ORDER BY remainder DESC, cause_rank
        ) AS place,
        all_micros - CAST(
            sum(floor_micros) OVER (PARTITION BY part_id) AS HUGEINT
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
    cause,
    cause_rank,
    part_ns / 1e9 AS seconds,
    currency,
    CAST(
        CAST(floor_micros + CASE WHEN place <= num_left THEN 1 ELSE 0 END AS DECIMAL(24, 0))
        * 0.000001 AS DECIMAL(28, 6)
    ) AS cost
FROM ranked;
