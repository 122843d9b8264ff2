"""Attention back ends against the loop in fp32 on the CPU: difference and time. See gpu_check.py.

Half precision is compared on operands that were rounded to it first, so the difference is what the
back end adds. Bounds are a share of the largest entry of the reference: 1e-4 in fp32 (sums of up to
1,000 terms in another order, and GPU kernels that may make an fp32 product of tf32 ones), 2 % in
bf16 (8 bits, products of products).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from checked import Checked, Figure, interleaved_medians, wall_s
from torch import Tensor

from training.attention import BACK_ENDS, Lengths, back_end, why_unavailable

NUM_HEADS, HEAD_WIDTH = 2, 32
SHARE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
REPEATS = 7


def lengths_of(num_sequences: int, longest: int) -> Lengths:
    """Log-normal lengths around a tenth of the longest, which is there once."""
    rng = np.random.default_rng(5)
    drawn = rng.lognormal(np.log(longest / 10), 0.8, num_sequences - 1)
    return (longest, *(int(n) for n in drawn.clip(1, longest)))


def with_gradients(name: str, given: list[Tensor], lengths: Lengths) -> list[Tensor]:
    """Result and gradients of queries, keys and values."""
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    out = BACK_ENDS[name](q, k, v, lengths)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]


def largest(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest absolute difference over the tensors."""
    pairs = zip(found, wanted, strict=True)
    return max(float((one.cpu().float() - other).abs().max()) for one, other in pairs)


def attention_part(device: torch.device, small: bool) -> Checked:
    """Every back end in every dtype that it knows on this device."""
    lengths = lengths_of(6, 60) if small else lengths_of(64, 1000)
    generator = torch.Generator().manual_seed(0)
    shape = (sum(lengths), NUM_HEADS, HEAD_WIDTH)
    made = [torch.randn(shape, generator=generator) for _ in range(4)]
    figures = [
        Figure(what="batch", value=sum(lengths), unit="events", note=f"{len(lengths)} sequences")
    ]
    for dtype, share in SHARE.items():
        figures += _of_dtype([x.to(dtype) for x in made], lengths, device, share)
    return Checked(figures=figures)


def _of_dtype(
    given: list[Tensor], lengths: Lengths, device: torch.device, share: float
) -> list[Figure]:
    dtype = given[0].dtype
    short = str(dtype).removeprefix("torch.")
    reference = with_gradients("loop", [x.float() for x in given], lengths)
    there = [x.to(device) for x in given]
    figures, timed = [], {}
    for name in BACK_ENDS:
        label = f"{name} {short}"
        reason = why_unavailable(name, device, dtype, HEAD_WIDTH)
        if reason is not None:
            figures.append(Figure(what=label, value=None, unit="", note=reason))
            continue
        try:
            found = with_gradients(name, there, lengths)
        except Exception as error:  # one back end must not take the others along
            note = f"{type(error).__name__}: {error}".splitlines()[0]
            figures.append(Figure(what=f"{label}: errors", value=1, unit="", at_most=0, note=note))
            continue
        figures += _differences(label, found, reference, share)
        step = functools.partial(with_gradients, name, there, lengths)
        timed[name] = functools.partial(wall_s, step, device)
    chosen = back_end("auto", device, dtype, HEAD_WIDTH)
    for name, seconds in interleaved_medians(timed, REPEATS).items():
        note = "what auto takes" if name == chosen else ""
        what = f"{name} {short}: forward and backward"
        figures.append(Figure(what=what, value=1000 * seconds, unit="ms", note=note))
    return figures


def _differences(
    label: str, found: list[Tensor], reference: list[Tensor], share: float
) -> list[Figure]:
    """Result, and the worst of the three gradients, each with its bound."""
    ways = {"forward": slice(0, 1), "backward": slice(1, 4)}
    return [
        Figure(
            what=f"{label}: largest difference {way}",
            value=largest(found[of], reference[of]),
            unit="",
            at_most=share * max(float(x.abs().max()) for x in reference[of]),
        )
        for way, of in ways.items()
    ]
