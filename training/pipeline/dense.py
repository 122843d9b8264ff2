"""The dense part of a step: forward, backward, the sum of its gradients over ranks, the update.

Parameters lie in buckets: consecutive layers together, at least `bucket_bytes` each. A bucket is
what travels at once and what is updated at once, so that a schedule may finish the first layers
before the last ones have their gradients. The sum runs rank by rank (comm/reduce.py) and the update
is elementwise: how the parameters are cut changes no bit.

Shape letters: T tables, U distinct rows of a table, D width.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.comm.reduce import ordered_sum
from training.comm.transport import Transport
from training.pipeline.two_passes import (
    FirstPass,
    LayerOutputs,
    Outputs,
    layers_of,
    own_parameters,
    used_outside,
)
from training.pipeline.workload import Batch, Workload

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """Layers whose gradients travel together."""

    index: int
    layers: tuple[nn.Module, ...]
    parameters: tuple[nn.Parameter, ...]
    optimizer: torch.optim.Optimizer

    def held_by(self) -> list[tuple[nn.Module, list[nn.Parameter]]]:
        """The layers and what of the bucket's parameters each holds, in the bucket's order."""
        left = set(self.parameters)
        held = []
        for layer in self.layers:
            own = [p for p in own_parameters(layer) if p in left]
            left.difference_update(own)
            held.append((layer, own))
        return held

    @property
    def label(self) -> str:
        """Its name in records."""
        return f"bucket {self.index:04d}"

    def gradient(self) -> Tensor:
        """The gradients as one flat tensor; zeros where a parameter has none."""
        return _flat([p.grad for p in self.parameters], self.parameters)

    def settings(self) -> list[dict[str, Any]]:
        """The optimiser's rates and such as they are now."""
        return [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]

    def update_with(
        self, settings: list[dict[str, Any]], gradient: Tensor, global_targets: int
    ) -> None:
        """`update` with the rates of an earlier moment; those of now are kept."""
        now = self.settings()
        for group, earlier in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(earlier)
        self.update(gradient, global_targets)
        for group, kept in zip(self.optimizer.param_groups, now, strict=True):
            group.update(kept)

    def update(self, gradient: Tensor, global_targets: int) -> None:
        """One optimiser step with the summed gradient of all ranks, divided by their targets."""
        start = 0
        for parameter in self.parameters:
            part = gradient[start : start + parameter.numel()]
            parameter.grad = (part / global_targets).view_as(parameter)
            start += parameter.numel()
        self.optimizer.step()


@dataclasses.dataclass(frozen=True, eq=False)
class GradientNorms:
    """Squared norms of one step's dense gradients, means over targets: what tells their noise.

    Scalars on the device; read them after the steps, or the device is waited for.
    """

    rank_sq: Tensor  # of the mean over this rank's targets; 0 without any
    whole_sq: Tensor  # of the mean over all ranks' targets


class Backward:
    """A step's forward and first backward pass, whose weight gradients are still to be computed."""

    def __init__(
        self,
        passes: list[FirstPass],
        loss_sum: Tensor,
        gradient_T: list[Tensor],
        problem: str | None,
    ) -> None:
        self._passes = passes
        self.loss_sum = loss_sum
        self.gradient_T = gradient_T  # of the rows, (U, D), divided by the global targets
        self.problem = problem  # why this model cannot be trained so; found by the first batch

    def weight_gradient(self, bucket: Bucket) -> Tensor:
        """The bucket's gradients on this rank as one flat tensor, micro-batches summed in order."""
        gradients: list[Tensor | None] = [None] * len(bucket.parameters)
        for first_pass in self._passes:
            found = [
                gradient
                for layer, parameters in bucket.held_by()
                for gradient in first_pass.weight_gradients(layer, parameters)
            ]
            gradients = [
                new if old is None else old if new is None else old + new
                for old, new in zip(gradients, found, strict=True)
            ]
        return _flat(gradients, bucket.parameters)

    @property
    def held_bytes(self) -> int:
        """Memory that waits for the weight gradients beyond what a plain backward pass holds."""
        return sum(first_pass.held_bytes for first_pass in self._passes)

    def release(self) -> None:
        """Give the activations' memory back."""
        self._passes.clear()


