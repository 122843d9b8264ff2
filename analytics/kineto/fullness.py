"""How full the device was while kernels ran, as the profiler estimates it; evidence, no headline.

The definitions are those of PyTorch's TensorBoard plugin ("GPU Summary"), so that figures can be
held against it. Utilization is the time in which any kernel ran, a collective's included, copies
not; SM efficiency weighs that time with the blocks of the kernels that run together for each SM, 1
at most; occupancy is the kernels' mean by their time. A device that spins in a collective is busy
by the first of them, which is why none of them is a part of a step.

Before: reading.py gives a trace, windows.py its windows.   After: analysis.py tells the figures.
Price: a sort of all starts and ends of kernels.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from analytics.kineto import intervals
from analytics.kineto.kernels import COPY
from analytics.kineto.reading import Trace

_BILLION = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Fullness:
    """Shares in 0..1 of all windows; None where the trace does not tell."""

    utilization_share: float | None  # of the time: a kernel ran
    sm_efficiency_share: float | None  # of the time, weighed with the SMs that had a block
    occupancy_share: float | None  # of the threads an SM can hold, while a kernel ran


def fullness(trace: Trace, begin_ns: int, end_ns: int) -> Fullness:
    """How full the device was between two times of the trace's clock.

    The two estimates are None where kernels do not tell them, as AMD's do not, or ran on several
    devices, whose blocks do not add up.
    """
    if not trace.has_device or end_ns <= begin_ns:
        return Fullness(None, None, None)
    is_kernel = trace.its_class != COPY
    spans = np.clip(trace.spans[is_kernel], begin_ns, end_ns)
    length_ns = spans[:, 1] - spans[:, 0]
    window_ns = end_ns - begin_ns
    blocks, occupancy = trace.blocks[is_kernel], trace.occupancy[is_kernel]
    is_one_device = len(intervals.distinct(trace.device[is_kernel])) == 1
    has_blocks = is_one_device and bool((blocks > 0).any())
    tells = occupancy >= 0
    told_ns = int(length_ns[tells].sum())
    return Fullness(
        utilization_share=intervals.length_ns(intervals.union(spans)) / window_ns,
        sm_efficiency_share=_sm_ns(spans, blocks) / window_ns if has_blocks else None,
        occupancy_share=(
            float((occupancy[tells] / (100 * _BILLION) * length_ns[tells]).sum()) / told_ns
            if is_one_device and told_ns
            else None
        ),
    )


def _sm_ns(spans: np.ndarray, blocks: np.ndarray) -> float:
    """Time weighed with the share of SMs that had a block of a running kernel [ns]."""
    times = spans.ravel()
    change = np.stack([np.maximum(blocks, 0), -np.maximum(blocks, 0)], axis=1).ravel()
    order = np.argsort(times, kind="stable")
    running = np.cumsum(change[order])[:-1]
    return float((np.minimum(running / _BILLION, 1.0) * np.diff(times[order])).sum())
