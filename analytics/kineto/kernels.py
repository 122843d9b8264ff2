"""Tells from its name what a kernel does: its class, which is one of three, and its family.

The class decides where time goes: compute, communication or copy. The family tells a person what
to look at. Both are rules over names, for a trace says nothing else of a kernel.

Before: reading.py meets a name for the first time.   After: breakdown.py and parts.py use the
class, importing.py stores the family.
Price: a few searches for each distinct name.
"""

from __future__ import annotations

import functools
import re

COMPUTE, COMMUNICATION, COPY = 0, 1, 2
_MEMORY = 1 << 14  # ranks of a job run the same kernels
CLASSES = ("compute", "communication", "copy")

_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|nvshmem|oneccl|^gloo:|cross_device_reduce|(one|two)_?shot_all_?reduce",
)
# the first rule that fits; a fused kernel goes to what costs most in it
_FAMILIES = (
    ("attention", r"flash|fmha|attention|attn|mha_|sdpa"),
    ("optimizer", r"multi_tensor_apply|adam|adagrad|lamb_|\bsgd|optimizer|foreach"),
    ("embedding", r"embedding|emb_|index_?select|jagged|bucketize|permute_\w*(sparse|data)|tbe_"),
    ("normalisation", r"(layer|batch|group|rms|instance)_?norm|bn_(fw|bw)|gammabeta|bnorm"),
    (
        "gemm",
        r"gemm|gemv|cutlass|xmma|cublas|cijk_|matmul|_mm_|dgrad|wgrad|fprop|conv|winograd|"
        r"fft|cudnn|splitk|cask|magma|nvjet|dot_kernel",
    ),
    ("sort", r"sort|radix|topk|unique|scan|histogram|select_if"),
    ("reduction", r"reduc|softmax|argm(ax|in)|_sum|nll_loss|cross_entropy|triton_(red|per)"),
    (
        "elementwise",
        r"elementwise|vectorized|unrolled|fill|copy|catarray|dropout|triton_poi|transpose|"
        r"pointwise|index|gather|scatter|cast|where|clamp|arange|tensor_?iterator",
    ),
)
_RULES = tuple((family, re.compile(rule)) for family, rule in _FAMILIES)
FAMILIES = ("communication", "memory", *(family for family, _ in _FAMILIES), "other")


@functools.lru_cache(_MEMORY)
def kernel_class(name: str) -> int:
    """COMMUNICATION or COMPUTE; copies are told by their category, not by a name."""
    return COMMUNICATION if _COMMUNICATION.search(name.lower()) else COMPUTE


@functools.lru_cache(_MEMORY)
def kernel_family(name: str, its_class: int) -> str:
    """What a kernel does, one of FAMILIES."""
    if its_class != COMPUTE:
        return "communication" if its_class == COMMUNICATION else "memory"
    low = name.lower()  # faster than to ignore case in each rule
    return next((family for family, rule in _RULES if rule.search(low)), "other")


_KINDS = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send_?recv|\bsend|\brecv|:send|:recv|isend|irecv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
_KIND_RULES = tuple((kind, re.compile(rule)) for kind, rule in _KINDS)
# Of these no rank can end before the last one has arrived.
TOGETHER = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"})


@functools.lru_cache(_MEMORY)
def collective_kind(name: str) -> str:
    """The operation that the name of a collective's kernel, annotation or argument tells."""
    low = name.lower()
    return next((kind for kind, rule in _KIND_RULES if rule.search(low)), "other")
