"""Reads from a Kineto trace how long a DLRM step computes: forward, activations, weights.

The trace is facebookresearch/param's, eight ranks on V100, one training step each, integer us.
Every kernel of its compute is taken once, by its `dur`, and told apart by what launched it: the
`cuda_runtime` event of the same `correlation`, and the `cpu_op` events of that event's thread that
enclose it in time.

    left out     NCCL kernels, copies from the host; launches outside `## forward ##` and
                 `## backward ##` (optimiser, input distribution); the tables' fused backward and
                 update (`SplitLookupFunction_adagrad`), which is the exchange's, not the model's
    forward      launched on the step's own thread inside `## forward ##`
    weights      launched by autograd's thread under `AccumulateGrad`; the bias sums (`aten::sum`)
                 and the last `aten::mm` of each `AddmmBackward0`: autograd computes the input's
                 gradient first and the weight's last, as the shapes in the trace confirm
    activations  everything else that autograd's thread launched

Times on the GPU are summed, gaps between kernels are not: this step is bound by launches, and only
the proportions of its compute are used.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_FORWARD, _BACKWARD = "## forward ##", "## backward ##"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepDurations:
    """Kernel time of a step, mean over ranks."""

    forward_s: float
    activations_s: float
    weights_s: float
    num_ranks: int

    @property
    def total_s(self) -> float:
        """All three."""
        return self.forward_s + self.activations_s + self.weights_s

    @property
    def sentence(self) -> str:
        """What was read, for an output."""
        parts = [1e6 * s for s in (self.forward_s, self.activations_s, self.weights_s)]
        return (
            f"DLRM trace, mean of {self.num_ranks} ranks, kernel time of a step: forward "
            f"{parts[0]:.0f} us, activation gradients {parts[1]:.0f} us, weight gradients "
            f"{parts[2]:.0f} us; the cells keep these proportions, stretched."
        )


def default_trace() -> Path | None:
    """The trace's folder among the test data; None where there is none."""
    root = os.environ.get("SEQSCALE_TEST_DATA")
    return Path(root) / "traces" / "param" / "dlrm_kineto_8rank" if root else None


def mean_durations(folder: Path) -> StepDurations:
    """Mean over the traces of all ranks in `folder`. Raises ValueError when it holds none."""
    files = sorted(folder.glob("*.pt.trace.json"))
    if not files:
        raise ValueError(f"{folder} holds no *.pt.trace.json; unpack dlrm_kineto.tar.gz into it.")
    found = [durations_us(json.loads(file.read_text())["traceEvents"]) for file in files]
    means = [sum(of_rank[n] for of_rank in found) / len(found) / 1e6 for n in range(3)]
    return StepDurations(
        forward_s=means[0], activations_s=means[1], weights_s=means[2], num_ranks=len(files)
    )


def durations_us(events: list[Event]) -> tuple[int, int, int]:
    """(forward, activation gradients, weight gradients) of one rank's step [us].

    Raises ValueError when the trace does not mark its forward and backward pass.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    marks = {name: [e for e in spans if e["name"] == name] for name in (_FORWARD, _BACKWARD)}
    if not all(len(found) == 1 for found in marks.values()):
        raise ValueError(f"the trace must have one '{_FORWARD}' and one '{_BACKWARD}'.")
    forward, backward = marks[_FORWARD][0], marks[_BACKWARD][0]
    launches = {
        event["args"]["correlation"]: event
        for event in spans
        if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
    }
    ops = [event for event in spans if event.get("cat") == "cpu_op"]
    last_products = _last_products(ops)
    sums = [0, 0, 0]
    for kernel in spans:
        launch = launches.get(kernel.get("args", {}).get("correlation"))
        if kernel.get("cat") != "kernel" or kernel["name"].startswith("nccl") or launch is None:
            continue
        if launch["tid"] == forward["tid"]:
            if _inside(launch, forward):
                sums[0] += kernel["dur"]
        elif _inside(launch, backward):
            around = [op for op in ops if op["tid"] == launch["tid"] and _inside(launch, op)]
            if not any("SplitLookupFunction_adagrad" in op["name"] for op in around):
                sums[2 if _is_of_weights(around, last_products) else 1] += kernel["dur"]
    return sums[0], sums[1], sums[2]


def _last_products(ops: list[Event]) -> set[int]:
    """Start times of the last matrix product of each linear layer's backward."""
    found = set()
    for layer in ops:
        if layer["name"] == "AddmmBackward0":
            products = [
                op["ts"]
                for op in ops
                if op["name"] == "aten::mm" and op["tid"] == layer["tid"] and _inside(op, layer)
            ]
            found.add(max(products))
    return found


def _is_of_weights(around: list[Event], last_products: set[int]) -> bool:
    names = [op["name"] for op in around]
    if any("AccumulateGrad" in name for name in names):
        return True
    if any("AddmmBackward0" in name for name in names):
        return "aten::sum" in names or any(
            op["name"] == "aten::mm" and op["ts"] in last_products for op in around
        )
    return any("SplitLookupFunction_Dense" in name for name in names)


def _inside(inner: Event, outer: Event) -> bool:
    return bool(
        outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    )
