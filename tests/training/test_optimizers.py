"""Each rule's step, worked out on paper or taken from torch's own optimisers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from training.config import TableConfig
from training.embeddings.optimizers import _sum_of_halves, _sum_of_row
from training.embeddings.table import ShardedTable


def made(optimizer: str, **settings: Any) -> ShardedTable:
    config = TableConfig(name="item", num_rows=3, width=4, optimizer=optimizer, **settings)
    table = ShardedTable(config, rank=0, world_size=1, seed=1)
    table.weight_MD.fill_(1.0)
    return table


def stepped(table: ShardedTable, *gradients: list[float], row: int = 1) -> list[float]:
    for step, gradient in enumerate(gradients):
        table.apply(torch.tensor([row]), torch.tensor([gradient]), step)
    values: list[float] = table.weight_MD[row].tolist()
    return values


def test_sgd_on_paper() -> None:
    # 1 - 0.5 * 2 = 0, 1 - 0.5 * -1 = 1.5; no state
    table = made("sgd", learning_rate=0.5)
    assert stepped(table, [2.0, -1.0, 0.0, 4.0]) == [0.0, 1.5, 1.0, -1.0]
    assert table.state == {}


def test_row_wise_adagrad_on_paper() -> None:
    # g = 2: accumulator = mean of squares = 4, step = 0.5 * 2 / 2 = 0.5
    # g = 2 sqrt(3): accumulator = 4 + 12 = 16, step = 0.5 * 2 sqrt(3) / 4 = .433
    table = made("rowwise_adagrad", learning_rate=0.5, eps=0.0)
    assert stepped(table, [2.0] * 4) == [0.5] * 4
    assert stepped(table, [2 * 3**0.5] * 4)[0] == pytest.approx(0.5 - 0.25 * 3**0.5)
    assert table.state["accumulator"].tolist() == [0.0, pytest.approx(16.0), 0.0]


def test_row_wise_adagrad_takes_the_mean_over_the_row_not_the_sum() -> None:
    # g = (4, 0, 0, 0): mean of squares = 16 / 4 = 4, step = 0.5 * 4 / 2 = 1
    table = made("rowwise_adagrad", learning_rate=0.5, eps=0.0)
    assert stepped(table, [4.0, 0.0, 0.0, 0.0]) == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("total", [_sum_of_row, _sum_of_halves])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 100])
def test_a_rows_sum_does_not_depend_on_the_rows_beside_it(total: Any, width: int) -> None:
    ascending = torch.arange(1.0, width + 1).expand(3, width)
    assert total(ascending).tolist() == [width * (width + 1) / 2] * 3  # Gauss
    drawn = torch.randn(500, width)
    assert torch.equal(total(drawn), torch.cat([total(row[None]) for row in drawn]))
    assert total(torch.zeros(0, width)).shape == (0,)


def test_adagrad_on_paper() -> None:
    # every entry alone: 0.5 * g / |g| = 0.5; an entry without gradient stays, also with eps = 0
    table = made("adagrad", learning_rate=0.5, eps=0.0)
    assert stepped(table, [2.0, -8.0, 0.0, 1.0]) == [0.5, 1.5, 1.0, 0.5]
    assert table.state["accumulator"][1].tolist() == [4.0, 64.0, 0.0, 1.0]


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad", "lazy_adam"])
def test_eps_stands_beside_the_root(optimizer: str) -> None:
    # g = 1: 0.5 * 1 / (1 + 1) = 0.25; under the root it would be 0.5 / sqrt(2) = 0.35
    assert stepped(made(optimizer, learning_rate=0.5, eps=1.0), [1.0] * 4) == [0.75] * 4


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "lazy_adam"])
def test_a_gradient_of_zero_moves_nothing_at_first(optimizer: str) -> None:
    assert stepped(made(optimizer, eps=0.0), [0.0] * 4) == [1.0] * 4


def test_a_rows_first_adam_step_is_one_learning_rate_however_late_it_comes() -> None:
    # corrected by the row's own one step: mean = g, square = g^2, so lr g / |g|
    table = made("lazy_adam", learning_rate=0.5, eps=0.0)
    stepped(table, *[[1.0] * 4] * 50, row=0)
    assert stepped(table, [2.0, -8.0, 0.5, 1.0], row=2) == pytest.approx(
        [0.5, 1.5, 0.5, 0.5], abs=1e-6
    )
    assert table.weight_MD[1].tolist() == [1.0] * 4


def test_lazy_adam_keeps_the_weight_its_averages_were_given() -> None:
    # after n steps 1 - beta^n: 1 - .9^3 = .271 and 1 - .999^3 = .002997001
    table = made("lazy_adam")
    stepped(table, *[[1.0] * 4] * 3)
    assert table.state["mean_weight"].tolist() == [0.0, pytest.approx(0.271, rel=1e-6), 0.0]
    assert table.state["square_weight"][1].item() == pytest.approx(0.002997001, rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "oracle"),
    [("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad), ("lazy_adam", torch.optim.Adam)],
)
def test_a_row_met_in_every_batch_follows_torchs_own_optimiser(optimizer: str, oracle: Any) -> None:
    table = made(optimizer, learning_rate=0.05, eps=1e-8)
    weight = torch.nn.Parameter(torch.ones(4))
    settings = {} if optimizer == "sgd" else {"eps": 1e-8}
    theirs = oracle([weight], lr=0.05, **settings)
    generator = torch.Generator().manual_seed(3)
    for step in range(30):
        gradient = torch.randn(4, generator=generator)
        table.apply(torch.tensor([1]), gradient[None], step)
        weight.grad = gradient.clone()
        theirs.step()
    assert table.weight_MD[1].tolist() == pytest.approx(weight.tolist(), abs=1e-6)
