"""Causal attention within jagged sequences: one function type, four back ends.

    loop    one scaled_dot_product_attention a sequence; the reference, on every device and dtype
    padded  one call, every sequence padded to the longest; every device and dtype
    varlen  one call without padding (FlashAttention); NVIDIA GPU from Ampere on, fp16 and bf16
    flex    one compiled call over the blocks that hold a pair; NVIDIA GPU with Triton

`auto` takes varlen where it is available and loop elsewhere. Never padded: its work grows with
sequences x longest^2, not with the sum of squares that the plan balances, so a rank with one long
and many short sequences would work many times its share (on CPU 1,271 ms against 81 ms for loop,
64 sequences, 8,417 events, the longest 1,000). Never flex: torch calls it a prototype, and it
compiles for tens of seconds. Both are there by name, and bench/gpu_check.py times all four.

Bits: loop repeats itself on CPU. On a GPU the backward passes of FlashAttention (varlen) and of the
memory-efficient kernel (loop and padded in fp32) add with atomics unless
torch.use_deterministic_algorithms(True) is set: a comparison to the bit sets it.

Shape letters: N events of all sequences; H heads; d width of a head; B sequences; L the longest.

Before: model.Block projects.   After: it mixes the heads.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from analytics.errors import ConfigError
from training.jagged import moved, positions

Lengths = tuple[int, ...]
# (q_NHd, k_NHd, v_NHd, lengths) -> (N, H, d); at least one length, each at least 1, summing to N
Attention = Callable[[Tensor, Tensor, Tensor, Lengths], Tensor]

_HALVES = (torch.float16, torch.bfloat16)
_BLOCK = 128  # events of a block of flex; what its kernels are tuned for
_AMPERE = (8, 0)


def loop(q_NHd: Tensor, k_NHd: Tensor, v_NHd: Tensor, lengths: Lengths) -> Tensor:
    """One call a sequence: exactly the pairs that count, and a launch each."""
    # 1, H, N, d: the batch dimension of one is what the fused CPU kernel asks for
    parts = [
        torch.split(x_NHd.transpose(0, 1)[None], list(lengths), dim=2)
        for x_NHd in (q_NHd, k_NHd, v_NHd)
    ]
    attended = [
        functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        for q, k, v in zip(*parts, strict=True)
    ]
    return torch.cat(attended, dim=2)[0].transpose(0, 1)


def padded(q_NHd: Tensor, k_NHd: Tensor, v_NHd: Tensor, lengths: Lengths) -> Tensor:
    """One call over (B, H, L, d). Padding stands behind each sequence, so the causal mask alone
    keeps every event from it, and a mask of lengths, which would rule out fused kernels, is not
    needed; what padding itself attends to is thrown away.
    """
    place_N = _padded_places(lengths, q_NHd.device)
    shape = (len(lengths), max(lengths), *q_NHd.shape[1:])

    def spread(x_NHd: Tensor) -> Tensor:
        empty = x_NHd.new_zeros(shape[0] * shape[1], *shape[2:])
        return empty.index_copy(0, place_N, x_NHd).view(shape).transpose(1, 2)

    attended_BHLd = functional.scaled_dot_product_attention(
        spread(q_NHd), spread(k_NHd), spread(v_NHd), is_causal=True
    )
    return attended_BHLd.transpose(1, 2).flatten(0, 1)[place_N]


def varlen(q_NHd: Tensor, k_NHd: Tensor, v_NHd: Tensor, lengths: Lengths) -> Tensor:
    """One FlashAttention call over all sequences; window (-1, 0) is torch's name for causal."""
    from torch.nn.attention.varlen import varlen_attn

    ends = _ends(lengths, q_NHd.device)
    longest = max(lengths)
    attended_NHd = varlen_attn(
        q_NHd, k_NHd, v_NHd, ends, ends, longest, longest, window_size=(-1, 0)
    )
    assert isinstance(attended_NHd, Tensor)
    return attended_NHd


def flex(q_NHd: Tensor, k_NHd: Tensor, v_NHd: Tensor, lengths: Lengths) -> Tensor:
    """One compiled call over the blocks of 128 x 128 events that hold a pair."""
    return flex_with(_compiled_flex(), q_NHd, k_NHd, v_NHd, lengths)


