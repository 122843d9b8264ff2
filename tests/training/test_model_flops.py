"""The operations that MFU counts, held against paper and against torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from training.calibrate import synthetic_batch
from training.config import ModelConfig
from training.model import SASRec
from training.planning.model_flops import model_flops

MODEL = ModelConfig(
    embedding_dim=16, num_blocks=3, num_heads=2, ffn_dim=40, dropout=0.0, attention="loop"
)


def test_two_sequences_on_paper() -> None:
    model = ModelConfig(embedding_dim=4, num_blocks=2, num_heads=1, ffn_dim=8)
    # n = 3: block 8x3x16 + 4x3x4x8 + 2x9x4 = 384 + 384 + 72 = 840; loss 2x3x(5+1)x4 = 144
    assert model_flops(model, num_negatives=5, lengths=[3]) == 3 * (2 * 840 + 144)
    # n = 1: 128 + 128 + 8 = 264, no target
    both = model_flops(model, num_negatives=5, lengths=[3, 1], num_targets=[3, 0])
    assert both == 3 * (2 * (840 + 264) + 144)


def test_a_rank_without_a_sequence_computes_nothing() -> None:
    assert model_flops(MODEL, num_negatives=5, lengths=()) == 0.0


def test_torch_counts_the_same_but_the_causal_half_and_the_targets_own_scores() -> None:
    length, num_negatives, width = 24, 7, MODEL.embedding_dim
    model = SASRec(MODEL)
    batch = synthetic_batch(model, (length,), num_negatives, 50)
    rows_UD = torch.ones(50, width, requires_grad=True)
    # the plain kernel, whose products torch counts, and counts whole
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.loss_sum(rows_UD, batch, 1.0).backward()
    ours = model_flops(MODEL, num_negatives=num_negatives, lengths=[length])
    masked = 3 * MODEL.num_blocks * 2 * length**2 * width
    element_by_element = 3 * 2 * length * width  # the target's score is no matrix product there
    assert counter.get_total_flops() == pytest.approx(ours + masked - element_by_element)
