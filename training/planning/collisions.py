"""How many rows of a batch the batch before also touches: the part that cannot be fetched early.

Definition: collision share = share of batch N+1's distinct rows that batch N (over all ranks) also
touches; over several pairs a ratio of sums.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def collision_share(batches: Iterable[npt.ArrayLike]) -> float | None:
    """Collision share over consecutive batches, 0..1; None with fewer than two batches.

    batches: the row ids of each global batch, repeats allowed, in the order of training.
    """
    before: Ids | None = None
    num_colliding = num_rows = 0
    for batch in batches:
        rows = np.unique(np.asarray(batch, dtype=np.int64))
        if before is not None:
            num_colliding += len(np.intersect1d(rows, before, assume_unique=True))
            num_rows += len(rows)
        before = rows
    return num_colliding / num_rows if num_rows else None
