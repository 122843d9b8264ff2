"""Floating-point operations that the model needs for a rank's real lengths: the numerator of MFU.

Per sequence of n events read and t targets (those of its last events), with D embedding_dim,
F ffn_dim and K negatives:

    block    8 n D^2     queries, keys, values (6 n D^2) and their projection (2 n D^2)
           + 4 n D F     feed-forward, in and out
           + 2 n^2 D     scores and their weighted sum: half of 4 n^2 D, by the causal mask
    loss     2 t (K + 1) D    the target's score and the negatives'

times num_blocks, and all of it times 3: the backward pass takes twice the forward pass. A product
of an addition and a multiplication counts 2. Nothing that is computed again counts, nor padding,
nor the embedding rows, nor what is done element by element (norms, GELU, softmax, dropout).

Before: the plan says which windows a rank holds.   After: model_flops of fact_step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.config import ModelConfig

_PASSES = 3  # forward, and twice that for backward


def model_flops(
    model: ModelConfig,
    *,
    num_negatives: int,
    lengths: npt.ArrayLike,
    num_targets: npt.ArrayLike | None = None,
) -> float:
    """Operations of one training step over these sequences, forward and backward.

    lengths: events that the model reads of each sequence, shape (N,); N may be 0.
    num_targets: of each sequence, shape (N,); None: every event has one.
    """
    n_N = np.asarray(lengths, dtype=np.float64)
    t_N = n_N if num_targets is None else np.asarray(num_targets, dtype=np.float64)
    width, ffn = model.embedding_dim, model.ffn_dim
    block_N = (8 * width**2 + 4 * width * ffn) * n_N + 2 * width * n_N**2
    loss_N = 2 * (num_negatives + 1) * width * t_N
    return float(_PASSES * (model.num_blocks * block_N + loss_N).sum())