class DenseSide:
    """The dense parameters of one arm and their optimiser.

    optimizer: makes an optimiser for some of the parameters; it must update each entry from that
    entry's gradient alone (SGD, Adam, AdamW do).
    precision: 'bf16' runs the forward pass under autocast; parameters, sums and updates stay fp32.
    norms_every: steps from one measured GradientNorms to the next; 0 measures none.
    """

    def __init__(
        self,
        workload: Workload,
        optimizer: OptimizerFactory,
        *,
        micro_batches: int = 1,
        precision: str = "fp32",
        bucket_bytes: int = 1 << 20,
        norms_every: int = 0,
    ) -> None:
        self.workload = workload
        self._norms_every = norms_every
        self._micro_batches = micro_batches
        self._precision = precision
        layers = layers_of(workload.model)
        self.buckets = [
            Bucket(index, tuple(part), parameters, optimizer(list(parameters)))
            for index, (part, parameters) in enumerate(_gathered(layers, bucket_bytes))
        ]
        self._owners = {
            parameter: layer
            for bucket in self.buckets
            for layer, parameters in bucket.held_by()
            for parameter in parameters
        }
        self._outside: set[nn.Parameter] = set()  # used otherwise than by their layer alone
        self._outputs = LayerOutputs(layers)
        self.is_checked = False  # whether the split backward pass was compared with a plain one
        self.num_updates = 0  # optimiser steps so far, of dense part and tables alike

    @property
    def device(self) -> torch.device:
        """Where the parameters lie; the CPU when there are none."""
        first = next(iter(self.workload.model.parameters()), None)
        return torch.device("cpu") if first is None else first.device

    def forward_backward(
        self, rows_T: Sequence[Tensor], batch: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """(sum of the rank's losses, gradient of each row divided by the global targets).

        The dense gradients lie in the parameters. Zeros without targets.
        """
        self._clear()
        loss_sum = torch.zeros((), device=self.device)
        rows_T = _leaves(rows_T)
        for part in self._parts(batch):
            with self._autocast():
                loss = self.workload.loss_sum(rows_T, part)
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum = loss_sum + loss.detach()
        return loss_sum, [_row_gradient(rows.grad, rows, batch) for rows in rows_T]

    def forward_and_first_pass(self, rows_T: Sequence[Tensor], batch: Batch) -> Backward:
        """Forward, and backward down to the rows; the weights' gradients are left for later."""
        self._clear()
        loss_sum = torch.zeros((), device=self.device)
        rows_T = _leaves(rows_T)
        passes: list[FirstPass] = []
        problem: str | None = None
        for part in self._parts(batch):
            with self._outputs.recorded() as outputs, self._autocast():
                loss = self.workload.loss_sum(rows_T, part)
            if not self.is_checked:
                self._outside |= used_outside(loss, outputs, self._outputs.spans, self._owners)
                problem = problem or self._problem(loss, rows_T, outputs)
            if problem is None:
                passes.append(FirstPass(loss, rows_T, outputs, self._owners, self._outside))
            loss_sum = loss_sum + loss.detach()
        if passes and problem is None:
            self.is_checked = True
        gradient_T = []
        for t, rows in enumerate(rows_T):
            summed = None
            for first_pass in passes:
                found = first_pass.input_gradients[t]
                summed = found if summed is None else summed + found
            gradient_T.append(_row_gradient(summed, rows, batch))
        return Backward(passes, loss_sum, gradient_T, problem)

    def must_be_whole(self, bucket: Bucket) -> bool:
        """Whether something may read the bucket's parameters before its own layers run.

        Until this rank has seen a forward pass, every bucket may be read so.
        """
        return not self.is_checked or any(
            parameter in self._outside for parameter in bucket.parameters
        )

    def _problem(self, loss: Tensor, rows_T: Sequence[Tensor], outputs: Outputs) -> str | None:
        """Why this model's backward pass cannot be taken apart, found by trying; None: it can."""
        names = {p: name for name, p in self.workload.model.named_parameters()}
        hooked = [names[p] for p in self._owners if p._post_accumulate_grad_hooks]
        if hooked:
            return (
                f"The schedule 'split' runs no post-accumulate hooks, and {hooked[0]} has one. "
                "Take the schedule 'prioritised'."
            )
        try:
            first_pass = FirstPass(loss, rows_T, outputs, self._owners, self._outside)
            return first_pass.difference_from_plain(names, self._owners)
        except RuntimeError as error:  # reentrant checkpoints refuse autograd.grad, for one
            return (
                f"The schedule 'split' cannot take this model's backward pass apart: {error} Take "
                "the schedule 'prioritised'."
            )

    def sum_over_ranks(self, transport: Transport) -> list[Tensor]:
        """All ranks' dense gradients of `forward_backward`, summed, by bucket. A collective."""
        if not self.buckets:
            return []
        flat_B = [bucket.gradient() for bucket in self.buckets]
        summed = ordered_sum(transport, torch.cat(flat_B))
        return list(torch.split(summed, [len(flat) for flat in flat_B]))

    def norms(self, gradient_B: Sequence[Tensor], batch: Batch) -> GradientNorms | None:
        """The norms of a step, where its turn has come; None where not.

        gradient_B: what `sum_over_ranks` returned. Call it before `update`, which takes the place
        of this rank's own gradients.
        """
        if not self._norms_every or self.num_updates % self._norms_every or not self.buckets:
            return None
        own_sq = sum_of_squares([bucket.gradient() for bucket in self.buckets])
        return GradientNorms(
            rank_sq=own_sq / max(batch.num_targets, 1) ** 2,
            whole_sq=sum_of_squares(gradient_B) / max(batch.global_targets, 1) ** 2,
        )

    def update(self, gradient_B: Sequence[Tensor], batch: Batch, scale: float = 1.0) -> None:
        """One optimiser step of every bucket; nothing when no rank had a target.

        scale: what the divided gradient is multiplied with, when it is clipped.
        """
        if batch.global_targets == 0:
            return
        for bucket, gradient in zip(self.buckets, gradient_B, strict=True):
            scaled = gradient if scale == 1.0 else gradient * scale
            bucket.update(scaled, batch.global_targets)

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimiser state by name, each as it is now."""
        names = {p: name for name, p in self.workload.model.named_parameters()}
        found: dict[str, Tensor] = {}
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                found[names[parameter]] = parameter.detach()
                for key, value in bucket.optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        found[f"{names[parameter]}/{key}"] = value
        return found

    def close(self) -> None:
        """Take the hooks off the model."""
        self._outputs.close()

    def _clear(self) -> None:
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.grad = None

    def _parts(self, batch: Batch) -> Sequence[Any]:
        if batch.num_targets == 0:
            return []
        return self.workload.parts(batch, self._micro_batches)

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self._precision == "bf16"
        ):
            yield


def sum_of_squares(gradient_B: Sequence[Tensor]) -> Tensor:
    """The squared norm of several flat tensors as one vector, a scalar in fp32."""
    return torch.stack([gradient.float().square().sum() for gradient in gradient_B]).sum()


def _gathered(
    layers: Sequence[nn.Module], bucket_bytes: int
) -> Iterator[tuple[list[nn.Module], tuple[nn.Parameter, ...]]]:
    """Consecutive layers until a bucket is full; a parameter of two layers counts for the first."""
    seen: set[nn.Parameter] = set()
    part: list[nn.Module] = []
    parameters: list[nn.Parameter] = []
    size = 0
    for layer in layers:
        own = [p for p in own_parameters(layer) if p not in seen]
        seen.update(own)
        part.append(layer)
        parameters += own
        size += sum(p.numel() * p.element_size() for p in own)
        if size >= bucket_bytes:
            yield part, tuple(parameters)
            part, parameters, size = [], [], 0
    if parameters:
        yield part, tuple(parameters)


def _leaves(rows_T: Sequence[Tensor]) -> list[Tensor]:
    return [rows.detach().requires_grad_() for rows in rows_T]


def _row_gradient(gradient: Tensor | None, rows: Tensor, batch: Batch) -> Tensor:
    if gradient is None:
        return torch.zeros_like(rows, requires_grad=False)
    return gradient / batch.global_targets


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[nn.Parameter]) -> Tensor:
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for g, p in zip(gradients, parameters, strict=True)
        ]
    )
