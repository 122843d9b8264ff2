-- allocation_state: what allocated device time was used for, and what each use cost.
-- Grain: one row per allocation, day and state, states of no time left out. Units: device-seconds,
-- money in `currency`. Reads from: allocation_day, device_step, device_activity.
-- The seconds of the states add up to the allocation and their costs to its cost, exactly.
-- training: in a recorded step. allocated_idle: sampled, in minutes of at most 1 % of activity or
-- without a process; of a minute that is partly in steps, the part outside of them. other_work: the
-- same, with work. unobserved: neither step nor sample: it is not
-- idle and not busy, and priced all the same. device_state calls training what is training or
-- other_work here.
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

stepped AS (
    SELECT
        part_day.part_id,
        CAST(
            sum(
                round(
                    least(
                        device_step.stepped_s * 1e9,
                        part_day.ended_unix_ns - device_step.minute_unix_ns,
                        device_step.minute_unix_ns + 60000000000 - part_day.began_unix_ns
                    )
                )
            ) AS BIGINT
        ) AS step_ns
    FROM part_day
    INNER JOIN device_step
        ON part_day.host = device_step.host
        AND part_day.device_id = device_step.device_id
        AND part_day.utc_day = device_step.minute_unix_ns // 86400000000000
        AND device_step.minute_unix_ns < part_day.ended_unix_ns
        AND device_step.minute_unix_ns + 60000000000 > part_day.began_unix_ns
    GROUP BY part_day.part_id
),

-- what samples speak for, minute by minute; several collectors may tell of the same time
told_minute AS (
    SELECT
        host,
        device_id,
        is_idle,
        minute_unix_ns,
        greatest(since_unix_ns, minute_unix_ns) AS began_unix_ns,
        least(until_unix_ns, minute_unix_ns + 60000000000) AS ended_unix_ns
    FROM (
        SELECT
            host,
            device_id,
            is_idle,
            since_unix_ns,
            until_unix_ns,
            unnest(
                generate_series(
                    since_unix_ns // 60000000000, (until_unix_ns - 1) // 60000000000
                )
            ) * 60000000000 AS minute_unix_ns
        FROM device_activity
        WHERE is_idle IS NOT NULL AND until_unix_ns > since_unix_ns
    )
),

-- beside the share of it that counts: no minute has more than 60 s, and steps are told apart
seen AS (
    SELECT
        told_minute.*,
        told_minute.minute_unix_ns // 86400000000000 AS utc_day,
        (1 - coalesce(device_step.stepped_s, 0) / 60) * least(
            60000000000 / sum(told_minute.ended_unix_ns - told_minute.began_unix_ns) OVER (
                PARTITION BY told_minute.host, told_minute.device_id, told_minute.minute_unix_ns
            ),
            1
        ) AS outside_share
    FROM told_minute
    LEFT JOIN device_step
        ON told_minute.host = device_step.host
        AND told_minute.device_id = device_step.device_id
        AND told_minute.minute_unix_ns = device_step.minute_unix_ns
),

outside AS (
    SELECT
        part_day.part_id,
        seen.is_idle,
        CAST(
            round(
                seen.outside_share * (
                    least(seen.ended_unix_ns, part_day.ended_unix_ns)
                    - greatest(seen.began_unix_ns, part_day.began_unix_ns)
                )
            ) AS BIGINT
        ) AS outside_ns
    FROM part_day
    INNER JOIN seen
        ON part_day.host = seen.host
        AND part_day.device_id = seen.device_id
        AND part_day.utc_day = seen.utc_day
        AND part_day.began_unix_ns < seen.ended_unix_ns
        AND part_day.ended_unix_ns > seen.began_unix_ns
),

sampled AS (
    SELECT
        part_id,
        CAST(coalesce(sum(outside_ns) FILTER (WHERE is_idle), 0) AS BIGINT) AS idle_ns,
        CAST(coalesce(sum(outside_ns) FILTER (WHERE NOT is_idle), 0) AS BIGINT) AS other_ns
    FROM outside
    GROUP BY part_id
),

told AS (
    SELECT
        days.*,
        days.ended_unix_ns - days.began_unix_ns AS all_ns,
        coalesce(stepped.step_ns, 0) AS step_ns,
        coalesce(sampled.idle_ns, 0) AS idle_ns,
        coalesce(sampled.other_ns, 0) AS other_ns
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
        least(other_ns, all_ns - training_ns - allocated_idle_ns) AS other_work_ns
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
        CAST(CAST(cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) AS all_micros,
        CAST(CAST(cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) * part_ns // all_ns AS floor_micros,
        CAST(CAST(cost AS DECIMAL(38, 6)) * 1000000 AS HUGEINT) * part_ns % all_ns AS remainder
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
