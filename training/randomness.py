"""Negatives, dropout and first weights from a counter-based generator.

Every draw is named by (seed, what, epoch, sequence), never by the order in which it is made, so a
sequence meets the same negatives and the same dropout on whichever rank it lies. Philox-4x64
(Salmon et al. 2011) as numpy ships it: the name is the key, so nothing has to be skipped or stored.
"""

from __future__ import annotations

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
    *, seed: int, num_rows: int, width: int, first: int, stride: int, scale: float
) -> npt.NDArray[np.float32]:
    """Normal weights of the rows first, first + stride, ...; shape (rows of this share, width).

    A row's values depend on its id alone, not on how many ranks share the table. Drawn in blocks,
    so no rank ever holds more than its own share and one block.
    """
    parts = []
    for start in range(0, num_rows, _WEIGHT_BLOCK_ROWS):
        rows = np.arange(start, min(start + _WEIGHT_BLOCK_ROWS, num_rows))
        mine = rows % stride == first
        generator = np.random.Generator(_philox(seed, _WEIGHTS, 0, start))
        block = generator.standard_normal((len(rows), width), dtype=np.float32)
        parts.append(block[mine] * np.float32(scale))
    return np.concatenate(parts) if parts else np.zeros((0, width), dtype=np.float32)


def _threshold(share: float) -> int:
    return round(share * _LANE_RANGE)
