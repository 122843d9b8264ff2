"""A table with its hottest rows on every rank trains to the same bits as the table alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from analytics.errors import ConfigError
from training.config import TABLE_OPTIMIZERS, TableConfig
from training.embeddings.hot_rows import HotRows, hottest
from training.embeddings.ids import distinct
from training.embeddings.table import ShardedTable

WORLD_SIZE, NUM_ROWS, WIDTH = 3, 60, 5
HOT_IDS = np.array([0, 4, 17, 59])


def config(**settings: str) -> TableConfig:
    return TableConfig(name="item", num_rows=NUM_ROWS, width=WIDTH, **settings)


def test_the_hottest_ids_on_paper() -> None:
    # counts 9 and 7 lead; of the three with 5 the lowest id comes first
    counts = np.array([5, 7, 0, 5, 9, 5])
    assert hottest(counts, 3).tolist() == [0, 1, 4]
    assert hottest(counts, 100).tolist() == [0, 1, 3, 4, 5]  # an id that never occurs is not hot
    assert hottest(counts, 0).tolist() == []


def test_ids_are_split_and_rows_put_back_in_order() -> None:
    rows = HotRows(config(), HOT_IDS)
    ids = torch.tensor([17, 3, 59, 58, 17])
    parts = rows.split(ids)
    assert parts.hot_X.tolist() == [2, 3, 2]  # 17 and 59 are the third and fourth hot row
    assert parts.cold_C.tolist() == [3, 58]
    hot = torch.tensor([[17.0], [59.0], [17.0]], requires_grad=True)
    cold = torch.tensor([[3.0], [58.0]], requires_grad=True)
    joined = rows.joined(hot, cold, parts)
    assert joined.flatten().tolist() == [17, 3, 59, 58, 17]
    weight = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
    (joined * weight).sum().backward()
    assert hot.grad is not None and cold.grad is not None
    assert hot.grad.flatten().tolist() == [1, 3, 5]
    assert cold.grad.flatten().tolist() == [2, 4]
    by_hand = rows.split_gradient(weight, parts)
    assert [part.flatten().tolist() for part in by_hand] == [[1, 3, 5], [2, 4]]


def test_all_hot_all_cold_and_none_are_legal() -> None:
    rows = HotRows(config(), HOT_IDS)
    for ids in ([0, 59], [1, 58], []):
        parts = rows.split(torch.tensor(ids, dtype=torch.int64))
        hot, cold = torch.zeros(len(parts.hot_X), WIDTH), torch.ones(len(parts.cold_C), WIDTH)
        assert rows.joined(hot, cold, parts).shape == (len(ids), WIDTH)


@pytest.mark.parametrize("hot", [[], [4, 0], [3, 3], [-1, 2], [0, 60]])
def test_hot_ids_that_are_no_rows_are_refused(hot: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"table 'item': the \d hot ids must be .* 60 rows"):
        HotRows(config(), np.array(hot, dtype=np.int64))


def test_a_replicated_table_has_no_hot_rows() -> None:
    with pytest.raises(ConfigError, match=r"replicated as a whole"):
        HotRows(config(placement="replicated"), HOT_IDS)


def apply_at_owners(shares: list[ShardedTable], asked: list[torch.Tensor], gradients, step) -> None:
    """What the exchange does: every owner applies all askers' gradients, in the order of ranks."""
    for rank, share in enumerate(shares):
        mine = [share.placement.owner(ids) == rank for ids in asked]
        places = [share.placement.place(ids)[keep] for ids, keep in zip(asked, mine, strict=True)]
        parts = [gradient[keep] for gradient, keep in zip(gradients, mine, strict=True)]
        share.apply(torch.cat(places), torch.cat(parts), step)


def rows_of(shares: list[ShardedTable], ids: torch.Tensor) -> torch.Tensor:
    owner, place = shares[0].placement.owner(ids), shares[0].placement.place(ids)
    picked = [shares[int(o)].weight_MD[int(p)] for o, p in zip(owner, place, strict=True)]
    return torch.stack(picked) if picked else torch.zeros(0, WIDTH)


@pytest.mark.parametrize("placement", ["round_robin", "hash"])
@pytest.mark.parametrize("optimizer", TABLE_OPTIMIZERS)
def test_replication_changes_no_bit(optimizer: str, placement: str) -> None:
    whole = config(optimizer=optimizer, placement=placement)
    hot_rows = HotRows(whole, HOT_IDS)
    place = {"world_size": WORLD_SIZE, "seed": 4}
    plain = [ShardedTable(whole, rank=rank, **place) for rank in range(WORLD_SIZE)]
    pairs = [hot_rows.tables(rank=rank, **place) for rank in range(WORLD_SIZE)]
    hot, cold = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    generator = torch.Generator().manual_seed(9)
    for step in range(25):
        asked, hot_asked, cold_asked = [], [], []
        gradients, hot_gradients, cold_gradients = [], [], []
        for rank in range(WORLD_SIZE):
            # squares crowd at low ids; in every third step one rank has nothing
            size = 0 if step % 3 == rank else 40
            drawn = torch.randint(0, NUM_ROWS, (size,), generator=generator) ** 2 // NUM_ROWS
            ids, _ = distinct(drawn)
            parts = hot_rows.split(ids)
            rows = hot_rows.joined(
                hot[rank].lookup(parts.hot_X), rows_of(cold, parts.cold_C), parts
            )
            assert torch.equal(rows, rows_of(plain, ids))
            gradient = rows.sin() + torch.randn(len(ids), WIDTH, generator=generator)
            hot_part, cold_part = hot_rows.split_gradient(gradient, parts)
            asked.append(ids)
            gradients.append(gradient)
            hot_asked.append(parts.hot_X)
            hot_gradients.append(hot_part)
            cold_asked.append(parts.cold_C)
            cold_gradients.append(cold_part)
        apply_at_owners(plain, asked, gradients, step)
        apply_at_owners(cold, cold_asked, cold_gradients, step)
        for replica in hot:
            replica.apply(torch.cat(hot_asked), torch.cat(hot_gradients), step)
    for rank in range(WORLD_SIZE):
        hot_rows.write_back(hot[rank], cold[rank], rank)
        assert torch.equal(cold[rank].weight_MD, plain[rank].weight_MD)
        for name, kept in plain[rank].state.items():
            assert torch.equal(cold[rank].state[name], kept)
