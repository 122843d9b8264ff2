"""Lengths, tails and padding against paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.lengths import length_profile, padding_share, tail_index


def test_lengths_are_counted_as_on_paper() -> None:
    # 1, 2, 3 and 10 events: 16 in all; the longest 1 % is one user with 10 of 16 events and
    # 100 of 1 + 4 + 9 + 100 = 114 pairs; padded to 16 each, 16 of 64 places are used
    found = length_profile(np.array([3, 1, 10, 2]), min_group_users=1)
    assert found is not None
    assert found["quantiles"]["0"] == 1
    assert found["quantiles"]["0.5"] == 2.5
    assert found["quantiles"]["1"] == 10
    assert found["longest_rounded_up"] == 16
    assert found["longest_event_share"] == pytest.approx(10 / 16)
    assert found["longest_pair_share"] == pytest.approx(100 / 114)
    assert found["padded_to_longest_share"] == pytest.approx(48 / 64)
    assert [(e["from"], e["to"], e["num_users"], e["num_events"]) for e in found["histogram"]] == [
        (1, 2, 1, 1),
        (2, 4, 2, 5),
        (8, 16, 1, 10),
    ]


def test_the_longest_one_percent_are_at_least_a_group() -> None:
    # 99 users with 1 event and one with 901: the longest ten hold 901 + 9 of 1000
    lengths = np.ones(100, dtype=np.int64)
    lengths[7] = 901
    found = length_profile(lengths, min_group_users=10)
    assert found is not None
    assert found["num_longest"] == 10
    assert found["longest_event_share"] == pytest.approx(0.91)
    assert found["quantiles"]["1"] == 1
    assert [(e["from"], e["to"], e["num_users"]) for e in found["histogram"]] == [(1, 1024, 100)]
    assert found["num_merged_bins"] == 1
    assert 901 not in found.values()


def test_fewer_users_than_the_group_have_no_profile() -> None:
    assert length_profile(np.arange(9), min_group_users=10) is None
    # enough for a histogram, too few for quantiles
    some = length_profile(np.arange(12), min_group_users=10)
    assert some is not None and some["quantiles"] is None
    assert sum(entry["num_users"] for entry in some["histogram"]) == 12


def test_hill_is_the_reciprocal_of_the_mean_log_over_the_threshold() -> None:
    # the i-th longest of 1,000 is 1e6 x (1000 / i)^(1/2), k = 50, so ln(length / threshold) is
    # ln(51 / i) / 2; its mean over i is (50 ln 51 - ln 50!) / 100 = 0.481135
    lengths = np.rint(1e6 * np.sqrt(1000 / np.arange(1, 1001))).astype(np.int64)
    found = tail_index(lengths)
    assert found["num_users"] == 50
    assert found["index"] == pytest.approx(1 / 0.481135, rel=1e-4)
    assert found["error"] == pytest.approx(1 / 0.481135 / np.sqrt(50), rel=1e-4)


@pytest.mark.parametrize("index", [1.2, 2.5])
def test_the_tail_index_of_a_power_law_is_recovered(index: float) -> None:
    rng = np.random.default_rng(5)
    lengths = (20 * rng.random(100_000) ** (-1 / index)).astype(np.int64)
    found = tail_index(lengths)
    assert found["num_users"] == 1000
    assert found["index"] == pytest.approx(index, abs=4 * found["error"])


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        (np.arange(499), "more than a tenth"),
        (np.full(1000, 7), "below 10 events"),
        (np.minimum(np.arange(1000) + 20, 980), "cut there"),
        (
            np.random.default_rng(1).lognormal(5, 1.5, 400_000).astype(np.int64),
            "no power law",
        ),
    ],
)
def test_a_tail_index_that_cannot_be_defended_is_not_given(lengths, reason) -> None:
    found = tail_index(lengths)
    assert found["index"] is None
    assert reason in found["reason"]


def test_padding_of_batches_as_on_paper() -> None:
    # all alike: nothing is padded. Lengths 1 and 3, two a batch: a batch 1+1 or 3+3 pads nothing,
    # 1+3 pads 2 of 6 places; random pairs of many users mix with chance 1/2: half of the batches
    # have 6 places, a quarter 2, a quarter 6: 5 places in the mean for 4 events
    assert padding_share(np.full(40, 6), batch_sequences=4, seed=1) == 0.0
    mixed = np.array([1, 3] * 5000)
    assert padding_share(mixed, batch_sequences=2, seed=1) == pytest.approx(1 / 5, abs=0.02)
    assert padding_share(mixed, batch_sequences=1, seed=1) == 0.0


def test_a_batch_of_more_than_half_of_the_users_tells_no_padding() -> None:
    assert padding_share(np.arange(1, 11), batch_sequences=6, seed=1) is None
    assert padding_share(np.arange(1, 11), batch_sequences=5, seed=1) is not None


@settings(deadline=None)  # a busy machine is no fault of the code
@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=60), st.integers(1, 8), st.integers(0, 9)
)
def test_shares_lie_between_0_and_1(lengths, size, seed) -> None:
    padding = padding_share(np.array(lengths), batch_sequences=size, seed=seed)
    assert padding is None or 0 <= padding <= 1
    found = length_profile(np.array(lengths), min_group_users=2)
    assert found is not None
    for name, value in found.items():
        assert not name.endswith("_share") or 0 <= value <= 1
