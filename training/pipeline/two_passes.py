"""The backward pass in two: activation gradients down to the inputs first, weight gradients later.

What waits for the network after a step are the rows of the inputs; nobody waits for the weight
gradients until the next forward pass. So the first pass goes from the loss to the inputs and to the
output of every layer, and computes no weight gradient at all; the second then takes the layers one
by one, in any order, from their outputs' gradients to their weights. Both walk the graph that the
forward pass has built, so the bits are those of a plain backward pass and no work is done twice
(measured on four linear layers: 85 + 74 ms against 175 ms).

A layer is a module that holds parameters itself. A parameter's gradient can wait when its layer ran
once in this forward pass, put out one tensor, and nothing else used the parameter; that is read off
the graph (`used_outside`). Every other parameter (tied weights, a layer that runs several times)
gets its gradient in the first pass: that costs hiding, never exactness.

Price: the activations of the step stay in memory until its last weight gradient is done.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

Outputs = list[tuple[nn.Module, Tensor]]  # of layers, in the order of their calls
# when each layer's latest call began and ended, in autograd's count of the nodes it makes
Spans = dict[nn.Module, tuple[float, float]]


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Modules that hold trainable parameters themselves, in the order of their registration.

    That is the order of the forward pass in nearly every model; another order costs hiding, never
    exactness.
    """
    return [module for module in model.modules() if own_parameters(module)]


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters that a module holds itself."""
    return [p for p in module.parameters(recurse=False) if p.requires_grad]


class LayerOutputs:
    """Keeps what each layer put out while a forward pass is recorded."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._recorded: Outputs | None = None
        self.spans: Spans = {}  # of the latest recorded pass
        self._handles = [layer.register_forward_hook(self._keep) for layer in layers]
        self._handles += [layer.register_forward_pre_hook(self._begin) for layer in layers]

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Outputs]:
        """Record the forward passes inside; (layer, output) in the order of the calls."""
        self._recorded = []
        self.spans = {}
        try:
            yield self._recorded
        finally:
            self._recorded = None

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, _: Any) -> None:
        if self._recorded is not None:
            self.spans[module] = (_moment(module), math.inf)

    def _keep(self, module: nn.Module, _: Any, output: Any) -> None:
        if self._recorded is not None:
            self.spans[module] = (self.spans[module][0], _moment(module))
            self._recorded.extend((module, tensor) for tensor in _tensors(output))


class FirstPass:
    """The gradients of one forward pass down to its inputs; the weights' wait in here.

    owners: the layer that holds each parameter. at_once: parameters whose gradients cannot wait.
    """

    def __init__(
        self,
        loss: Tensor,
        inputs: Sequence[Tensor],
        outputs: Outputs,
        owners: Mapping[nn.Parameter, nn.Module],
        at_once: Set[nn.Parameter] = frozenset(),
    ) -> None:
        self._loss = loss
        gates = single_outputs(outputs)
        now = [p for p, layer in owners.items() if p in at_once or layer not in gates]
        found = torch.autograd.grad(
            loss, [*inputs, *gates.values(), *now], retain_graph=True, allow_unused=True
        )
        of_inputs, rest = found[: len(inputs)], found[len(inputs) :]
        self.input_gradients = [
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(inputs, of_inputs, strict=True)
        ]
        self._gates = {
            layer: (tensor, gradient)
            for (layer, tensor), gradient in zip(gates.items(), rest[: len(gates)], strict=True)
        }
        self._known = dict(zip(now, rest[len(gates) :], strict=True))

    @property
    def held_bytes(self) -> int:
        """What waits for the second pass beyond a plain backward pass: the outputs' gradients."""
        return sum(
            gradient.numel() * gradient.element_size()
            for _, gradient in self._gates.values()
            if gradient is not None
        )

    def weight_gradients(
        self, layer: nn.Module, parameters: Sequence[nn.Parameter]
    ) -> list[Tensor | None]:
        """Gradients of a layer's parameters; None for one that the loss does not know."""
        waiting = [p for p in parameters if p not in self._known]
        tensor, gradient = self._gates.get(layer, (None, None))
        found: Sequence[Tensor | None] = [None] * len(waiting)
        if waiting and tensor is not None and gradient is not None:
            found = torch.autograd.grad(
                tensor, waiting, gradient, retain_graph=True, allow_unused=True
            )
        known = self._known | dict(zip(waiting, found, strict=True))
        return [known[p] for p in parameters]

    def difference_from_plain(
        self, names: Mapping[nn.Parameter, str], owners: Mapping[nn.Parameter, nn.Module]
    ) -> str | None:
        """Which parameters' gradients differ from a plain backward pass, as a message; None: none.

        Compares to the bit and costs another backward pass.
        """
        if not owners:
            return None
        plain = torch.autograd.grad(self._loss, list(owners), retain_graph=True, allow_unused=True)
        wrong = [
            names[parameter]
            for (parameter, layer), expected in zip(owners.items(), plain, strict=True)
            if not _same(expected, self.weight_gradients(layer, [parameter])[0])
        ]
        if not wrong:
            return None
        return (
            "The schedule 'split' cannot train this model: its weight gradients of "
            f"{', '.join(wrong[:5])} differ from those of a plain backward pass. Take the schedule "
            "'prioritised'."
        )


