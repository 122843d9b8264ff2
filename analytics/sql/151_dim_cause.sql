-- dim_cause: what rank time and money went to, in the order in which every page shows it.
-- Grain: one row per cause. Units: none. Reads from: nothing; the words are those of
-- metrics.CAUSE_LABELS and money.STATE_LABELS, which a test holds equal.
-- cause []: Name of the cause, as in run_cause, cost_by_day and allocation_state
-- cause_rank []: Its place in the fixed order
-- cause_label []: The same in words
-- cause_group []: step (part of a step's window) or allocation (state of an allocated device)
-- is_bubble []: Whether it is a part of the bubble of a step
SELECT
    cause,
    cause_rank,
    cause_label,
    cause_group,
    cause_group = 'step' AND cause <> 'busy' AS is_bubble
FROM (
    VALUES
    ('busy', 1, 'own work', 'step'),
    ('straggler_wait', 2, 'waiting for the slowest rank', 'step'),
    ('exposed_comm', 3, 'exchange on the wire', 'step'),
    ('exposed_comm_total', 4, 'blocked in exchange', 'step'),
    ('exposed_copy', 5, 'copies', 'step'),
    ('data_wait', 6, 'waiting for data', 'step'),
    ('host_wait', 7, 'late kernel launches', 'step'),
    ('kernel_gap', 8, 'gaps between kernels', 'step'),
    ('unattributed', 9, 'not attributed', 'step'),
    ('training', 10, 'in recorded steps', 'allocation'),
    ('other_work', 11, 'at work outside of steps', 'allocation'),
    ('allocated_idle', 12, 'allocated and idle', 'allocation'),
    ('unobserved', 13, 'allocated, not observed', 'allocation')
) AS causes (cause, cause_rank, cause_label, cause_group);
