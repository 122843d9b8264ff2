from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from analytics.errors import ConfigError
from training.config import TABLE_OPTIMIZERS, TableConfig
from training.embeddings.gradient_sum import _one_after_another, _segment_by_segment, summed_by_row
from training.embeddings.row_placement import row_placement
from training.embeddings.table import ShardedTable


def made(num_rows: int = 4, width: int = 4, **settings: Any) -> ShardedTable:
    config = TableConfig(name="item", num_rows=num_rows, width=width, **settings)
    return ShardedTable(config, rank=0, world_size=1, seed=1)


@pytest.fixture
def table() -> ShardedTable:
    table = made(learning_rate=0.5, eps=0.0)
    table.weight_MD.fill_(1.0)
    return table


def test_a_row_asked_for_twice_gets_one_step_with_the_summed_gradient(table: ShardedTable) -> None:
    # 3 and -1 sum to 2: accumulator = mean of squares = 4, one step of 0.5 * 2 / 2, not two
    gradients = torch.tensor([[3.0] * 4, [-1.0] * 4])
    table.apply(torch.tensor([2, 2]), gradients, step=0)
    assert table.state["accumulator"].tolist() == [0.0, 0.0, 4.0, 0.0]
    assert table.weight_MD[2].tolist() == [0.5] * 4


def test_rows_without_a_gradient_do_not_change(table: ShardedTable) -> None:
    table.apply(torch.tensor([1]), torch.ones(1, 4), step=0)
    for row in (0, 2, 3):
        assert table.weight_MD[row].tolist() == [1.0] * 4
    table.apply(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), step=1)  # nothing: legal


def test_a_lookup_is_a_copy(table: ShardedTable) -> None:
    rows = table.lookup(torch.tensor([3, 3]))
    rows += 1
    assert table.weight_MD[3].tolist() == [1.0] * 4
    assert table.lookup(torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


def test_a_rank_may_own_no_rows() -> None:
    config = TableConfig(name="tiny", num_rows=2, width=4, optimizer="lazy_adam")
    table = ShardedTable(config, rank=2, world_size=3, seed=1)
    assert table.weight_MD.shape == (0, 4)
    assert {name: len(kept) for name, kept in table.state.items()} == {
        "mean": 0,
        "square": 0,
        "mean_weight": 0,
        "square_weight": 0,
    }
    table.apply(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), step=0)


@pytest.mark.parametrize("placement", ["round_robin", "hash", "replicated"])
def test_first_weights_do_not_depend_on_the_placement(placement: str) -> None:
    whole = made(num_rows=50).weight_MD
    config = TableConfig(name="item", num_rows=50, width=4, placement=placement)
    for rank in range(3):
        share = ShardedTable(config, rank=rank, world_size=3, seed=1)
        ids = row_placement(config, 3).local_ids(rank)
        assert torch.equal(share.weight_MD, whole[torch.from_numpy(ids)])


def test_both_ways_of_summing_differ_by_nothing() -> None:
    torch.manual_seed(0)
    # 3,000 gradients of widely different size on 40 rows, so that another order would show
    places_Q = torch.randint(0, 40, (3000,)) ** 2 // 40
    gradient_QD = torch.randn(3000, 7) * 10.0 ** torch.randint(-4, 4, (3000, 1))
    rows, sums = _one_after_another(places_Q, gradient_QD)
    sorted_rows, sorted_sums = _segment_by_segment(places_Q, gradient_QD)
    assert torch.equal(rows, sorted_rows)
    assert torch.equal(sums, sorted_sums)
    by_hand = np.zeros((len(rows), 7), dtype=np.float32)
    for place, gradient in zip(places_Q.tolist(), gradient_QD.numpy(), strict=True):
        by_hand[rows.tolist().index(place)] += gradient
    assert np.array_equal(sums.numpy(), by_hand)  # one after another, in float32
    reverse = summed_by_row(places_Q.flip(0), gradient_QD.flip(0))[1]
    assert not torch.equal(sums, reverse)  # the order matters, so equality above says something


def test_no_gradients_sum_to_no_rows() -> None:
    for way in (_one_after_another, _segment_by_segment):
        rows, sums = way(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
        assert (rows.shape, sums.shape) == ((0,), (0, 3))


@pytest.mark.parametrize("width", [1, 5, 64])
@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
def test_a_batch_in_parts_from_threads_gives_the_bits_of_one_call(
    optimizer: str, width: int
) -> None:
    whole = made(num_rows=97, width=width, optimizer=optimizer)
    parts = made(num_rows=97, width=width, optimizer=optimizer)
    generator = torch.Generator().manual_seed(5)
    for step in range(12):
        places_Q = torch.randint(0, 97, (300,), generator=generator)
        gradient_QD = torch.randn(300, width, generator=generator)
        whole.apply(places_Q, gradient_QD, step)
        keys_Q = places_Q * 7 % 11  # 0 or more rows a part; part 3 is one row alone
        masks = [keys_Q < 2, (keys_Q >= 2) & (places_Q != 40), places_Q == 40]
        masks[0] &= places_Q != 40
        threads = [
            threading.Thread(target=parts.apply, args=(places_Q[keep], gradient_QD[keep], step))
            for keep in masks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert torch.equal(whole.weight_MD, parts.weight_MD)
    for name in whole.state:
        assert torch.equal(whole.state[name], parts.state[name])


def test_a_table_that_does_not_fit_is_refused_when_it_is_made() -> None:
    config = TableConfig(name="item", num_rows=2**40, width=64)
    with pytest.raises(ConfigError, match=r"table 'item' .* does not fit on cpu"):
        ShardedTable(config, rank=0, world_size=2, seed=1)
