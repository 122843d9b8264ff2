"""Public laws of sequence lengths, cost models to judge by, and NVIDIA's balancer to compare with.

Zipf 1.2 in [1, 4096), 32 sequences a rank: NVIDIA recsys-examples' benchmark. MovieLens from
SEQSCALE_TEST_DATA or the demo's cache.
"""

from __future__ import annotations

import dataclasses
import heapq
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analytics.catalogue import default_cache_dir
from training.planning.cost import CostModel

Ints = npt.NDArray[np.int64]
COST = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1e-6, b_s=1e-6 / 500, source="L + L^2 / 500")
# NVIDIA's benchmark: HSTU of width 1024 on events and their actions, so 2 L tokens; projections
# cost 10 * 1024^2 FLOPs a token, causal attention 2 * 1024 a token pair
HSTU_FLOPS = CostModel(
    t_step_s=0.0, c0_s=0.0, a_s=1e-6, b_s=1e-6 / 2560, source="HSTU FLOPs, actions interleaved"
)
COSTS = {"L + L^2/500": COST, "L + L^2/2560 (HSTU FLOPs, actions interleaved)": HSTU_FLOPS}
LATEST_SMALL = Path("interactions/movielens_latest_small/ml-latest-small.zip")
HELD_OUT = 2
_BATCHES = 4  # global batches of a draw: one window of look-ahead
_HEADS, _HEAD_DIM = 4, 256  # NVIDIA's benchmark


class NoDataError(Exception):
    """A law's data are not at hand; says which and how to get them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """Lengths and a shape to place them in."""

    name: str
    num_ranks: int
    per_rank: int
    draw: Callable[[np.random.Generator, int], Ints]  # (generator, sequences a batch) -> (N,)


def zipf_lengths(num_sequences: int, rng: np.random.Generator) -> Ints:
    weight = np.arange(1, 4096) ** -1.2
    return rng.choice(np.arange(1, 4096), num_sequences, p=weight / weight.sum())


def log_normal_lengths(
    num_sequences: int, rng: np.random.Generator, *, median: float = 400.0, longest: int = 4096
) -> Ints:
    lengths = np.exp(rng.normal(np.log(median), 1.0, num_sequences))
    return lengths.clip(1, longest).astype(np.int64)


def giants_among_short(num_sequences: int, rng: np.random.Generator) -> Ints:
    """Users of 1 to 100 events, and of every 512 one of 50,000."""
    lengths = rng.integers(1, 101, num_sequences)
    lengths[::512] = 50_000
    return lengths


def movielens_lengths(path: Path) -> Ints:
    """Training lengths of the users of ml-latest-small.zip."""
    with zipfile.ZipFile(path) as archive, archive.open("ml-latest-small/ratings.csv") as file:
        text = io.TextIOWrapper(file, "utf-8")
        user = np.loadtxt(text, delimiter=",", skiprows=1, usecols=0, dtype=np.int64)
    events = np.bincount(user)
    return events[events > 0] - HELD_OUT


def movielens_100k_lengths(path: Path) -> Ints:
    """Training lengths of the users of the demo's ml-100k.inter."""
    user = np.loadtxt(path, delimiter="\t", skiprows=1, usecols=0, dtype=np.int64)
    events = np.bincount(user)
    return events[events > 0] - HELD_OUT


def _latest_small(rng: np.random.Generator, batch: int) -> Ints:
    del rng, batch
    folder = os.environ.get("SEQSCALE_TEST_DATA")
    path = Path(folder or "") / LATEST_SMALL
    if not folder or not path.is_file():
        raise NoDataError(f"set SEQSCALE_TEST_DATA to the folder that holds {LATEST_SMALL}")
    return movielens_lengths(path)


def _hundred_thousand(rng: np.random.Generator, batch: int) -> Ints:
    del rng, batch
    path = default_cache_dir() / "ml-100k.inter"
    if not path.is_file():
        raise NoDataError("ml-100k.inter is not in the cache; run 'seqscale fetch ml-100k' first")
    return movielens_100k_lengths(path)


LAWS = [
    *(
        Law(
            name="Zipf 1.2 in [1, 4096)",
            num_ranks=num_ranks,
            per_rank=32,
            draw=lambda rng, batch: zipf_lengths(_BATCHES * batch, rng),
        )
        for num_ranks in (16, 8, 64)
    ),
    Law(
        name="log-normal, median 400, up to 4096",
        num_ranks=16,
        per_rank=32,
        draw=lambda rng, batch: log_normal_lengths(_BATCHES * batch, rng),
    ),
    Law(name="MovieLens latest-small", num_ranks=4, per_rank=16, draw=_latest_small),
    Law(name="MovieLens-100K", num_ranks=4, per_rank=16, draw=_hundred_thousand),
    Law(
        name="511 short to one of 50,000",
        num_ranks=16,
        per_rank=32,
        draw=lambda rng, batch: giants_among_short(_BATCHES * batch, rng),
    ),
]


def nvidia_cost(length_N: Ints) -> npt.NDArray[np.float64]:
    """What NVIDIA's balancer takes a sample to cost [FLOPs]; attention is counted 2 N times.

    Source: NVIDIA recsys-examples, examples/commons/perf_model/task_estimator.py.
    """
    s_N, width = length_N.astype(np.float64), _HEADS * _HEAD_DIM
    projections = 2 * s_N * (4 * width) * width + 2 * s_N * width * width
    attention: npt.NDArray[np.float64] = 2 * s_N**2 * width * _HEADS * 2
    return projections + attention


def equal_count_karmarkar_karp(cost_N: npt.NDArray[np.float64], num_ranks: int) -> Ints:
    """Largest differencing with equal counts, NVIDIA's placement; the rank of each, shape (N,).

    Sequences in the order of their cost begin as partitions of `num_ranks` each, one on a rank; the
    two with the largest spread are joined, the fullest rank of one with the emptiest of the other.
    The last ones are filled up with sequences that cost nothing, which are dropped again.
    Source: the same repository, commons/perf_model/partitioner.py, equal_size=True.
    """
    padded_N = np.append(cost_N, np.zeros(-len(cost_N) % num_ranks))
    order = np.argsort(padded_N, kind="stable")
    partitions = []  # (-spread, number, load of each rank, fullest first, sequences of each)
    for number, chosen in enumerate(order.reshape(-1, num_ranks)[:, ::-1]):
        load_R = padded_N[chosen]
        held = [[int(index)] for index in chosen]
        partitions.append((-(load_R[0] - load_R[-1]), number, load_R, held))
    heapq.heapify(partitions)
    number = len(partitions)
    while len(partitions) > 1:
        _, _, one_R, one = heapq.heappop(partitions)
        _, _, other_R, other = heapq.heappop(partitions)
        load_R = one_R + other_R[::-1]
        held = [a + b for a, b in zip(one, other[::-1], strict=True)]
        fullest = np.argsort(-load_R, kind="stable")
        load_R = load_R[fullest]
        joined = (-(load_R[0] - load_R[-1]), number, load_R, [held[place] for place in fullest])
        heapq.heappush(partitions, joined)
        number += 1
    rank_N = np.empty(len(padded_N), dtype=np.int64)
    for rank, chosen in enumerate(partitions[0][3]):
        rank_N[chosen] = rank
    return rank_N[: len(cost_N)]
