from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.calibrate import synthetic_batch
from training.config import ModelConfig
from training.jagged import JaggedBatch
from training.model import SASRec, autocast_for

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    embedding_dim=32, num_blocks=2, num_heads=2, ffn_dim=64, max_length=64, dropout=0.2
)
NUM_ROWS = 50


def model_and_batch() -> tuple[SASRec, JaggedBatch]:
    torch.manual_seed(0)
    model = SASRec(CONFIG)
    return model, synthetic_batch(model, (20, 1, 33, 7), 16, NUM_ROWS)


def loss_and_gradients(model: SASRec, batch: JaggedBatch, precision: str) -> tuple[Tensor, Tensor]:
    """The loss sum, and all gradients, of rows and parameters, as one vector."""
    rows_UD = torch.randn(NUM_ROWS, 32, generator=torch.Generator().manual_seed(1))
    rows_UD.requires_grad_()
    with autocast_for(precision, CPU):
        loss = model.loss_sum(rows_UD, batch, 1.25)
    given = [rows_UD, *model.parameters()]
    gradients = torch.autograd.grad(loss, given)
    assert {g.dtype for g in gradients} == {torch.float32}
    return loss, torch.cat([g.flatten() for g in gradients])


def test_bf16_lies_near_fp32_in_loss_and_gradient() -> None:
    # bf16 keeps 8 bits, so an operand is off by up to 2^-9 = 0.2 %. Four products follow each other
    # in a block, there are two blocks, and as many on the way back: sqrt(16) x 0.2 % = 0.8 % of the
    # gradient if errors are independent; bound 2 %. (Measured: 0.4 %; cosine 0.99999.) The loss is
    # a mean over 61 targets, whose errors cancel: bound 0.2 %. (Measured: 0.006 %.)
    model, batch = model_and_batch()
    exact, exact_gradient = loss_and_gradients(model, batch, "fp32")
    loss, gradient = loss_and_gradients(model, batch, "bf16")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=2e-3)
    assert loss.item() != exact.item()  # it did compute in bf16
    assert float((gradient - exact_gradient).norm() / exact_gradient.norm()) < 2e-2
    assert torch.cosine_similarity(gradient, exact_gradient, dim=0).item() > 0.9998


def test_norms_and_what_leaves_the_model_are_fp32_and_products_bf16() -> None:
    model, batch = model_and_batch()
    seen: dict[str, set[torch.dtype]] = {}

    def watch(name: str) -> None:
        def note(module: torch.nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
            seen.setdefault(type(module).__name__ + " in", set()).add(given[0].dtype)
            seen.setdefault(type(module).__name__ + " out", set()).add(result.dtype)

        model.get_submodule(name).register_forward_hook(note)

    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.Linear)):
            watch(name)
    with autocast_for("bf16", CPU):
        hidden = model.encode(torch.randn(61, 32), batch.lengths, batch.keep_SND, 1.25)
    assert hidden.dtype == torch.float32
    assert seen["LayerNorm in"] == seen["LayerNorm out"] == {torch.float32}
    assert seen["Linear out"] == {torch.bfloat16}


def test_the_loss_of_given_hidden_states_does_not_know_of_autocast() -> None:
    # cosines, temperature and logsumexp are fp32 whatever the context: equal to the bit
    model, batch = model_and_batch()
    rows_UD, hidden_ND = torch.randn(NUM_ROWS, 32), torch.randn(61, 32)
    model.encode = lambda *_, **__: hidden_ND  # type: ignore[method-assign]
    exact = model.loss_sum(rows_UD, batch, 1.0)
    with autocast_for("bf16", CPU):
        assert torch.equal(model.loss_sum(rows_UD, batch, 1.0), exact)


def test_fp32_switches_nothing_on() -> None:
    with autocast_for("fp32", CPU):
        assert not torch.is_autocast_enabled("cpu")
