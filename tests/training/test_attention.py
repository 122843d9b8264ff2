from __future__ import annotations

import functools
import math
import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from analytics.errors import ConfigError
from training.attention import (
    BACK_ENDS,
    Attention,
    attend,
    back_end,
    block_mask,
    flex_with,
    loop,
    padded,
)
from training.config import ATTENTIONS, ModelConfig

CPU = torch.device("cpu")
LENGTHS = {
    "single events": (1, 1, 1),
    "one sequence": (7,),
    "one event": (1,),
    "many": (3, 1, 17, 2, 2, 40, 1, 9),
}


def heads(num_events: int, width: int = 8, **more: torch.device | torch.dtype) -> list[Tensor]:
    """Queries, keys and values of two heads, and a gradient of what comes out."""
    generator = torch.Generator().manual_seed(num_events)
    made = [torch.randn(num_events, 2, width, generator=generator) for _ in range(4)]
    return [x.to(**more) for x in made]  # type: ignore[arg-type]


def with_gradients(
    attention: Attention, lengths: tuple[int, ...], given: list[Tensor]
) -> list[Tensor]:
    """The result and the gradients of queries, keys and values."""
    q, k, v = (x.clone().requires_grad_() for x in given[:3])
    out = attention(q, k, v, lengths)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]


@pytest.mark.parametrize("name", ["loop", "padded"])
def test_weights_are_the_softmax_of_the_scaled_products_of_the_past(name: str) -> None:
    # d = 4, so scores are q k / 2. First sequence: event 1 meets keys (2, 0, 0, 0), (0, 0, 0, 0)
    # with q = (1, 0, 0, 0): scores 1 and 0, so the first value weighs e / (e + 1). Its values are
    # 1 and 0. The second sequence has one event, which can only return its own value.
    q = torch.zeros(3, 1, 4)
    k, v = torch.zeros(3, 1, 4), torch.zeros(3, 1, 4)
    q[1, 0, 0], k[0, 0, 0], v[0], v[2] = 1.0, 2.0, 1.0, 5.0
    out = BACK_ENDS[name](q, k, v, (2, 1))
    expected = torch.tensor([1.0, math.e / (math.e + 1), 5.0])[:, None, None].expand(3, 1, 4)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_padding_changes_neither_result_nor_gradient(lengths: tuple[int, ...]) -> None:
    given = heads(sum(lengths))
    found = with_gradients(padded, lengths, given)
    for one, other in zip(found, with_gradients(loop, lengths, given), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["loop", "padded"])
def test_a_rank_without_events_gets_none(name: str) -> None:
    found = with_gradients(functools.partial(attend, name), (), heads(0))
    assert [tuple(x.shape) for x in found] == [(0, 2, 8)] * 4


def test_what_is_kept_from_serving_can_be_trained_with() -> None:
    lengths = (4, 2, 9)  # of this test alone, so nothing is kept of them before
    given = heads(15)
    with torch.inference_mode():
        served = padded(*given[:3], lengths)
    torch.testing.assert_close(with_gradients(padded, lengths, given)[0], served)


def test_the_blocks_of_flex_hold_every_pair_that_counts_and_no_idle_block() -> None:
    # 100 + 300 + 240 = 640 events are 5 blocks of 128. Blocks begin at events 0, 128, 256, 384,
    # 512; their earliest sequences at 0, 100, 100, 100, 400, so in blocks 0, 0, 0, 0, 3.
    lengths = (100, 300, 240)
    blocks = block_mask(lengths, CPU)
    wanted_RC = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert blocks.to_dense()[0, 0].tolist() == wanted_RC
    dense = create_block_mask(blocks.mask_mod, None, None, 640, 640, device="cpu")
    assert torch.equal(dense.to_dense(), blocks.to_dense())


@pytest.mark.parametrize("lengths", [(3, 1, 17, 200, 2), (128, 128), (1,)])
def test_flex_is_the_loop_forward_where_it_is_not_compiled(lengths: tuple[int, ...]) -> None:
    q, k, v, _ = heads(sum(lengths), width=16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this is slow
        found = flex_with(flex_attention, q, k, v, lengths)
    torch.testing.assert_close(found, loop(q, k, v, lengths), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["varlen", "flex"])
def test_what_needs_a_gpu_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*needs an NVIDIA GPU.*'cpu'.*'loop'"):
        attend(name, *heads(3)[:3], (3,))


def test_left_alone_the_cpu_takes_the_loop_in_every_precision() -> None:
    assert {back_end("auto", CPU, t, 32) for t in (torch.float32, torch.bfloat16)} == {"loop"}


def test_every_back_end_can_be_configured_and_no_other() -> None:
    assert ("auto", *BACK_ENDS) == ATTENTIONS
    with pytest.raises(ConfigError, match="attention is 'flash'; known are auto, loop"):
        ModelConfig(attention="flash")


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("name", ["loop", "padded", "flex"])
def test_on_a_gpu_fp32_is_the_loop_of_the_cpu(name: str, lengths: tuple[int, ...]) -> None:
    given = heads(sum(lengths), width=32)
    on_gpu = [x.cuda() for x in given]
    found = with_gradients(BACK_ENDS[name], lengths, on_gpu)
    for one, other in zip(found, with_gradients(loop, lengths, given), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_varlen_is_the_loop_to_half_precision(
    lengths: tuple[int, ...], dtype: torch.dtype
) -> None:
    # bf16 keeps 8 bits: operands of about 1 are off by 2^-9, sums of a few of them by some 1e-2
    given = [x.to(dtype) for x in heads(sum(lengths), width=32)]
    assert back_end("auto", torch.device("cuda", 0), dtype, 32) == "varlen"
    found = with_gradients(BACK_ENDS["varlen"], lengths, [x.cuda() for x in given])
    reference = with_gradients(loop, lengths, [x.float() for x in given])
    for one, other in zip(found, reference, strict=True):
        torch.testing.assert_close(one.float().cpu(), other, rtol=3e-2, atol=3e-2)


@pytest.mark.gpu
def test_on_a_gpu_varlen_refuses_fp32() -> None:
    with pytest.raises(ConfigError, match="fp16 and bf16 only, the tensors are float32"):
        back_end("varlen", torch.device("cuda", 0), torch.float32, 32)
