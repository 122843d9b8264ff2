from __future__ import annotations

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


def test_a_rows_first_weights_do_not_depend_on_the_number_of_ranks() -> None:
    whole = first_weights(seed=3, num_rows=10_001, width=8, first=0, stride=1, scale=0.5)
    assert whole.shape == (10_001, 8)
    assert whole.std() == pytest.approx(0.5, rel=0.02)
    for rank in range(3):
        share = first_weights(seed=3, num_rows=10_001, width=8, first=rank, stride=3, scale=0.5)
        np.testing.assert_array_equal(share, whole[rank::3])
