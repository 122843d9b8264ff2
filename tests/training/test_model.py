from __future__ import annotations

import math

import pytest
import torch

from training.config import ModelConfig
from training.model import JaggedBatch, SASRec

CONFIG = ModelConfig(embedding_dim=8, num_blocks=2, num_heads=2, ffn_dim=8, max_length=16)


@pytest.fixture
def model() -> SASRec:
    torch.manual_seed(0)
    return SASRec(CONFIG)


def test_a_sequence_is_encoded_alike_alone_and_among_others(model: SASRec) -> None:
    rows_ND = torch.randn(9, 8)
    together = model.encode(rows_ND, (2, 4, 3))
    alone = [model.encode(part, (len(part),)) for part in torch.split(rows_ND, [2, 4, 3])]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


def test_an_event_knows_nothing_of_later_ones(model: SASRec) -> None:
    rows_ND = torch.randn(6, 8)
    changed_ND = rows_ND.clone()
    changed_ND[4:] = torch.randn(2, 8)  # a constant shift would vanish in the layer norm
    before, after = model.encode(rows_ND, (6,)), model.encode(changed_ND, (6,))
    torch.testing.assert_close(before[:4], after[:4], rtol=0, atol=1e-6)
    assert not torch.allclose(before[4:], after[4:])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_loss_is_the_sampled_softmax_of_the_cosines(model: SASRec, sign: float) -> None:
    # Rows 1 and 2 are opposite: whatever the hidden state, with c = cos(h, row 1) the logits are
    # c/T for target 1 and -c/T for negative 2. So loss = log(1 + exp(-2c/T)).
    rows_UD = torch.randn(3, 8)
    rows_UD[1] *= sign  # once with the target near, once with it far
    rows_UD[2] = -rows_UD[1]
    batch = JaggedBatch(
        lengths=(1,),
        inputs_N=torch.tensor([0]),
        targets_N=torch.tensor([1]),
        negatives_BK=torch.tensor([[2, 1]]),  # the second equals the target: left out
        keep_SND=None,
    )
    hidden = model.encode(rows_UD[:1], (1,))[0]
    cosine = torch.cosine_similarity(hidden, rows_UD[1], dim=0).item()
    expected = math.log1p(math.exp(-2 * cosine / CONFIG.temperature))
    assert model.loss_sum(rows_UD, batch, 1.0).item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_a_dropped_unit_contributes_nothing(model: SASRec) -> None:
    rows_ND = torch.randn(3, 8)
    keep = torch.ones(model.num_dropout_sites, 3, 8, dtype=torch.bool)
    assert model.num_dropout_sites == 5
    torch.testing.assert_close(model.encode(rows_ND, (3,), keep, 1.0), model.encode(rows_ND, (3,)))
    keep[0] = False  # the whole input: rows no longer matter
    first = model.encode(rows_ND, (3,), keep, 2.0)
    torch.testing.assert_close(first, model.encode(torch.randn(3, 8), (3,), keep, 2.0))