def single_outputs(outputs: Outputs) -> dict[nn.Module, Tensor]:
    """The output of every layer that ran once and put out one tensor."""
    seen: dict[nn.Module, list[Tensor]] = {}
    for module, tensor in outputs:
        seen.setdefault(module, []).append(tensor)
    return {module: tensors[0] for module, tensors in seen.items() if len(tensors) == 1}


def used_outside(
    loss: Tensor, outputs: Outputs, spans: Spans, owners: Mapping[nn.Parameter, nn.Module]
) -> set[nn.Parameter]:
    """Parameters that something else than their layer's own forward uses, before it or after.

    Read off autograd's graph, so a use that happens to have a gradient of nought counts as well: a
    node that takes the parameter was made outside the layer's span, or a way from the parameter to
    the loss does not pass the layer's single output.
    """
    gates = {layer: tensor.grad_fn for layer, tensor in single_outputs(outputs).items()}
    users: dict[Any, list[Any]] = {}  # of a node's result, the nodes that take it
    leaves: dict[nn.Parameter, Any] = {}
    pending, seen = [loss.grad_fn], {loss.grad_fn}
    while pending:
        node = pending.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter):
            leaves[variable] = node
        for further, _ in node.next_functions if node is not None else ():
            if further is None:
                continue
            users.setdefault(further, []).append(node)
            if further not in seen:
                seen.add(further)
                pending.append(further)
    return {
        parameter
        for parameter, leaf in leaves.items()
        if parameter in owners
        and (
            _is_taken_outside(users[leaf], spans.get(owners[parameter]))
            or _reaches(leaf, loss.grad_fn, gates.get(owners[parameter]), users)
        )
    }


def _is_taken_outside(users: Sequence[Any], span: tuple[float, float] | None) -> bool:
    """Whether a node that takes a parameter was made when its layer was not at work."""
    if span is None:
        return True
    return any(not span[0] < user._sequence_nr() < span[1] for user in users)


def _moment(module: nn.Module) -> int:
    """Where autograd's count of nodes stands."""
    parameter = own_parameters(module)[0]
    with torch.enable_grad():
        node = parameter.view_as(parameter).grad_fn
    assert node is not None
    number: int = node._sequence_nr()
    return number


def _reaches(start: Any, end: Any, gate: Any, users: Mapping[Any, Sequence[Any]]) -> bool:
    """Whether a way leads up from `start` to `end` that does not pass `gate`."""
    pending, seen = [start], {start}
    while pending:
        node = pending.pop()
        if node is gate:
            continue
        if node is end:
            return True
        for user in users.get(node, ()):
            if user not in seen:
                seen.add(user)
                pending.append(user)
    return False


def _same(expected: Tensor | None, found: Tensor | None) -> bool:
    if expected is None or found is None:
        given = expected if expected is not None else found
        return given is None or not bool(given.any())
    return bool(((expected == found) | (expected.isnan() & found.isnan())).all())


def _tensors(output: Any) -> list[Tensor]:
    """The tensors in a module's output that gradients flow through."""
    if isinstance(output, Tensor):
        return [output] if output.requires_grad else []
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for part in output for tensor in _tensors(part)]
    return []
