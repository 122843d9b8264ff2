from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from training.config import ModelConfig
from training.jagged import JaggedBatch
from training.model import SASRec

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


def test_a_window_keeps_the_positions_of_its_history(model: SASRec) -> None:
    # as if the table of positions began two rows later; the other sequence begins at 0
    rows_ND = torch.randn(5, 8)
    found = model.encode(rows_ND, (2, 3), begins=(0, 2))
    plain = model.encode(rows_ND, (2, 3))
    with torch.no_grad():
        model.positions.weight.copy_(torch.roll(model.positions.weight, -2, 0))
    shifted = model.encode(rows_ND, (2, 3))
    torch.testing.assert_close(found, torch.cat([plain[:2], shifted[2:]]), rtol=0, atol=1e-6)
    assert not torch.allclose(plain[2:], shifted[2:], atol=1e-4)


def test_no_loss_is_taken_of_context(model: SASRec) -> None:
    # attention is causal: a sequence's first two positions lose the same alone, so what the last
    # two of four lose is the difference; the other sequence is all targets
    rows_UD = torch.randn(9, 8)
    negatives_BK = torch.tensor([[6, 7], [7, 8]])

    def loss(lengths: tuple[int, ...], inputs: list[int], targets: list[int], **more: Any) -> float:
        return model.loss_sum(
            rows_UD,
            JaggedBatch(
                lengths=lengths,
                inputs_N=torch.tensor(inputs),
                targets_N=torch.tensor(targets),
                negatives_BK=negatives_BK,
                keep_SND=None,
                **more,
            ),
            1.0,
        ).item()

    whole = loss((4, 1), [0, 1, 2, 3, 5], [1, 2, 3, 4, 0])
    head = loss((2, 1), [0, 1, 5], [1, 2, 0])
    negatives_BK = torch.tensor([[7, 8], [7, 8]])
    alone = loss((1, 1), [5, 5], [0, 0]) / 2  # the other sequence, twice
    negatives_BK = torch.tensor([[6, 7], [7, 8]])
    tail = loss((4, 1), [0, 1, 2, 3, 5], [3, 4, 0], num_targets=(2, 1))
    assert tail == pytest.approx(whole - head + alone, rel=1e-5)


def test_a_dropped_unit_contributes_nothing(model: SASRec) -> None:
    rows_ND = torch.randn(3, 8)
    keep = torch.ones(model.num_dropout_sites, 3, 8, dtype=torch.bool)
    assert model.num_dropout_sites == 5
    torch.testing.assert_close(model.encode(rows_ND, (3,), keep, 1.0), model.encode(rows_ND, (3,)))
    keep[0] = False  # the whole input: rows no longer matter
    first = model.encode(rows_ND, (3,), keep, 2.0)
    torch.testing.assert_close(first, model.encode(torch.randn(3, 8), (3,), keep, 2.0))
