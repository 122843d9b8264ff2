-- A warehouse of version 1: its tables as they were made then, and a small pipeline. Frozen.
CREATE TABLE fact_profile (
    pipeline_id VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    min_group_users BIGINT NOT NULL CHECK (min_group_users >= 1),
    num_users BIGINT NOT NULL CHECK (num_users >= 0),
    mean_length DOUBLE CHECK (mean_length >= 0),
    length_p25 DOUBLE CHECK (length_p25 >= 0),
    length_p50 DOUBLE CHECK (length_p50 >= 0),
    length_p75 DOUBLE CHECK (length_p75 >= 0),
    length_p90 DOUBLE CHECK (length_p90 >= 0),
    length_p99 DOUBLE CHECK (length_p99 >= 0),
    longest_length_rounded BIGINT CHECK (longest_length_rounded >= 1),
    tail_index DOUBLE CHECK (tail_index >= 0),
    tail_index_error DOUBLE CHECK (tail_index_error >= 0),
    num_tail_users BIGINT CHECK (num_tail_users >= 1),
    num_longest_users BIGINT CHECK (num_longest_users >= 1),
    longest_event_share DOUBLE CHECK (longest_event_share >= 0) CHECK (longest_event_share <= 1),
    longest_pair_share DOUBLE CHECK (longest_pair_share >= 0) CHECK (longest_pair_share <= 1),
    padded_to_longest_share DOUBLE CHECK (padded_to_longest_share >= 0) CHECK (padded_to_longest_share <= 1),
    zipf_exponent DOUBLE NOT NULL CHECK (zipf_exponent >= 0),
    top_1_percent_event_share DOUBLE NOT NULL CHECK (top_1_percent_event_share >= 0) CHECK (top_1_percent_event_share <= 1),
    top_10_percent_event_share DOUBLE NOT NULL CHECK (top_10_percent_event_share >= 0) CHECK (top_10_percent_event_share <= 1),
    once_item_share DOUBLE NOT NULL CHECK (once_item_share >= 0) CHECK (once_item_share <= 1),
    tied_share DOUBLE NOT NULL CHECK (tied_share >= 0) CHECK (tied_share <= 1),
    zero_gap_share DOUBLE CHECK (zero_gap_share >= 0) CHECK (zero_gap_share <= 1),
    gap_p10_s DOUBLE CHECK (gap_p10_s >= 0),
    gap_p50_s DOUBLE CHECK (gap_p50_s >= 0),
    gap_p90_s DOUBLE CHECK (gap_p90_s >= 0),
    gap_p99_s DOUBLE CHECK (gap_p99_s >= 0),
    model_name VARCHAR NOT NULL,
    row_bytes BIGINT NOT NULL CHECK (row_bytes >= 0),
    table_bytes BIGINT NOT NULL CHECK (table_bytes >= 0),
    event_bytes BIGINT NOT NULL CHECK (event_bytes >= 0),
    longest_activation_bytes BIGINT NOT NULL CHECK (longest_activation_bytes >= 0),
    PRIMARY KEY (pipeline_id, dataset_id)
);
CREATE TABLE fact_length_bin (
    pipeline_id VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    from_length BIGINT NOT NULL CHECK (from_length >= 0),
    to_length BIGINT NOT NULL CHECK (to_length >= 1),
    num_users BIGINT NOT NULL CHECK (num_users >= 1),
    num_events BIGINT NOT NULL CHECK (num_events >= 0),
    PRIMARY KEY (pipeline_id, dataset_id, from_length)
);
CREATE TABLE fact_batch_profile (
    pipeline_id VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    batch_sequences BIGINT NOT NULL CHECK (batch_sequences >= 1),
    num_negatives BIGINT NOT NULL CHECK (num_negatives >= 0),
    num_batches BIGINT NOT NULL CHECK (num_batches >= 1),
    collision_share DOUBLE CHECK (collision_share >= 0) CHECK (collision_share <= 1),
    history_collision_share DOUBLE CHECK (history_collision_share >= 0) CHECK (history_collision_share <= 1),
    mean_ids DOUBLE NOT NULL CHECK (mean_ids >= 0),
    mean_rows DOUBLE NOT NULL CHECK (mean_rows >= 0),
    deduplication_factor DOUBLE NOT NULL CHECK (deduplication_factor >= 1),
    padding_share DOUBLE CHECK (padding_share >= 0) CHECK (padding_share <= 1),
    PRIMARY KEY (pipeline_id, dataset_id, batch_sequences)
);
CREATE TABLE fact_memory_forecast (
    pipeline_id VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    num_ranks BIGINT NOT NULL CHECK (num_ranks >= 1),
    sequences_per_rank BIGINT NOT NULL CHECK (sequences_per_rank >= 1),
    placement VARCHAR NOT NULL,
    table_bytes BIGINT NOT NULL CHECK (table_bytes >= 0),
    fullest_rank_events BIGINT NOT NULL CHECK (fullest_rank_events >= 1),
    fullest_rank_bytes BIGINT NOT NULL CHECK (fullest_rank_bytes >= 0),
    PRIMARY KEY (pipeline_id, dataset_id, num_ranks, sequences_per_rank, placement)
);
CREATE TABLE fact_straggler_forecast (
    pipeline_id VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    num_ranks BIGINT NOT NULL CHECK (num_ranks >= 1),
    sequences_per_rank BIGINT NOT NULL CHECK (sequences_per_rank >= 1),
    placement VARCHAR NOT NULL,
    straggler_share DOUBLE NOT NULL CHECK (straggler_share >= 0) CHECK (straggler_share <= 1),
    bound_share DOUBLE NOT NULL CHECK (bound_share >= 0) CHECK (bound_share <= 1),
    straggler_cost_per_1000_device_hours DOUBLE NOT NULL CHECK (straggler_cost_per_1000_device_hours >= 0),
    currency VARCHAR NOT NULL,
    instance_type VARCHAR NOT NULL,
    PRIMARY KEY (pipeline_id, num_ranks, sequences_per_rank, placement)
);
CREATE TABLE fact_profile_advice (
    pipeline_id VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    is_needed BOOLEAN NOT NULL,
    recommendation VARCHAR NOT NULL,
    number DOUBLE,
    unit VARCHAR NOT NULL,
    measure VARCHAR NOT NULL,
    before_share DOUBLE NOT NULL CHECK (before_share >= 0) CHECK (before_share <= 1),
    after_share DOUBLE NOT NULL CHECK (after_share >= 0) CHECK (after_share <= 1),
    effect_share DOUBLE NOT NULL CHECK (effect_share >= 0) CHECK (effect_share <= 1),
    given_up_share DOUBLE CHECK (given_up_share >= 0) CHECK (given_up_share <= 1),
    num_ranks BIGINT NOT NULL CHECK (num_ranks >= 2),
    sequences_per_rank BIGINT NOT NULL CHECK (sequences_per_rank >= 1),
    PRIMARY KEY (pipeline_id, dataset_id, kind)
);
CREATE TABLE dim_dataset (
    dataset_id VARCHAR NOT NULL,
    dataset_name VARCHAR NOT NULL,
    source_sha256 VARCHAR NOT NULL,
    terms VARCHAR NOT NULL,
    num_rows_read BIGINT NOT NULL CHECK (num_rows_read >= 0),
    num_rows_kept BIGINT NOT NULL CHECK (num_rows_kept >= 0),
    num_users BIGINT NOT NULL CHECK (num_users >= 0),
    num_items BIGINT NOT NULL CHECK (num_items >= 0),
    min_length BIGINT CHECK (min_length >= 0),
    median_length DOUBLE CHECK (median_length >= 0),
    max_length BIGINT CHECK (max_length >= 0),
    tied_share DOUBLE NOT NULL CHECK (tied_share >= 0) CHECK (tied_share <= 1),
    num_training_events BIGINT CHECK (num_training_events >= 0),
    num_validation_events BIGINT CHECK (num_validation_events >= 0),
    num_test_events BIGINT CHECK (num_test_events >= 0),
    has_times BOOLEAN,
    is_pseudonymised BOOLEAN,
    min_group_users BIGINT CHECK (min_group_users >= 1),
    PRIMARY KEY (dataset_id)
);
INSERT INTO dim_dataset VALUES ('d0', 'paper', '0000000000000000000000000000000000000000000000000000000000000000', 'own', 40, 40, 8, 20, 5, 5.0, 5, 0.0, 24, 8, 8, TRUE, FALSE, 1);
CREATE TABLE fact_dropped_rows (
    dataset_id VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    num_rows BIGINT NOT NULL CHECK (num_rows >= 0),
    PRIMARY KEY (dataset_id, reason)
);
CREATE TABLE fact_erasure (
    erasure_id VARCHAR NOT NULL,
    erased_unix_ns BIGINT NOT NULL CHECK (erased_unix_ns >= 0),
    reason VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    new_dataset_id VARCHAR,
    num_rows BIGINT CHECK (num_rows >= 0),
    num_users BIGINT NOT NULL CHECK (num_users >= 0),
    PRIMARY KEY (erasure_id)
);
CREATE TABLE dim_price (
    pipeline_id VARCHAR NOT NULL,
    instance_type VARCHAR NOT NULL,
    cloud VARCHAR NOT NULL,
    region VARCHAR NOT NULL,
    device_name VARCHAR NOT NULL,
    num_devices BIGINT NOT NULL CHECK (num_devices >= 1),
    device_hour_cost DOUBLE NOT NULL CHECK (device_hour_cost >= 0),
    currency VARCHAR NOT NULL,
    list_device_hour_cost DOUBLE NOT NULL CHECK (list_device_hour_cost >= 0),
    list_currency VARCHAR NOT NULL,
    price_date VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    PRIMARY KEY (pipeline_id, instance_type)
);
INSERT INTO dim_price VALUES ('20261130T140000Z-1a2b', 'paper.1', 'own', 'here', 'paper', 1, 9.0, 'EUR', 9.0, 'EUR', '2026-11-30', 'paper');
CREATE TABLE dim_run (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    arm VARCHAR NOT NULL,
    placement VARCHAR NOT NULL,
    schedule VARCHAR NOT NULL,
    dataset_id VARCHAR NOT NULL,
    config_sha256 VARCHAR NOT NULL,
    seed BIGINT NOT NULL CHECK (seed >= 0),
    world_size BIGINT NOT NULL CHECK (world_size >= 1),
    device VARCHAR NOT NULL,
    host VARCHAR NOT NULL,
    num_steps BIGINT NOT NULL CHECK (num_steps >= 0),
    num_epochs BIGINT NOT NULL CHECK (num_epochs >= 0),
    global_batch_sequences BIGINT NOT NULL CHECK (global_batch_sequences >= 1),
    predicted_straggler_share DOUBLE CHECK (predicted_straggler_share >= 0) CHECK (predicted_straggler_share <= 1),
    bound_straggler_share DOUBLE CHECK (bound_straggler_share >= 0) CHECK (bound_straggler_share <= 1),
    collision_share DOUBLE CHECK (collision_share >= 0) CHECK (collision_share <= 1),
    instance_type VARCHAR NOT NULL,
    device_hour_cost DOUBLE NOT NULL CHECK (device_hour_cost >= 0),
    currency VARCHAR NOT NULL,
    started_unix_ns BIGINT NOT NULL CHECK (started_unix_ns >= 0),
    seqscale_version VARCHAR NOT NULL,
    transport VARCHAR,
    precision VARCHAR,
    micro_batches BIGINT CHECK (micro_batches >= 1),
    table_optimizer VARCHAR,
    PRIMARY KEY (run_id)
);
INSERT INTO dim_run VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 'balanced', 'random_equal', 'synchronous', 'd0', '0000000000000000000000000000000000000000000000000000000000000000', 1, 2, 'cpu', 'paper', 4, 1, 8, 0.25, 0.0, 0.5, 'paper.1', 9.0, 'EUR', 1796047200000000000, '0', 'gloo', 'fp32', 1, 'rowwise_adagrad');
INSERT INTO dim_run VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 'baseline', 'random_equal', 'synchronous', 'd0', '0000000000000000000000000000000000000000000000000000000000000000', 1, 2, 'cpu', 'paper', 4, 1, 8, 0.25, 0.0, 0.5, 'paper.1', 9.0, 'EUR', 1796047200000000000, '0', 'gloo', 'fp32', 1, 'rowwise_adagrad');
CREATE TABLE fact_schedule_trial (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    step BIGINT NOT NULL CHECK (step >= 0),
    schedule VARCHAR NOT NULL,
    num_steps BIGINT NOT NULL CHECK (num_steps >= 0),
    step_s DOUBLE CHECK (step_s >= 0),
    is_chosen BOOLEAN NOT NULL,
    reason VARCHAR NOT NULL,
    PRIMARY KEY (run_id, step, schedule)
);
CREATE TABLE fact_cost_fit (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    step BIGINT NOT NULL CHECK (step >= 0),
    num_measured BIGINT NOT NULL CHECK (num_measured >= 0),
    t_step_s DOUBLE NOT NULL CHECK (t_step_s >= 0),
    c0_s DOUBLE NOT NULL CHECK (c0_s >= 0),
    a_s DOUBLE NOT NULL CHECK (a_s >= 0),
    b_s DOUBLE NOT NULL CHECK (b_s >= 0),
    residual_ratio DOUBLE NOT NULL CHECK (residual_ratio >= 0),
    is_taken BOOLEAN NOT NULL,
    reason VARCHAR NOT NULL,
    PRIMARY KEY (run_id, step)
);
CREATE TABLE fact_transport_trial (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    transport VARCHAR NOT NULL,
    is_available BOOLEAN NOT NULL,
    is_chosen BOOLEAN NOT NULL,
    alone_s DOUBLE CHECK (alone_s >= 0),
    beside_s DOUBLE CHECK (beside_s >= 0),
    slowdown_share DOUBLE CHECK (slowdown_share >= 0) CHECK (slowdown_share <= 1),
    bytes_per_s DOUBLE CHECK (bytes_per_s >= 0),
    reason VARCHAR NOT NULL,
    PRIMARY KEY (run_id, transport)
);
CREATE TABLE fact_step (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    rank BIGINT NOT NULL CHECK (rank >= 0),
    step BIGINT NOT NULL CHECK (step >= 0),
    epoch BIGINT NOT NULL CHECK (epoch >= 0),
    block BIGINT NOT NULL CHECK (block >= 0),
    started_unix_ns BIGINT NOT NULL CHECK (started_unix_ns >= 0),
    window_s DOUBLE NOT NULL CHECK (window_s >= 0),
    busy_s DOUBLE NOT NULL CHECK (busy_s >= 0),
    straggler_wait_s DOUBLE CHECK (straggler_wait_s >= 0),
    exposed_comm_s DOUBLE CHECK (exposed_comm_s >= 0),
    exposed_copy_s DOUBLE NOT NULL CHECK (exposed_copy_s >= 0),
    data_wait_s DOUBLE NOT NULL CHECK (data_wait_s >= 0),
    host_wait_s DOUBLE CHECK (host_wait_s >= 0),
    kernel_gap_s DOUBLE CHECK (kernel_gap_s >= 0),
    unattributed_s DOUBLE NOT NULL CHECK (unattributed_s >= 0),
    exposed_comm_total_s DOUBLE NOT NULL CHECK (exposed_comm_total_s >= 0),
    comm_s DOUBLE NOT NULL CHECK (comm_s >= 0),
    overlapped_comm_s DOUBLE NOT NULL CHECK (overlapped_comm_s >= 0),
    cpu_s DOUBLE NOT NULL CHECK (cpu_s >= 0),
    predicted_cost_s DOUBLE NOT NULL CHECK (predicted_cost_s >= 0),
    num_sequences BIGINT NOT NULL CHECK (num_sequences >= 0),
    num_tokens BIGINT NOT NULL CHECK (num_tokens >= 0),
    num_targets BIGINT NOT NULL CHECK (num_targets >= 0),
    loss_sum DOUBLE NOT NULL,
    num_rows BIGINT NOT NULL CHECK (num_rows >= 0),
    num_rows_ahead BIGINT NOT NULL CHECK (num_rows_ahead >= 0),
    sent_bytes BIGINT NOT NULL CHECK (sent_bytes >= 0),
    exposed_ids_s DOUBLE CHECK (exposed_ids_s >= 0),
    exposed_rows_s DOUBLE CHECK (exposed_rows_s >= 0),
    exposed_gradients_s DOUBLE CHECK (exposed_gradients_s >= 0),
    exposed_dense_s DOUBLE CHECK (exposed_dense_s >= 0),
    recorder_cpu_s DOUBLE CHECK (recorder_cpu_s >= 0),
    was_skipped BOOLEAN,
    PRIMARY KEY (run_id, rank, step)
);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 0, 0, 0, 0, 1796047200000000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 80.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 0, 1, 0, 0, 1796047202500000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 64.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 0, 2, 0, 1, 1796047205000000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 48.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 0, 3, 0, 1, 1796047207500000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 32.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 1, 0, 0, 0, 1796047200000000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 80.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 1, 1, 0, 0, 1796047202500000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 64.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 1, 2, 0, 1, 1796047205000000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 48.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 1, 3, 0, 1, 1796047207500000000, 2.5, 2.0, 0.0, 0.25, 0.0, 0.125, NULL, NULL, 0.125, 0.25, 0.25, 0.0, 1.0, 2.0, 4, 20, 16, 32.0, 16, 4, 1024, 0.0, 0.25, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 0, 0, 0, 0, 1796047200000000000, 4.0, 3.0, 0.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 0.5, 0.5, 0.0, 1.5, 3.0, 4, 20, 16, 80.0, 16, 4, 1024, 0.0, 0.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 0, 1, 0, 0, 1796047204000000000, 4.0, 3.0, 0.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 0.5, 0.5, 0.0, 1.5, 3.0, 4, 20, 16, 64.0, 16, 4, 1024, 0.0, 0.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 0, 2, 0, 1, 1796047208000000000, 4.0, 3.0, 0.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 0.5, 0.5, 0.0, 1.5, 3.0, 4, 20, 16, 48.0, 16, 4, 1024, 0.0, 0.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 0, 3, 0, 1, 1796047212000000000, 4.0, 3.0, 0.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 0.5, 0.5, 0.0, 1.5, 3.0, 4, 20, 16, 32.0, 16, 4, 1024, 0.0, 0.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 1, 0, 0, 0, 1796047200000000000, 4.0, 1.0, 2.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 2.5, 2.5, 0.0, 0.5, 1.0, 4, 20, 16, 80.0, 16, 4, 1024, 0.0, 2.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 1, 1, 0, 0, 1796047204000000000, 4.0, 1.0, 2.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 2.5, 2.5, 0.0, 0.5, 1.0, 4, 20, 16, 64.0, 16, 4, 1024, 0.0, 2.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 1, 2, 0, 1, 1796047208000000000, 4.0, 1.0, 2.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 2.5, 2.5, 0.0, 0.5, 1.0, 4, 20, 16, 48.0, 16, 4, 1024, 0.0, 2.5, 0.0, 0.0, 0.0, FALSE);
INSERT INTO fact_step VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 1, 3, 0, 1, 1796047212000000000, 4.0, 1.0, 2.0, 0.5, 0.0, 0.25, NULL, NULL, 0.25, 2.5, 2.5, 0.0, 0.5, 1.0, 4, 20, 16, 32.0, 16, 4, 1024, 0.0, 2.5, 0.0, 0.0, 0.0, FALSE);
CREATE TABLE fact_device_sample (
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    host VARCHAR NOT NULL,
    device_id VARCHAR NOT NULL,
    device_name VARCHAR NOT NULL,
    sampled_unix_ns BIGINT NOT NULL CHECK (sampled_unix_ns >= 0),
    interval_s DOUBLE NOT NULL CHECK (interval_s >= 0),
    utilization_share DOUBLE CHECK (utilization_share >= 0) CHECK (utilization_share <= 1),
    memory_used_bytes BIGINT CHECK (memory_used_bytes >= 0),
    memory_total_bytes BIGINT CHECK (memory_total_bytes >= 0),
    power_w DOUBLE CHECK (power_w >= 0),
    sampler_cpu_s DOUBLE NOT NULL CHECK (sampler_cpu_s >= 0),
    PRIMARY KEY (pipeline_id, host, device_id, sampled_unix_ns)
);
INSERT INTO fact_device_sample VALUES ('20261130T140000Z-1a2b', 0, 'paper', 'cpu', 'paper', 1796047200000000000, 1.0, 0.5, 0, 100, NULL, 0.0);
INSERT INTO fact_device_sample VALUES ('20261130T140000Z-1a2b', 0, 'paper', 'cpu', 'paper', 1796047201000000000, 1.0, 0.5, 1, 100, NULL, 0.01);
INSERT INTO fact_device_sample VALUES ('20261130T140000Z-1a2b', 0, 'paper', 'cpu', 'paper', 1796047202000000000, 1.0, 0.5, 2, 100, NULL, 0.02);
CREATE TABLE fact_evaluation (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt >= 0),
    split VARCHAR NOT NULL,
    ranker VARCHAR NOT NULL,
    num_users BIGINT NOT NULL CHECK (num_users >= 0),
    num_cold_targets BIGINT NOT NULL CHECK (num_cold_targets >= 0),
    hr_at_10 DOUBLE NOT NULL CHECK (hr_at_10 >= 0) CHECK (hr_at_10 <= 1),
    ndcg_at_10 DOUBLE NOT NULL CHECK (ndcg_at_10 >= 0) CHECK (ndcg_at_10 <= 1),
    mrr DOUBLE NOT NULL CHECK (mrr >= 0) CHECK (mrr <= 1),
    parameters_sha256 VARCHAR NOT NULL,
    PRIMARY KEY (run_id, split, ranker)
);
INSERT INTO fact_evaluation VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 'test', 'model', 8, 1, 0.16, 0.08, 0.04, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO fact_evaluation VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 'test', 'popularity', 8, 1, 0.08, 0.04, 0.02, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO fact_evaluation VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 0, 'validation', 'model', 8, 1, 0.5, 0.25, 0.125, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO fact_evaluation VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 'test', 'model', 8, 1, 0.16, 0.08, 0.04, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO fact_evaluation VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 'test', 'popularity', 8, 1, 0.08, 0.04, 0.02, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO fact_evaluation VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 0, 'validation', 'model', 8, 1, 0.5, 0.25, 0.125, '0000000000000000000000000000000000000000000000000000000000000000');
CREATE TABLE dim_model (
    run_id VARCHAR NOT NULL,
    pipeline_id VARCHAR NOT NULL,
    mlflow_run_id VARCHAR NOT NULL,
    mlflow_parent_run_id VARCHAR NOT NULL,
    model_name VARCHAR,
    model_version VARCHAR,
    model_alias VARCHAR,
    PRIMARY KEY (run_id)
);
INSERT INTO dim_model VALUES ('20261130T140000Z-1a2b-balanced', '20261130T140000Z-1a2b', 'm-balanced', 'm', 'seqscale', '1', 'challenger');
INSERT INTO dim_model VALUES ('20261130T140000Z-1a2b-baseline', '20261130T140000Z-1a2b', 'm-baseline', 'm', NULL, NULL, NULL);