def flex_with(
    flex_attention: Callable[..., Any],
    q_NHd: Tensor,
    k_NHd: Tensor,
    v_NHd: Tensor,
    lengths: Lengths,
) -> Tensor:
    """`flex` by this flex_attention, compiled or not; padded to whole blocks at the end."""
    behind = -len(q_NHd) % _BLOCK

    def whole(x_NHd: Tensor) -> Tensor:
        return functional.pad(x_NHd.transpose(0, 1), (0, 0, 0, behind))[None]

    mask = block_mask(lengths + ((behind,) if behind else ()), q_NHd.device)
    attended_1HNd = flex_attention(whole(q_NHd), whole(k_NHd), whole(v_NHd), block_mask=mask)
    attended_NHd: Tensor = attended_1HNd[0, :, : len(q_NHd)].transpose(0, 1)
    return attended_NHd


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)  # kept, so a later training pass may need it
def block_mask(lengths: Lengths, device: torch.device) -> Any:
    """Which blocks of 128 x 128 hold a pair, and which pairs of them count; a BlockMask.

    lengths sum to a multiple of 128. Built from the bounds of the sequences, as (N/128)^2 numbers;
    torch's create_block_mask would lay out all N^2 pairs for every batch.
    """
    from torch.nn.attention.flex_attention import BlockMask

    count = torch.tensor(lengths)
    begin_N = torch.repeat_interleave(count.cumsum(0) - count, count)
    row_R = torch.arange(len(begin_N) // _BLOCK)
    first_R = begin_N[::_BLOCK] // _BLOCK  # of the earliest sequence in the block
    blocks_RC = (first_R[:, None] + row_R[None, :]).clamp(max=len(row_R) - 1)
    sequence_begin_N = moved(begin_N, device)

    def of_one_sequence(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (sequence_begin_N[query] <= key)

    return BlockMask.from_kv_blocks(
        moved((row_R - first_R + 1).to(torch.int32)[None, None], device),
        moved(blocks_RC.to(torch.int32)[None, None], device),
        BLOCK_SIZE=_BLOCK,
        mask_mod=of_one_sequence,
        seq_lengths=(len(begin_N), len(begin_N)),
    )


BACK_ENDS: dict[str, Attention] = {"loop": loop, "padded": padded, "varlen": varlen, "flex": flex}


def why_unavailable(
    name: str, device: torch.device, dtype: torch.dtype, head_width: int
) -> str | None:
    """Why this back end cannot serve these tensors; None: it can. A reason is a whole sentence."""
    if name not in ("varlen", "flex"):
        return None
    if device.type != "cuda":
        return f"It needs an NVIDIA GPU, the tensors are on '{device.type}'."
    if torch.version.hip is not None:
        return "It was written for CUDA, this torch was built for ROCm."
    if name == "flex":
        if importlib.util.find_spec("triton") is None:
            return "It is compiled by Triton, which is not installed."
        if head_width < 16:
            return f"Its kernels want heads at least 16 wide, these are {head_width} wide."
        return None
    if dtype not in _HALVES:
        return f"It knows fp16 and bf16 only, the tensors are {str(dtype).removeprefix('torch.')}."
    if head_width % 8 or head_width > 256:
        return f"It wants a head width that 8 divides, at most 256; it is {head_width}."
    if torch.cuda.get_device_capability(device) < _AMPERE:
        return f"{torch.cuda.get_device_name(device)} is older than Ampere (capability 8.0)."
    return None


@functools.lru_cache(maxsize=64)
def back_end(name: str, device: torch.device, dtype: torch.dtype, head_width: int) -> str:
    """The back end that `name`, one of ATTENTIONS, stands for with these tensors.

    dtype: of queries, keys and values: bfloat16 under autocast.
    Raises ConfigError when a back end asked for by name is not available, with the reason.
    """
    if name == "auto":
        return "loop" if why_unavailable("varlen", device, dtype, head_width) else "varlen"
    reason = why_unavailable(name, device, dtype, head_width)
    if reason is not None:
        raise ConfigError(
            f"attention is '{name}', which is not available here. {reason} "
            "Set attention to 'auto', or to 'loop', which works everywhere."
        )
    return name


def attend(name: str, q_NHd: Tensor, k_NHd: Tensor, v_NHd: Tensor, lengths: Lengths) -> Tensor:
    """Causal attention within each sequence by the back end that `name` stands for; (N, H, d).

    lengths: events of each sequence, at least 1 each, summing to N; may be empty.
    Raises ConfigError as back_end does.
    """
    chosen = back_end(name, q_NHd.device, q_NHd.dtype, q_NHd.shape[-1])
    if not lengths:
        return q_NHd + k_NHd + v_NHd  # no event, but part of the graph
    return BACK_ENDS[chosen](q_NHd, k_NHd, v_NHd, lengths)


@functools.lru_cache(maxsize=4)
def _padded_places(lengths: Lengths, device: torch.device) -> Tensor:
    """Place of each event among B x L padded ones; int64 of shape (N,)."""
    starts = tuple(row * max(lengths) for row in range(len(lengths)))
    with torch.inference_mode(False):  # kept, so a later training pass may need it
        return positions(lengths, starts, device)


@functools.lru_cache(maxsize=4)
def _ends(lengths: Lengths, device: torch.device) -> Tensor:
    """Events before each sequence, and of all; int32 of shape (B + 1,), as FlashAttention asks.

    Kept for the blocks of one forward pass, which run on one stream.
    """
    with torch.inference_mode(False):  # as in _padded_places
        ends = torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return moved(ends, device)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """flex_attention, compiled once for any number of events."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled
