"""Karmarkar-Karp's differencing: the yardstick for quality; slower than longest first.

Each sequence begins as a partition of its own: one rank holds it, the others nothing. The two
partitions with the largest spread between ranks are joined again and again, the one's fullest rank
with the other's emptiest, until one is left.

Source: Karmarkar and Karp 1982, The Differencing Method of Set Partitioning; for more than two
ranks as in Korf 2009. O(N R log R), counts free.
"""

from __future__ import annotations

import heapq

import numpy as np

from training.planning.balance import Floats, Ranks


def karmarkar_karp(cost_N: Floats, num_ranks: int, rng: np.random.Generator) -> Ranks:
    """Largest differencing, free counts; returns the rank of each sequence, shape (N,).

    Draws nothing; ties: the sequence that stands first. Memory: about 14 N num_ranks bytes.
    """
    del rng
    num_sequences = len(cost_N)
    # a partition: (-spread, its number, load of each place, fullest first, less the emptiest)
    partitions: list[tuple[float, int, Floats]] = []
    for index, cost in enumerate(cost_N.tolist()):
        load_R = np.zeros(num_ranks)
        load_R[0] = cost if num_ranks > 1 else 0.0
        partitions.append((-cost, index, load_R))
    heapq.heapify(partitions)
    joined: list[tuple[int, int, Ranks]] = []  # (left, right, left place of each new place)
    while len(partitions) > 1:
        _, left, left_R = heapq.heappop(partitions)
        _, right, right_R = partitions[0]
        sum_R = left_R + right_R[::-1]
        order_R = np.argsort(-sum_R, kind="stable")
        sum_R = sum_R[order_R]
        sum_R -= sum_R[-1]
        joined.append((left, right, order_R.astype(np.int16)))
        number = num_sequences + len(joined) - 1
        heapq.heapreplace(partitions, (-float(sum_R[0]), number, sum_R))
    return _ranks_of_leaves(joined, num_sequences, num_ranks)


def _ranks_of_leaves(
    joined: list[tuple[int, int, Ranks]], num_sequences: int, num_ranks: int
) -> Ranks:
    """Follow every join back from the last one; a sequence lies on its partition's first place."""
    num_partitions = num_sequences + len(joined)
    label_PR = np.zeros((num_partitions, num_ranks), dtype=np.int16)
    if num_partitions:
        label_PR[-1] = np.arange(num_ranks)
    for number in range(num_partitions - 1, num_sequences - 1, -1):
        left, right, order_R = joined[number - num_sequences]
        label_PR[left, order_R] = label_PR[number]
        label_PR[right, num_ranks - 1 - order_R] = label_PR[number]
    return label_PR[:num_sequences, 0].astype(np.int64)
