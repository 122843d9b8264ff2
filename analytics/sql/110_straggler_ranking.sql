-- straggler_ranking: which rank the others waited for, how often, how long, and why.
-- Grain: one row per run of two or more ranks and rank; steps that every rank recorded. Units: seconds
-- and shares. Reads from: dim_run, dim_rank, fact_step, fact_collective.
-- The last rank of a step is the one that the others waited for longest at its collectives, to the
-- nanosecond; in a run of which no collective tells its last rank, the one rank with the most own work.
-- A step without a single such rank has no last one. Where collectives tell, steps without any of them
-- are left out.
-- straggler_kind: 'persistent' when the rank is last more often than chance allows and takes longer
-- for the same work than the others (cost_ratio above 1.1); else 'data_driven' when it is last where
-- it alone holds the most work of the step, more than 1 % above the mean, more often than chance
-- allows; else 'undecided'. Chance allows what happens with a probability of 0.01 over all ranks, each
-- being last with 1 / world_size.
-- basis []: collectives or steps, what told the last rank
-- num_steps_told []: Complete steps that the basis tells of
-- num_last []: Steps in which this rank was the last
-- last_share []: num_last / num_steps_told
-- chance_share []: Probability of being last so often by chance alone
-- is_beyond_chance []: Whether that is less than 0.01 over all ranks
-- waited_for_s [s]: Time that the other ranks waited for this one, summed over them; NULL when waits are not told
-- waited_for_share []: Of all the time that ranks waited for others
-- work_basis []: predicted_cost_s where every step has one, else num_tokens, for the whole run; NULL when neither is told
-- cost_ratio []: Own time over work, over the median of the other ranks' same figure; CPU time on CPUs where every step has it
-- num_last_by_cost []: Of num_last, steps in which it alone held the most work, more than 1 % above the mean
-- chance_by_cost_share []: Probability of as many by chance alone
-- cost_correlation []: Correlation of being last with the rank's work over the step's mean
-- straggler_kind []: persistent, data_driven or undecided; NULL for a rank that was never last
WITH told_by_collectives AS (
    SELECT DISTINCT
        run_id,
        step
    FROM fact_collective
    WHERE last_rank IS NOT NULL
),

recorded AS (
    SELECT
        run_id,
        step,
        count(*) AS num_ranks
    FROM fact_step
    GROUP BY run_id, step
),

complete_steps AS (
    SELECT
        fact_step.run_id,
        fact_step.rank,
        fact_step.step,
        fact_step.busy_s,
        fact_step.cpu_s,
        fact_step.straggler_wait_s,
        fact_step.predicted_cost_s,
        fact_step.num_tokens,
        dim_run.world_size,
        dim_run.device,
        told_by_collectives.step IS NOT NULL AS is_told_by_collectives
    FROM fact_step
    INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
    INNER JOIN recorded
        ON fact_step.run_id = recorded.run_id
        AND fact_step.step = recorded.step
        AND dim_run.world_size = recorded.num_ranks
    LEFT JOIN told_by_collectives
        ON fact_step.run_id = told_by_collectives.run_id
        AND fact_step.step = told_by_collectives.step
    WHERE dim_run.world_size > 1
),

-- seconds of a cost model and events are no sum, nor are CPU time and time: one for a whole run
units AS (
    SELECT
        run_id,
        bool_or(is_told_by_collectives) AS is_by_collectives,
        any_value(device) = 'cpu' AND count(cpu_s) = count(*) AS is_in_cpu_time,
        CASE
            WHEN count(predicted_cost_s) = count(*) AND sum(predicted_cost_s) > 0
                THEN 'predicted_cost_s'
            WHEN count(num_tokens) = count(*) AND sum(num_tokens) > 0 THEN 'num_tokens'
        END AS work_basis
    FROM complete_steps
    GROUP BY run_id
),

told_steps AS (
    SELECT
        complete_steps.run_id,
        complete_steps.rank,
        complete_steps.step,
        complete_steps.world_size,
        complete_steps.busy_s,
        complete_steps.straggler_wait_s,
        units.is_by_collectives,
        units.work_basis,
        CASE
            WHEN units.is_in_cpu_time THEN complete_steps.cpu_s
            ELSE complete_steps.busy_s
        END AS own_s,
        CASE units.work_basis
            WHEN 'predicted_cost_s' THEN complete_steps.predicted_cost_s
            WHEN 'num_tokens' THEN complete_steps.num_tokens
        END AS work
    FROM complete_steps
    INNER JOIN units ON complete_steps.run_id = units.run_id
    WHERE complete_steps.is_told_by_collectives OR NOT units.is_by_collectives
),

summed AS (
    SELECT
        run_id,
        step,
        max(work) AS most_work,
        avg(work) AS mean_work,
        max(busy_s) AS longest_s,
        sum(straggler_wait_s) AS step_wait_s
    FROM told_steps
    GROUP BY run_id, step
),

ranked_steps AS (
    SELECT
        told_steps.*,
        told_steps.work / nullif(summed.mean_work, 0) AS relative_work,
        round(told_steps.work * 1e9) = round(summed.most_work * 1e9)
        AND summed.most_work > 1.01 * summed.mean_work AS holds_most_work,
        told_steps.busy_s = summed.longest_s AS is_longest,
        summed.step_wait_s
    FROM told_steps
    INNER JOIN summed ON told_steps.run_id = summed.run_id AND told_steps.step = summed.step
),

most_work AS (
    SELECT
        run_id,
        step,
        min(rank) AS rank
    FROM ranked_steps
    WHERE holds_most_work
    GROUP BY run_id, step
    HAVING count(*) = 1
),

