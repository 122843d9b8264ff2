-- straggler_ranking: which rank the others waited for, how often, how long, and why.
-- Grain: one row per run of two or more ranks and rank; steps that every rank recorded. Units: seconds
-- and shares. Reads from: dim_run, dim_rank, fact_step, fact_collective.
-- The last rank of a step is the one that the others waited for longest at its collectives; where no
-- collective tells its last rank, the one rank with the most own work. A step without a single such
-- rank has no last one.
-- straggler_kind: 'persistent' when the rank is last more often than chance allows and takes longer
-- for the same predicted cost than the others (cost_ratio above 1.1); else 'data_driven' when it is
-- last where it holds the most predicted cost, more often than chance allows; else 'undecided'. Chance
-- allows what happens with a probability of 0.01 over all ranks, each being last with 1 / world_size.
-- basis []: collectives or steps, what told the last rank
-- num_steps_told []: Complete steps
-- num_last []: Steps in which this rank was the last
-- last_share []: num_last / num_steps_told
-- chance_share []: Probability of being last so often by chance alone
-- waited_for_s [s]: Time that the other ranks waited for this one, summed over them; NULL when waits are not told
-- waited_for_share []: Of all the time that ranks waited for others
-- cost_ratio []: Own time over predicted cost, over the median of the other ranks' same figure; CPU time on CPUs
-- num_last_by_cost []: Of num_last, steps in which it also held the largest predicted cost
-- chance_by_cost_share []: Probability of as many by chance alone
-- cost_correlation []: Correlation of being last with the rank's predicted cost over the step's mean
-- straggler_kind []: persistent, data_driven or undecided; NULL for a rank that was never last
WITH ranked_steps AS (
    SELECT
        fact_step.run_id,
        fact_step.rank,
        fact_step.step,
        dim_run.world_size,
        CASE
            WHEN dim_run.device = 'cpu' THEN coalesce(fact_step.cpu_s, fact_step.busy_s)
            ELSE fact_step.busy_s
        END AS own_s,
        fact_step.predicted_cost_s,
        fact_step.straggler_wait_s,
        fact_step.predicted_cost_s / nullif(avg(fact_step.predicted_cost_s) OVER one_step, 0)
            AS relative_cost,
        rank() OVER (one_step ORDER BY fact_step.predicted_cost_s DESC NULLS LAST) = 1
        AND fact_step.predicted_cost_s IS NOT NULL AS has_most_cost,
        fact_step.busy_s = max(fact_step.busy_s) OVER one_step AS is_longest,
        sum(fact_step.straggler_wait_s) OVER one_step AS step_wait_s,
        count(*) OVER one_step = dim_run.world_size AS is_complete
    FROM fact_step
    INNER JOIN dim_run ON fact_step.run_id = dim_run.run_id
    WHERE dim_run.world_size > 1
    WINDOW one_step AS (PARTITION BY fact_step.run_id, fact_step.step)
),

collective_wait AS (
    SELECT
        run_id,
        step,
        last_rank AS rank,
        sum(straggler_wait_s) AS waited_for_s
    FROM fact_collective
    WHERE last_rank IS NOT NULL AND straggler_wait_s > 0
    GROUP BY run_id, step, last_rank
),

collective_last AS (
    SELECT *
    FROM collective_wait
    QUALIFY row_number() OVER (PARTITION BY run_id, step ORDER BY waited_for_s DESC, rank) = 1
),

told_by_collectives AS (
    SELECT DISTINCT run_id
    FROM fact_collective
    WHERE last_rank IS NOT NULL
),

longest AS (
    SELECT
        run_id,
        step,
        min(rank) AS rank,
        any_value(step_wait_s - coalesce(straggler_wait_s, 0)) AS waited_for_s
    FROM ranked_steps
    WHERE is_longest
    GROUP BY run_id, step
    HAVING count(*) = 1
),

judged AS (
    SELECT
        ranked_steps.*,
        told_by_collectives.run_id IS NOT NULL AS is_by_collectives,
        CASE
            WHEN told_by_collectives.run_id IS NOT NULL THEN collective_last.rank IS NOT NULL
            ELSE longest.rank IS NOT NULL
        END AS is_last,
        CASE
            WHEN told_by_collectives.run_id IS NOT NULL THEN collective_wait.waited_for_s
            ELSE longest.waited_for_s
        END AS waited_for_s
    FROM ranked_steps
    LEFT JOIN told_by_collectives ON ranked_steps.run_id = told_by_collectives.run_id
    LEFT JOIN collective_wait
        ON ranked_steps.run_id = collective_wait.run_id
        AND ranked_steps.step = collective_wait.step
        AND ranked_steps.rank = collective_wait.rank
    LEFT JOIN collective_last
        ON ranked_steps.run_id = collective_last.run_id
        AND ranked_steps.step = collective_last.step
        AND ranked_steps.rank = collective_last.rank
    LEFT JOIN longest
        ON ranked_steps.run_id = longest.run_id
        AND ranked_steps.step = longest.step
        AND ranked_steps.rank = longest.rank
    WHERE ranked_steps.is_complete
),

counted AS (
    SELECT
        run_id,
        rank,
        any_value(world_size) AS world_size,
        any_value(is_by_collectives) AS is_by_collectives,
        count(*) AS num_steps_told,
        count(*) FILTER (WHERE is_last) AS num_last,
        count(*) FILTER (WHERE is_last AND has_most_cost) AS num_last_by_cost,
        coalesce(sum(waited_for_s), CASE WHEN NOT bool_or(is_last) THEN 0 END) AS waited_for_s,
        CASE
            WHEN count(predicted_cost_s) = count(*)
                THEN sum(own_s) / nullif(sum(predicted_cost_s), 0)
        END AS own_per_cost,
        CASE
            WHEN min(relative_cost) < max(relative_cost) AND bool_or(is_last) AND bool_or(NOT is_last)
                THEN corr(CAST(is_last AS INTEGER), relative_cost)
        END AS cost_correlation
    FROM judged
    GROUP BY run_id, rank
),

compared AS (
    SELECT
        counted.run_id,
        counted.rank,
        median(others.own_per_cost) AS others_own_per_cost
    FROM counted
    INNER JOIN counted AS others
        ON counted.run_id = others.run_id AND counted.rank <> others.rank
    GROUP BY counted.run_id, counted.rank
),

weighed AS (
    SELECT
        counted.*,
        counted.own_per_cost / nullif(compared.others_own_per_cost, 0) AS cost_ratio,
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
    weighed.waited_for_s,
    weighed.waited_for_s
    / nullif(sum(weighed.waited_for_s) OVER (PARTITION BY weighed.run_id), 0) AS waited_for_share,
    weighed.cost_ratio,
    weighed.num_last_by_cost,
    least(weighed.chance_by_cost_share, 1) AS chance_by_cost_share,
    weighed.cost_correlation,
    CASE
        WHEN weighed.num_last = 0 THEN NULL
        WHEN weighed.chance_share * weighed.world_size < 0.01 AND weighed.cost_ratio > 1.1
            THEN 'persistent'
        WHEN weighed.chance_by_cost_share * weighed.world_size < 0.01 THEN 'data_driven'
        ELSE 'undecided'
    END AS straggler_kind
FROM weighed
INNER JOIN dim_run ON weighed.run_id = dim_run.run_id
LEFT JOIN dim_rank ON weighed.run_id = dim_rank.run_id AND weighed.rank = dim_rank.rank;
