from __future__ import annotations

import pytest
import torch

from training.embeddings.table import ShardedTable


@pytest.fixture
def table() -> ShardedTable:
    made = ShardedTable(
        num_rows=4, width=4, rank=0, world_size=1, learning_rate=0.5, seed=1, eps=0.0
    )
    made.weight_MD.fill_(1.0)
    return made


def test_row_wise_adagrad_on_paper(table: ShardedTable) -> None:
    # g = (2, 2, 2, 2): accumulator = mean of squares = 4, step = 0.5 * 2 / 2 = 0.5
    table.apply(torch.tensor([1]), torch.full((1, 4), 2.0))
    assert table.accumulator_M.tolist() == [0.0, 4.0, 0.0, 0.0]
    assert table.weight_MD[1].tolist() == [0.5] * 4
    # again with g = 2 sqrt(3): accumulator = 4 + 12 = 16, step = 0.5 * 2 sqrt(3) / 4 = .433
    table.apply(torch.tensor([1]), torch.full((1, 4), 2 * 3**0.5))
    assert table.accumulator_M[1].item() == pytest.approx(16.0)
    assert table.weight_MD[1, 0].item() == pytest.approx(0.5 - 0.25 * 3**0.5)


def test_a_row_asked_for_twice_gets_one_step_with_the_summed_gradient(table: ShardedTable) -> None:
    # 3 and -1 sum to 2: one step of 0.5 as above, not two
    gradients = torch.tensor([[3.0] * 4, [-1.0] * 4])
    table.apply(torch.tensor([2, 2]), gradients)
    assert table.accumulator_M[2].item() == 4.0
    assert table.weight_MD[2].tolist() == [0.5] * 4


def test_rows_without_a_gradient_do_not_change(table: ShardedTable) -> None:
    table.apply(torch.tensor([1]), torch.ones(1, 4))
    for row in (0, 2, 3):
        assert table.weight_MD[row].tolist() == [1.0] * 4
    table.apply(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4))  # nothing asked: legal


def test_a_lookup_is_a_copy(table: ShardedTable) -> None:
    rows = table.lookup(torch.tensor([3, 3]))
    rows += 1
    assert table.weight_MD[3].tolist() == [1.0] * 4
