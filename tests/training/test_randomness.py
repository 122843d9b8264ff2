from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.randomness import dropout_keep, first_weights, kept_scale, negatives


def test_negatives_depend_on_their_name_alone() -> None:
    names = [(seed, epoch, s) for seed in (1, 2) for epoch in (0, 1) for s in (0, 1, 2)]

    def draw(seed: int, epoch: int, sequence: int) -> list[int]:
        return negatives(
            seed=seed, epoch=epoch, sequence=sequence, num_items=10**6, count=32
        ).tolist()

    forwards = {name: draw(*name) for name in names}
    backwards = {name: draw(*name) for name in reversed(names)}
    assert forwards == backwards
    assert len({tuple(drawn) for drawn in forwards.values()}) == len(names)


def test_negatives_are_uniform_over_all_items() -> None:
    drawn = negatives(seed=1, epoch=0, sequence=5, num_items=10, count=100_000)
    counts = np.bincount(drawn, minlength=10)
    # 100,000 draws into 10 bins: 10,000 each, standard deviation sqrt(100000 * .1 * .9) = 95
    assert np.abs(counts - 10_000).max() < 5 * 95


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_dropout_drops_its_share_and_keeps_the_expectation(share: float) -> None:
    keep = dropout_keep(
        seed=1, epoch=0, sequence=3, num_sites=2, length=1000, width=64, share=share
    )
    assert keep.shape == (2, 1000, 64)
    # 128,000 units: standard deviation of the share at most .5 / sqrt(128000) = .0014
    assert keep.mean() == pytest.approx(1 - share, abs=0.007)
    assert (keep * kept_scale(share)).mean() == pytest.approx(1.0, abs=0.014)


def test_a_rows_first_weights_depend_on_its_id_alone() -> None:
    def drawn(ids: Any) -> Any:
        return first_weights(seed=3, row_ids_M=np.asarray(ids, dtype=np.int64), width=8, scale=0.5)

    whole = drawn(range(10_001))
    assert whole.shape == (10_001, 8)
    assert whole.std() == pytest.approx(0.5, rel=0.02)
    for rank in range(3):
        np.testing.assert_array_equal(drawn(range(rank, 10_001, 3)), whole[rank::3])
    shuffled = np.random.default_rng(1).permutation(10_001)[:5000]
    np.testing.assert_array_equal(drawn(shuffled), whole[shuffled])
    assert drawn([]).shape == (0, 8)


FIRST_WEIGHTS = [
    [-1.1585094928741455, -0.6078550219535828],
    [1.5446490049362183, 0.03899107873439789],
]


def test_first_weights_stay_what_they_were() -> None:
    # The rows of a table as release 0.1.0 began it (seed 3, width 2), so that old runs can be
    # repeated: rows 0 and 4096 are the firsts of their blocks.
    drawn = first_weights(seed=3, row_ids_M=np.array([4096, 0]), width=2, scale=1.0)
    np.testing.assert_array_equal(drawn, np.array(FIRST_WEIGHTS, dtype=np.float32))
