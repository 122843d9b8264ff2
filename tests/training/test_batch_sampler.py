"""The sampler for somebody else's loop: a permutation over the ranks, and a gradient unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from analytics.errors import ConfigError, PlanError
from training.batch_sampler import BalancedBatchSampler, fill_empty_ranks
from training.planning.balance import load_of_ranks, straggler_share
from training.planning.cost import CostModel

COST = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1.0, b_s=0.01, source="test")
LENGTHS = np.exp(np.random.default_rng(0).normal(3, 1, 203)).clip(1, 300).astype(np.int64)


def samplers(num_ranks: int = 4, **settings: Any) -> list[BalancedBatchSampler]:
    given = {"batch_size": 32, "cost": COST} | settings
    lengths = given.pop("lengths", LENGTHS)
    return [
        BalancedBatchSampler(lengths, num_ranks=num_ranks, rank=rank, **given)
        for rank in range(num_ranks)
    ]


@settings(deadline=None)
@given(
    num_ranks=st.integers(1, 5),
    batch=st.integers(5, 40),
    epoch=st.integers(0, 3),
    window=st.integers(1, 3),
    at_least_one=st.booleans(),
)
def test_the_ranks_share_every_epoch_out_once(
    num_ranks: int, batch: int, epoch: int, window: int, at_least_one: bool
) -> None:
    made = samplers(
        num_ranks, batch_size=batch, lookahead_batches=window, at_least_one=at_least_one
    )
    shares = []
    for sampler in made:
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler) == -(-203 // batch)
    together = sorted(index for share in shares for mine in share for index in mine)
    assert together == list(range(203))
    sizes = [sum(map(len, batches)) for batches in zip(*shares, strict=True)]
    assert sorted(sizes, reverse=True) == [batch] * (203 // batch) + [203 % batch] * (
        203 % batch > 0
    )


def test_epochs_differ_and_repeat() -> None:
    sampler = samplers()[0]
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_a_dropped_last_batch_is_dropped_on_every_rank() -> None:
    for sampler in samplers(drop_last=True):
        assert len(sampler) == len(list(sampler)) == 6  # 203 = 6 x 32 + 11


def share_lost(made: list[BalancedBatchSampler]) -> float:
    costs = COST.sequence_cost_s(LENGTHS)
    loads = [[costs[mine].sum() for mine in b] for b in zip(*made, strict=True)]
    share = straggler_share(loads)  # type: ignore[arg-type]
    assert share is not None
    return share


def test_it_balances() -> None:
    random = share_lost(samplers(placement="random_equal"))
    free = share_lost(samplers())
    assert free < 0.75 * random
    assert share_lost(samplers(at_least_one=True)) >= free
    assert share_lost(samplers(lookahead_batches=4)) < free


def test_the_scaled_mean_of_means_is_the_mean_over_all() -> None:
    # loss of sample i: i; mean over the ranks of scale x mean = mean over the batch
    made = samplers()
    for step, batches in enumerate(zip(*made, strict=True)):
        means = [np.mean(mine) if mine else 0.0 for mine in batches]
        scaled = [s.loss_scale(step) * m for s, m in zip(made, means, strict=True)]
        assert np.mean(scaled) == pytest.approx(np.mean(np.concatenate(batches)))


def test_loss_scale_on_paper() -> None:
    # lengths 11, 2, 3, 4: cost L + L^2/100 places 11 alone; 3 ranks' worth of targets 10, 1 + 2 + 3
    made = samplers(2, lengths=[11, 2, 3, 4], batch_size=4)
    held = [next(iter(sampler)) for sampler in made]
    assert held == [[0], [1, 2, 3]]
    assert [s.loss_scale(0) for s in made] == [2 * 1 / 4, 2 * 3 / 4]
    assert [s.loss_scale(0, mean_over="targets") for s in made] == [2 * 10 / 16, 2 * 6 / 16]


def test_every_rank_has_a_sample_when_asked_and_there_are_enough() -> None:
    # histories without an event cost nothing here, so both lie on the first rank without load
    empty = samplers(3, lengths=[9, 0, 0], batch_size=3)
    assert sorted(len(next(iter(sampler))) for sampler in empty) == [0, 1, 2]
    filled = samplers(3, lengths=[9, 0, 0], batch_size=3, at_least_one=True)
    assert [len(next(iter(sampler))) for sampler in filled] == [1, 1, 1]
    # 5 = 3 + 2: the short batch leaves one rank empty, and that is legal
    short = samplers(3, lengths=[5, 4, 3, 2, 1], batch_size=3, at_least_one=True)
    assert sorted(len(list(sampler)[1]) for sampler in short) == [0, 1, 1]


def test_filling_on_paper() -> None:
    # rank 0 holds 5 and 4, rank 1 holds 10 alone, rank 2 nothing: it gets the 4
    rank_B = np.array([0, 0, 1])
    fill_empty_ranks(rank_B, np.array([5.0, 4.0, 10.0]), 3)
    assert rank_B.tolist() == [0, 2, 1]
    assert load_of_ranks(np.array([5.0, 4.0, 10.0]), rank_B, 3).tolist() == [5, 10, 4]


def test_no_rank_holds_more_events_than_it_may() -> None:
    for sampler in samplers(max_tokens=285):
        assert max(LENGTHS[mine].sum() for mine in sampler) <= 285
    with pytest.raises(
        PlanError, match=r"A global batch has \d+ events, more than 4 ranks of at most 100"
    ):
        list(samplers(max_tokens=100)[0])


class Histories(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((int(LENGTHS[index]),), index)


def first_events(samples: list[torch.Tensor]) -> list[int]:
    """A collate that takes an empty list."""
    return [int(sample[0]) for sample in samples]


def test_a_loader_with_workers_gives_what_the_sampler_says() -> None:
    seen: list[int] = []
    for sampler in samplers(3, batch_size=20):
        loader = DataLoader(
            Histories(), batch_sampler=sampler, collate_fn=first_events, num_workers=2,
            multiprocessing_context="fork",
        )  # fmt: skip
        assert len(loader) == 11
        batches = []
        for step, batch in enumerate(loader):
            assert sampler.loss_scale(step) == pytest.approx(
                3 * len(batch) / (20 if step < 10 else 3)
            )
            batches.append(batch)
        assert batches == list(sampler)
        seen += [index for batch in batches for index in batch]
    assert sorted(seen) == list(range(203))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3}, r"batch_size is 3, fewer than the 4 ranks.*at least 4"),
        ({"placement": "best"}, "placement is 'best'"),
        ({"lengths": [3, -1]}, "none negative.*least -1"),
        ({"lengths": []}, "at least one length"),
        ({"lookahead_batches": 0}, "lookahead_batches is 0"),
    ],
)
def test_a_wrong_setting_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        samplers(**changes)


def test_a_rank_outside_and_a_batch_not_begun_are_refused() -> None:
    with pytest.raises(ConfigError, match="rank is 2"):
        BalancedBatchSampler([1, 2], num_ranks=2, rank=2, batch_size=2, cost=COST)
    with pytest.raises(
        ConfigError, match=r"Batch 0 of epoch 0 has not been yielded yet \(0 have\)"
    ):
        samplers()[0].loss_scale(0)
    with pytest.raises(ConfigError, match="mean_over is 'tokens'"):
        samplers()[0].loss_scale(0, mean_over="tokens")
