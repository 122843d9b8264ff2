"""Every placement is a bijection with even shares; hashing also separates what has a stride."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.config import TableConfig
from training.embeddings.row_placement import Hashed, Replicated, RoundRobin, row_placement


def test_the_configuration_names_the_placement() -> None:
    def named(name: str) -> type:
        config = TableConfig(name="item", num_rows=5, width=4, placement=name)
        return type(row_placement(config, 2))

    names = ["round_robin", "hash", "replicated"]
    assert [named(name) for name in names] == [RoundRobin, Hashed, Replicated]


def test_round_robin_on_paper() -> None:
    # 7 rows on 3 ranks: 0 3 6 | 1 4 | 2 5
    placement = RoundRobin(7, 3)
    ids = torch.arange(7)
    assert placement.owner(ids).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert placement.place(ids).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert placement.local_ids(1).tolist() == [1, 4]


@pytest.mark.parametrize("kind", [RoundRobin, Hashed])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 64, 1000, 4097])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_rows_and_places_are_one_to_one_and_shares_even(
    kind: type[RoundRobin | Hashed], num_rows: int, world_size: int
) -> None:
    placement = kind(num_rows, world_size)
    ids = torch.arange(num_rows)
    owner, place = placement.owner(ids), placement.place(ids)
    shares = [placement.local_ids(rank) for rank in range(world_size)]
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(shares).tolist()) == list(range(num_rows))
    for i in range(num_rows):
        assert shares[owner[i]][place[i]] == i


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("first_and_stride", [(0, 1), (0, 2), (3, 8), (500_000, 16)])
def test_popular_ids_in_a_row_or_with_a_stride_spread_evenly(
    world_size: int, first_and_stride: tuple[int, int]
) -> None:
    first, stride = first_and_stride
    popular = first + stride * torch.arange(10_000)
    counts = torch.bincount(Hashed(1 << 20, world_size).owner(popular), minlength=world_size)
    # as if drawn: 10,000 / R each, standard deviation sqrt(10000 (1/R) (1 - 1/R)) at most 50
    assert (counts - 10_000 / world_size).abs().max() < 5 * 50
    if stride % world_size == 0:  # what it is for: here round robin loads one rank alone
        assert len(RoundRobin(1 << 20, world_size).owner(popular).unique()) == 1


def test_the_largest_table_does_not_overflow() -> None:
    placement = Hashed(2**40, 4)
    ids = torch.tensor([0, 1, 2**39, 2**40 - 1])
    shuffled = placement.place(ids) * 4 + placement.owner(ids)
    assert (shuffled >= 0).all() and (shuffled < 2**40).all()
    ids_again = placement._unmixed(shuffled.numpy().astype(np.uint64))
    assert ids_again.tolist() == ids.tolist()


def test_a_replicated_row_lies_everywhere_at_its_id() -> None:
    placement = Replicated(3)
    assert placement.replicated
    assert placement.place(torch.tensor([2, 0])).tolist() == [2, 0]
    assert placement.local_ids(1).tolist() == [0, 1, 2]


def test_no_ids_are_legal() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for placement in (RoundRobin(5, 2), Hashed(5, 2), Replicated(5)):
        assert placement.owner(none).tolist() == placement.place(none).tolist() == []
