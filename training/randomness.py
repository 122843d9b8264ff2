"""Negatives, dropout and first weights from a counter-based generator.

Every draw is named by (seed, what, epoch, sequence), never by the order in which it is made, so a
sequence meets the same negatives and the same dropout on whichever rank it lies. Philox-4x64
(Salmon et al. 2011) as numpy ships it: the name is the key, so nothing has to be skipped or stored.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_NEGATIVES, _DROPOUT, _WEIGHTS = 1, 2, 3
_LANES = 4  # one 64-bit draw gives four 16-bit lanes
_LANE_RANGE = 1 << 16
_WEIGHT_BLOCK_ROWS = 4096

Ids = npt.NDArray[np.int64]
Keep = npt.NDArray[np.bool_]


def _philox(seed: int, what: int, epoch: int, index: int) -> np.random.Philox:
    key = np.array([(seed << 32) | (what << 24) | epoch, index], dtype=np.uint64)
    return np.random.Philox(key=key)


def negatives(*, seed: int, epoch: int, sequence: int, num_items: int, count: int) -> Ids:
    """Uniform item ids for one sequence in one epoch; shape (count,), repeats possible."""
    generator = np.random.Generator(_philox(seed, _NEGATIVES, epoch, sequence))
    return generator.integers(0, num_items, size=count, dtype=np.int64)


def dropout_keep(
    *, seed: int, epoch: int, sequence: int, num_sites: int, length: int, width: int, share: float
) -> Keep:
    """Which units of one sequence are kept, at every place where dropout acts.

    Result: shape (num_sites, length, width); width a multiple of 4. `share` is dropped, rounded to
    1/65536 (see `kept_scale`).
    """
    size = num_sites * length * width
    raw = _philox(seed, _DROPOUT, epoch, sequence).random_raw(size // _LANES)
    keep: Keep = raw.view(np.uint16) >= _threshold(share)
    return keep.reshape(num_sites, length, width)


def kept_scale(share: float) -> float:
    """What a kept unit is multiplied with, so that the expectation stays the same."""
    return 1.0 / (1.0 - _threshold(share) / _LANE_RANGE)


def first_weights(
    *, seed: int, row_ids_M: Ids, width: int, scale: float
) -> npt.NDArray[np.float32]:
    """Normal weights of the rows with these ids, in their order; shape (M, width).

    A row's values depend on its id alone, not on which rows lie beside it. Drawn block by block of
    ids, so no rank ever holds more than its own share and one block; the first rows of a block do
    not depend on how many follow, so a block is drawn no further than it is needed.
    """
    weights_MD = np.empty((len(row_ids_M), width), dtype=np.float32)
    is_sorted = bool((row_ids_M[:-1] <= row_ids_M[1:]).all())
    order_M = None if is_sorted else np.argsort(row_ids_M, kind="stable")
    ids_M = row_ids_M if order_M is None else row_ids_M[order_M]
    begin = 0
    while begin < len(ids_M):
        start = int(ids_M[begin]) // _WEIGHT_BLOCK_ROWS * _WEIGHT_BLOCK_ROWS
        end = int(np.searchsorted(ids_M, start + _WEIGHT_BLOCK_ROWS))
        inside = ids_M[begin:end] - start
        generator = np.random.Generator(_philox(seed, _WEIGHTS, 0, start))
        block = generator.standard_normal((int(inside[-1]) + 1, width), dtype=np.float32)
        drawn = block[inside] * np.float32(scale)
        weights_MD[slice(begin, end) if order_M is None else order_M[begin:end]] = drawn
        begin = end
    return weights_MD


def table_seed(seed: int, name: str) -> int:
    """A seed of its own for each table of a run, so that no two start with the same rows."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4]) >> 1


def _threshold(share: float) -> int:
    return round(share * _LANE_RANGE)