collective_wait AS (
    SELECT
        run_id,
        step,
        last_rank AS rank,
        sum(straggler_wait_s) AS waited_for_s,
        round(sum(straggler_wait_s) * 1e9) AS waited_for_ns
    FROM fact_collective
    WHERE last_rank IS NOT NULL AND straggler_wait_s > 0
    GROUP BY run_id, step, last_rank
),

longest_waited_for AS (
    SELECT *
    FROM collective_wait
    QUALIFY waited_for_ns = max(waited_for_ns) OVER (PARTITION BY run_id, step)
),

last_rank AS (
    SELECT
        run_id,
        step,
        min(rank) AS rank,
        NULL AS waited_for_s
    FROM longest_waited_for
    GROUP BY run_id, step
    HAVING count(*) = 1
    UNION ALL
    SELECT
        run_id,
        step,
        min(rank) AS rank,
        any_value(step_wait_s - coalesce(straggler_wait_s, 0)) AS waited_for_s
    FROM ranked_steps
    WHERE is_longest AND NOT is_by_collectives
    GROUP BY run_id, step
    HAVING count(*) = 1
),

judged AS (
    SELECT
        ranked_steps.*,
        most_work.rank IS NOT NULL AS has_most_work,
        last_rank.rank IS NOT NULL AS is_last,
        CASE
            WHEN ranked_steps.is_by_collectives THEN collective_wait.waited_for_s
            ELSE last_rank.waited_for_s
        END AS waited_for_s
    FROM ranked_steps
    LEFT JOIN last_rank
        ON ranked_steps.run_id = last_rank.run_id
        AND ranked_steps.step = last_rank.step
        AND ranked_steps.rank = last_rank.rank
    LEFT JOIN most_work
        ON ranked_steps.run_id = most_work.run_id
        AND ranked_steps.step = most_work.step
        AND ranked_steps.rank = most_work.rank
    LEFT JOIN collective_wait
        ON ranked_steps.run_id = collective_wait.run_id
        AND ranked_steps.step = collective_wait.step
        AND ranked_steps.rank = collective_wait.rank
),

counted AS (
    SELECT
        run_id,
        rank,
        any_value(world_size) AS world_size,
        any_value(is_by_collectives) AS is_by_collectives,
        any_value(work_basis) AS work_basis,
        count(*) AS num_steps_told,
        count(*) FILTER (WHERE is_last) AS num_last,
        count(*) FILTER (WHERE is_last AND has_most_work) AS num_last_by_cost,
        coalesce(sum(waited_for_s), CASE WHEN NOT bool_or(is_last) THEN 0 END) AS waited_for_s,
        sum(own_s) / nullif(sum(work), 0) AS own_per_work,
        CASE
            WHEN min(relative_work) < max(relative_work) AND bool_or(is_last) AND bool_or(NOT is_last)
                THEN corr(CAST(is_last AS INTEGER), relative_work)
        END AS cost_correlation
    FROM judged
    GROUP BY run_id, rank
),

compared AS (
    SELECT
        counted.run_id,
        counted.rank,
        median(others.own_per_work) AS others_own_per_work
    FROM counted
    INNER JOIN counted AS others
        ON counted.run_id = others.run_id AND counted.rank <> others.rank
    GROUP BY counted.run_id, counted.rank
),

weighed AS (
    SELECT
        counted.*,
        counted.own_per_work / nullif(compared.others_own_per_work, 0) AS cost_ratio,
        list_sum(list_transform(
            range(num_last, num_steps_told + 1),
            lambda k: exp(
                lgamma(num_steps_told + 1) - lgamma(k + 1) - lgamma(num_steps_told - k + 1)
                - k * ln(world_size)
                + (num_steps_told - k) * ln(1 - 1 / world_size)
            )
        )) AS chance_share,
        list_sum(list_transform(
            range(num_last_by_cost, num_last + 1),
            lambda k: exp(
                lgamma(num_last + 1) - lgamma(k + 1) - lgamma(num_last - k + 1)
                - k * ln(world_size)
                + (num_last - k) * ln(1 - 1 / world_size)
            )
        )) AS chance_by_cost_share
    FROM counted
    INNER JOIN compared
        ON counted.run_id = compared.run_id AND counted.rank = compared.rank
)

SELECT
    weighed.run_id,
    dim_run.pipeline_id,
    weighed.rank,
    dim_rank.host,
    dim_rank.device_id,
    CASE WHEN weighed.is_by_collectives THEN 'collectives' ELSE 'steps' END AS basis,
    weighed.num_steps_told,
    weighed.num_last,
    weighed.num_last / weighed.num_steps_told AS last_share,
    least(weighed.chance_share, 1) AS chance_share,
    weighed.chance_share * weighed.world_size < 0.01 AS is_beyond_chance,
    weighed.waited_for_s,
    weighed.waited_for_s
    / nullif(sum(weighed.waited_for_s) OVER (PARTITION BY weighed.run_id), 0) AS waited_for_share,
    weighed.work_basis,
    weighed.cost_ratio,
    weighed.num_last_by_cost,
    least(weighed.chance_by_cost_share, 1) AS chance_by_cost_share,
    weighed.cost_correlation,
    CASE
        WHEN weighed.num_last = 0 THEN NULL
        WHEN is_beyond_chance AND weighed.cost_ratio > 1.1 THEN 'persistent'
        WHEN weighed.chance_by_cost_share * weighed.world_size < 0.01 THEN 'data_driven'
        ELSE 'undecided'
    END AS straggler_kind
FROM weighed
INNER JOIN dim_run ON weighed.run_id = dim_run.run_id
LEFT JOIN dim_rank ON weighed.run_id = dim_rank.run_id AND weighed.rank = dim_rank.rank;
