from __future__ import annotations

import numpy as np
import pytest

from tests.training import comm_programs as programs
from training.comm.reduce import num_chunks_for

KINDS = ["gloo", "nccl"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_sum_is_in_rank_order_whatever_the_pieces(on_ranks, kind, world_size) -> None:
    results = on_ranks(programs.sums, world_size, 50, kind)
    by_rank = np.zeros(50, dtype=np.float32)
    for rank in range(world_size):
        by_rank = by_rank + results[rank][3] if rank else results[0][3]
    for whole, pieces, by_hand, _ in results:
        assert np.array_equal(whole, by_rank)
        assert np.array_equal(pieces, by_rank)
        # 1 + ... + R, 10 (0 + ... + R-1), R / 2
        triangle = world_size * (world_size + 1) / 2
        assert by_hand == [triangle, 10 * (triangle - world_size), world_size / 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 20])
def test_an_exchange_in_chunks_is_the_whole_exchange(on_ranks, num_chunks, kind) -> None:
    for whole, parts in on_ranks(programs.chunked, 4, num_chunks, kind):
        assert np.array_equal(whole, parts)


def test_a_transfer_has_as_many_chunks_as_its_dearest_rank_needs() -> None:
    assert [num_chunks_for(size, 100) for size in (0, 1, 100, 101, 1000)] == [1, 1, 1, 2, 10]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_keeps_the_order_on_one_thread_and_counts_its_traffic_once(on_ranks, kind) -> None:
    for result in on_ranks(programs.ordered_work, 2, kind):
        assert result["seen"] == list(range(8))
        assert result["threads"] == 1
        assert result["output"] == [0.0, 1.0]
        assert result["sent"] == 4  # one float to the other rank
        assert result["in_flight"] == 1
        assert result["cpu_ns"] > 0
        assert result["again"] == (0, 0, 0)


@pytest.mark.parametrize("silent_s", [0.0, 12.0])
def test_a_dead_or_silent_rank_ends_the_others_and_closes_the_lane(on_ranks, silent_s) -> None:
    results = on_ranks(programs.die, 3, 4, silent_s)
    for name, seconds in results[:2]:
        # a closed connection is noticed at once, silence when the group's 4 s have passed
        assert name.endswith("Error")
        assert seconds < 10
