"""Batches' ids, collisions and hot rows against paper and against the slow way."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from analytics import batches
from analytics.batches import batch_profile, batch_table, event_positions, hot_rows, trained_events
from analytics.popularity import item_counts, popularity_profile, zipf_exponent
from tests.analytics.stores import made_store
from training.planning.collisions import collision_share
from training.planning.plan import global_batches

# three training events each: the shared item twice and one of the user's own
SHARED = [[0, 0, 1 + user, 7, 7] for user in range(6)]


def test_positions_are_each_users_run() -> None:
    found = event_positions(np.array([10, 50, 0]), np.array([2, 0, 3]))
    assert found.tolist() == [10, 11, 0, 1, 2]


def test_the_newest_training_events_are_trained_on(tmp_path: Path) -> None:
    trained = trained_events(made_store(tmp_path, [[1, 2, 3, 4, 9, 9], [5, 6, 9, 9]]), max_events=3)
    assert trained.length_U.tolist() == [3, 2]
    parts = list(trained.parts(np.array([1, 0]), num_negatives=0))
    assert [ids.tolist() for _, ids in parts] == [[5, 6, 2, 3, 4]]


def test_a_batch_is_read_in_parts_that_leave_nothing_out(tmp_path: Path, monkeypatch) -> None:
    histories = [[user] * (3 + user % 4) + [0, 0] for user in range(20)]
    trained = trained_events(made_store(tmp_path, histories))
    monkeypatch.setattr(batches, "_CHUNK_IDS", 10)
    users = np.random.default_rng(1).permutation(20)
    parts = list(trained.parts(users, num_negatives=2))
    assert len(parts) > 5
    assert sum(count for count, _ in parts) == 20
    assert all(len(ids) + 2 * count <= 10 for count, ids in parts)
    wanted = [item for user in users for item in histories[user][:-2]]
    assert np.concatenate([ids for _, ids in parts]).tolist() == wanted


def test_collisions_of_one_shared_item_are_as_on_paper(tmp_path: Path) -> None:
    # a batch of one user: 3 ids of 2 distinct rows, of which the batch before holds 1
    trained = trained_events(made_store(tmp_path, SHARED))
    found = batch_profile(trained, batch_sequences=1, num_negatives=0, seed=1)
    assert found["num_batches"] == 6
    assert found["history_share"] == found["share"] == pytest.approx(1 / 2)
    assert (found["mean_ids"], found["mean_rows"]) == (3, 2)
    assert found["deduplication_factor"] == pytest.approx(3 / 2)
    # one batch an epoch: the next epoch's batch holds the same rows; 18 ids of 7 rows
    whole = batch_profile(trained, batch_sequences=6, num_negatives=0, seed=1)
    assert whole["share"] == 1.0
    assert whole["deduplication_factor"] == pytest.approx(18 / 7)


def test_the_share_is_the_plans_collision_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    histories = [rng.integers(0, 90, 4 + user % 9).tolist() for user in range(50)]
    store = made_store(tmp_path, histories)
    found = batch_profile(trained_events(store), batch_sequences=8, num_negatives=0, seed=3)
    slow = [
        np.concatenate([store.training_items(int(user)) for user in users])
        for _, users in global_batches(50, 8, 1, 3)
    ]
    assert found["share"] == collision_share(slow)
    assert found["mean_rows"] == np.mean([len(np.unique(ids)) for ids in slow])
    drawn = batch_profile(trained_events(store), batch_sequences=8, num_negatives=5, seed=3)
    assert drawn["history_share"] == found["history_share"]
    assert drawn["mean_ids"] == pytest.approx(found["mean_ids"] + 5 * 50 / 7)


def test_hot_rows_are_counted_as_on_paper(tmp_path: Path) -> None:
    # the hottest row is the shared item (12 of 30 events): 2 of 3 ids of a batch of one user, and
    # the only row that collides
    store = made_store(tmp_path, SHARED)
    found = hot_rows(
        trained_events(store), np.array([12, 1, 1, 1, 1, 1, 1, 2]),
        batch_sequences=1, num_negatives=0, seed=1,
    )  # fmt: skip
    assert found == [
        {
            "num_hot_rows": 1,
            "id_share": pytest.approx(2 / 3),
            "collision_share": pytest.approx(1 / 2),
            "collision_share_without": 0.0,
        }
    ]


def test_more_hot_rows_hold_more_ids_and_leave_fewer_collisions(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    histories = [(rng.zipf(1.3, 30) % 3000).tolist() for _ in range(200)]
    store = made_store(tmp_path, histories)
    trained = trained_events(store)
    found = hot_rows(trained, item_counts(store), batch_sequences=20, num_negatives=4, seed=1)
    assert [entry["num_hot_rows"] for entry in found] == sorted(
        {entry["num_hot_rows"] for entry in found}
    )
    for fewer, more in itertools.pairwise(found):
        assert 0 <= fewer["id_share"] <= more["id_share"] <= 1
        assert fewer["collision_share_without"] >= more["collision_share_without"] >= 0
    alone = batch_profile(trained, batch_sequences=20, num_negatives=4, seed=1)
    assert found[0]["collision_share"] == alone["share"]


def test_a_table_of_few_users_tells_no_padding(tmp_path: Path) -> None:
    trained = trained_events(made_store(tmp_path, SHARED))
    told = batch_table(trained, sizes=(3, 1, 3), num_negatives=0, seed=1, min_group_users=6)
    assert [entry["batch_sequences"] for entry in told] == [1, 3]
    assert [entry["padding_share"] for entry in told] == [0.0, 0.0]
    kept = batch_table(trained, sizes=(1,), num_negatives=0, seed=1, min_group_users=7)
    assert kept[0]["padding_share"] is None


def test_users_without_training_events_do_not_break_a_batch(tmp_path: Path) -> None:
    trained = dataclasses.replace(
        trained_events(made_store(tmp_path, [[0, 1], [1, 0], [2, 1]])),
        length_U=np.zeros(3, dtype=np.int64),  # as a split by time may leave
    )
    found = batch_profile(trained, batch_sequences=1, num_negatives=0, seed=1)
    assert (found["mean_rows"], found["deduplication_factor"], found["share"]) == (0, 1.0, None)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_zipf_exponent_is_recovered_from_an_exact_law(exponent: float) -> None:
    counts = np.rint(1e9 * np.arange(1, 2001, dtype=np.float64) ** -exponent).astype(np.int64)
    assert zipf_exponent(counts) == pytest.approx(exponent, abs=1e-3)


def test_even_popularity_has_no_skew() -> None:
    found = popularity_profile(np.full(200, 7, dtype=np.int64))
    assert found["zipf_exponent"] == 0.0
    assert found["head_event_shares"] == {"0.01": pytest.approx(0.01), "0.1": pytest.approx(0.1)}
    assert found["once_item_share"] == 0.0


def test_head_share_is_a_ratio_of_counts() -> None:
    # 100 items: one with 101 events, 99 with one: 101 of 200 events lie on the top 1 %
    counts = np.ones(100, dtype=np.int64)
    counts[42] = 101
    found = popularity_profile(counts)
    assert found["head_event_shares"]["0.01"] == pytest.approx(101 / 200)
    assert found["most_popular_share"] == pytest.approx(101 / 200)
    assert found["once_item_share"] == pytest.approx(99 / 100)
