"""What balance is to reach on skewed lengths, by cost model; the figures: docs/measurements.md."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from training.config import ArmConfig
from training.planning.cost import CostModel
from training.planning.plan import ArmPlan, make_plan

COST = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1e-6, b_s=1e-6 / 500, source="L + L^2 / 500")


def planned(
    length_N: np.ndarray, num_ranks: int, per_rank: int, *, seed: int, cut: bool, window: int
) -> ArmPlan:
    arm = ArmConfig(name="arm", placement="lpt_free", schedule="synchronous")
    return make_plan(
        length_N, COST, (arm,), num_ranks=num_ranks, batch_sequences=num_ranks * per_rank,
        num_epochs=1, seed=seed, lookahead_batches=window, split_giants=cut,
    ).arms["arm"]  # fmt: skip


def zipf_lengths(num_sequences: int, seed: int) -> np.ndarray:
    """Zipf's law of exponent 1.2 in [1, 4096), as NVIDIA's recsys-examples draws lengths."""
    weight = np.arange(1, 4096) ** -1.2
    rng = np.random.default_rng(seed)
    return rng.choice(np.arange(1, 4096), num_sequences, p=weight / weight.sum())


def movielens_lengths() -> np.ndarray:
    folder = os.environ.get("SEQSCALE_TEST_DATA")
    if not folder:
        pytest.skip("SEQSCALE_TEST_DATA is not set: no MovieLens latest-small to plan")
    path = Path(folder) / "interactions" / "movielens_latest_small" / "ml-latest-small.zip"
    with zipfile.ZipFile(path) as archive, archive.open("ml-latest-small/ratings.csv") as file:
        user = np.loadtxt(
            io.TextIOWrapper(file, "utf-8"), delimiter=",", skiprows=1, usecols=0, dtype=np.int64
        )
    events = np.bincount(user)
    return events[events > 0] - 2  # two are held out


def share(arm: ArmPlan) -> float:
    assert arm.predicted_straggler_share is not None
    return arm.predicted_straggler_share


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_zipf_lengths_on_16_ranks_lose_at_most_a_hundredth(seed: int) -> None:
    lengths = zipf_lengths(20_000, seed)
    whole = planned(lengths, 16, 32, seed=seed, cut=False, window=1)
    both = planned(lengths, 16, 32, seed=seed, cut=True, window=4)
    assert whole.bound_straggler_share is not None
    assert whole.bound_straggler_share > 0.05  # no placement of whole sequences reaches it
    assert share(both) <= 0.01
    # neither alone does
    assert share(planned(lengths, 16, 32, seed=seed, cut=True, window=1)) > 0.01
    assert share(planned(lengths, 16, 32, seed=seed, cut=False, window=4)) > 0.01


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_movielens_on_4_ranks_loses_at_most_three_hundredths(seed: int) -> None:
    lengths = movielens_lengths()
    assert (len(lengths), lengths.max()) == (610, 2696)
    whole = planned(lengths, 4, 16, seed=seed, cut=False, window=1)
    assert whole.bound_straggler_share is not None
    assert whole.bound_straggler_share > 0.2
    assert share(planned(lengths, 4, 16, seed=seed, cut=True, window=4)) <= 0.03
