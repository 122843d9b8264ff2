"""Our engine against TorchRec's plain row-wise sharded module with its fused optimisers.

TorchRec is in the `bench` extra (make setup BENCH=1). It is imported in the ranks only: importing
it warns, and takes seconds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.training.torchrec_programs import (
    ROWS,
    SCHEDULES,
    check_adapter,
    train_ours,
    train_torchrec,
)

NUM_STEPS = 30

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("torchrec") is None
        or importlib.util.find_spec("fbgemm_gpu") is None,
        reason="TorchRec is not installed; 'make setup BENCH=1' brings it",
    ),
]

OnRanks = Callable[..., list[Any]]


def joined_by_rows(shares: list[dict[str, Any]], what: str, table: str) -> Any:
    """A whole table of TorchRec, whose ranks hold consecutive rows."""
    by_first = sorted(shares, key=lambda share: share["first"][table])
    return np.concatenate([share[what][table] for share in by_first])


def whole(shares: list[dict[str, Any]], what: str, table: str) -> Any:
    """A whole table of ours in the order of ids."""
    ids = np.concatenate([share["ids"][table] for share in shares])
    return np.concatenate([share[what][table] for share in shares])[np.argsort(ids)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_the_engine_trains_as_torchrecs_plain_module_does(
    on_ranks: OnRanks, optimizer: str, world_size: int
) -> None:
    theirs = on_ranks(train_torchrec, world_size, optimizer, NUM_STEPS)
    by_rank = on_ranks(train_ours, world_size, optimizer, NUM_STEPS)
    losses = np.array([share["losses"] for share in theirs])
    for schedule in SCHEDULES:
        ours = [of_rank[schedule] for of_rank in by_rank]
        np.testing.assert_allclose([share["losses"] for share in ours], losses, rtol=1e-6)
        for table, (num_rows, width) in ROWS.items():
            weight = joined_by_rows(theirs, "weight", table)
            assert weight.shape == (num_rows, width)
            np.testing.assert_allclose(whole(ours, "weight", table), weight, rtol=0, atol=1e-6)
            if optimizer != "sgd":
                sums = joined_by_rows(theirs, "accumulator", table)
                mine = whole(ours, "accumulator", table)
                np.testing.assert_allclose(mine.flatten(), sums.flatten(), rtol=0, atol=1e-6)
        for name, value in theirs[0]["dense"].items():
            np.testing.assert_allclose(ours[0]["dense"][name], value, rtol=0, atol=1e-6)
    of_step = losses.sum(axis=0)
    assert of_step[-1] < 0.9 * of_step[0]  # it does train


def test_the_adapter_gives_what_an_embedding_collection_gives(on_ranks: OnRanks) -> None:
    ((theirs, ours),) = on_ranks(check_adapter, 1)
    assert set(ours) == set(theirs) == {"seen", "user", "bought"}
    for key, parts in theirs.items():
        for part, mine in zip(parts, ours[key], strict=True):
            np.testing.assert_array_equal(mine, part)
