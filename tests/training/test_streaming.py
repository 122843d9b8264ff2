"""Streams: nothing dropped or doubled, balanced as a plan would, and every rank ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analytics.errors import ConfigError
from tests.training.stream_programs import (
    COST,
    failing_stream,
    leave_early,
    read_streams,
    stream_of,
    wrong_samples,
)
from training.planning.placement import lpt_free
from training.streaming import BalancedStream

OnRanks = Callable[..., list[Any]]


@pytest.mark.parametrize(
    "counts", [[23], [23, 23], [0, 17], [60, 6], [0, 9, 90, 1], [0, 0]], ids=str
)
def test_every_sample_arrives_once_and_whole(on_ranks: OnRanks, counts: list[int]) -> None:
    results = on_ranks(read_streams, len(counts), counts, {})
    sent = {s.sample_id: s.events.tolist() for r, n in enumerate(counts) for s in stream_of(r, n)}
    arrived = [
        pair
        for result in results
        for b in result
        for pair in zip(b["ids"], b["events"], strict=True)
    ]
    assert len(arrived) == len(sent)
    assert dict(arrived) == sent
    # all ranks see the same batches: as many as the longest stream needs at four a batch
    assert {len(result) for result in results} == {-(-max(counts) // 4)}
    for batches in zip(*results, strict=True):
        assert {b["num_samples"] for b in batches} == {sum(len(b["ids"]) for b in batches)}
        targets = sum(max(len(e) - 1, 0) for b in batches for e in b["events"])
        assert {b["global_targets"] for b in batches} == {targets}
        assert sum(b["num_targets"] for b in batches) == targets


def test_the_placement_is_the_plans_and_order_is_kept(on_ranks: OnRanks) -> None:
    first, second = on_ranks(read_streams, 2, [8, 8], {})
    for step in range(2):
        batch = [s for rank in range(2) for s in stream_of(rank, 8)[4 * step : 4 * step + 4]]
        costs = COST.sequence_cost_s([len(s.events) for s in batch])
        rank_N = lpt_free(costs, 2, np.random.default_rng(0))
        for rank, result in enumerate((first, second)):
            wanted = [s.sample_id for s, r in zip(batch, rank_N, strict=True) if r == rank]
            assert result[step]["ids"] == wanted
            assert result[step]["cost_s"] == pytest.approx(costs[rank_N == rank].sum())


@pytest.mark.parametrize("settings", [{"placement": "random_equal", "seed": 3}, {}], ids=str)
def test_streams_are_repeatable(on_ranks: OnRanks, settings: dict[str, Any]) -> None:
    runs = [on_ranks(read_streams, 2, [20, 13], settings) for _ in range(2)]
    assert runs[0] == runs[1]


def test_no_rank_holds_more_events_than_it_may(on_ranks: OnRanks) -> None:
    free = on_ranks(read_streams, 2, [40, 40], {})
    held = on_ranks(
        read_streams, 2, [40, 40], {"max_tokens_per_rank": 170, "placement": "random_equal"}
    )

    def most(results: list[Any]) -> int:
        return max(sum(map(len, b["events"])) for result in results for b in result)

    assert most(held) <= 170
    assert sum(len(b["ids"]) for result in held for b in result) == 80
    assert free != held


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_an_iterator_that_raises_ends_every_rank_with_the_reason(
    on_ranks: OnRanks, world_size: int
) -> None:
    failing = world_size - 1
    # two whole batches of four, then the third fails while it is read
    wanted = (
        f"2 InputError The stream of rank {failing} failed at global batch 2 "
        "(OSError: the disk is gone), so all ranks end."
    )
    for said in on_ranks(failing_stream, world_size, failing):
        assert said.startswith(wanted)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("float", "must be a flat int64 array, found float64 (3,)"),
        ("long", "PlanError A sequence has 50 events, more than the 40"),
    ],
)
def test_a_sample_that_cannot_be_used_ends_every_rank(
    on_ranks: OnRanks, what: str, message: str
) -> None:
    said = on_ranks(wrong_samples, 2, what)
    assert all(message in text for text in said), said


def test_leaving_early_on_all_ranks_is_quick_and_silent(on_ranks: OnRanks) -> None:
    for took_s, seen, raised in on_ranks(leave_early, 2, [3, 3]):
        assert (seen, raised) == (3, "")
        assert took_s < 5


def test_a_rank_that_leaves_alone_ends_the_others(on_ranks: OnRanks) -> None:
    (_, seen_0, raised_0), (_, seen_1, raised_1) = on_ranks(leave_early, 2, [3, 1000])
    # rank 1 gets what was already under way, then the word
    assert (seen_0, raised_0) == (3, "")
    assert seen_1 == 4
    assert raised_1.startswith("Rank 0 closed its stream before global batch 4.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples_per_rank": 0}, "samples_per_rank is 0"),
        ({"placement": "best"}, "placement is 'best'; known are random_equal"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BalancedStream([], None, **({"samples_per_rank": 1, "cost": COST} | settings))  # type: ignore[arg-type]
