"""Two ranks train under `split` while spies note who did what, in which order.

Every step's batch holds the same 4 items and 20 that the batches beside it do not hold, the same on
both ranks, so that what travels is known on paper. A step's urgent chain starts once the first
piece of the next batch's exclusive rows has gone, and the second piece is held until the chain is
done: so it must overtake them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.training.schedule_programs import (
    HIDDEN,
    ITEM_WIDTH,
    USER_WIDTH,
    Case,
    SmallBatch,
    SmallWorkload,
    table_configs,
)
from training.engine import Engine, EngineOptions
from training.pipeline import split
from training.ranks import joined

NUM_STEPS = 4
NUM_COLLIDING, NUM_EXCLUSIVE, NUM_USERS = 4, 20, 2
CHUNK_BYTES = 128  # smaller than any layer, so every layer is a bucket of its own
OVERTAKING_S = 5.0


class Event(NamedTuple):
    """What one thread did."""

    step: int  # of the loop; for what a lane does, the step in which it was handed over
    thread: str  # loop, urgent or deferred
    what: str
    number: int = -1  # of the layer, or of the lane's submission
    num_bytes: int = 0


class ChainModel(nn.Module):
    """Layers that run in the order of their registration."""

    def __init__(self) -> None:
        super().__init__()
        widths = (ITEM_WIDTH + USER_WIDTH, HIDDEN, HIDDEN, ITEM_WIDTH)
        self.chain = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))

    def forward(self, item_ND: Tensor, user_ND: Tensor) -> Tensor:
        return self.chain(torch.cat([item_ND, user_ND], dim=1))


class Spies:
    """Notes what an engine's loop and lanes do."""

    def __init__(self, engine: Engine) -> None:
        self.events: list[Event] = []
        self.step = -1
        self._step_of: dict[tuple[str, int], int] = {}
        self._own = threading.local()  # of a lane's thread: the submission and what it carries
        self._names: dict[int, str] = {}  # of parts of requests and of buckets' gradients
        self._kept: list[Any] = []  # so that no id is used again
        self._first_pieces = [threading.Event() for _ in range(NUM_STEPS)]
        self._chains = [threading.Event() for _ in range(NUM_STEPS)]
        for lane in (engine.lanes.urgent, engine.lanes.deferred):
            lane.submit = self._submitting(lane.name, lane.submit)  # type: ignore[method-assign]
            for name in ("all_to_all", "all_gather"):
                setattr(lane.transport, name, self._carrying(getattr(lane.transport, name)))
        self._spy_on_exchange(engine.schedule._exchange)
        self._spy_on_layers(engine)
        self._ordered_sum = split.ordered_sum
        split.ordered_sum = self._summing

    def note(self, what: str, number: int = -1, num_bytes: int = 0) -> None:
        thread = threading.current_thread().name.split("_")[0]
        if thread == "MainThread":
            event = Event(self.step, "loop", what, number, num_bytes)
        else:
            own = self._own.number
            event = Event(self._step_of[thread, own], thread, what, own, num_bytes)
        self.events.append(event)

    def _submitting(self, lane: str, submit: Callable[..., Any]) -> Callable[..., Any]:
        numbers = itertools.count()

        def spied(work: Callable[[Any], Any]) -> Any:
            number, step = next(numbers), self.step
            self._step_of[lane, number] = step
            self.note(f"submit {lane}", number)

            def run(transport: Any) -> Any:
                self._own.number, self._own.carries = number, ""
                if lane == "urgent" and step < NUM_STEPS - 1:
                    self._wait_for(self._first_pieces[step])
                try:
                    return work(transport)
                finally:
                    if lane == "urgent":
                        self._chains[step].set()

            future = submit(run)
            result = future.result

            def awaited(*arguments: Any) -> Any:
                if threading.current_thread() is threading.main_thread():
                    self.note(f"await {lane}", number)
                return result(*arguments)

            future.result = awaited
            return future

        return spied

    def _carrying(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def spied(*tensors: Any) -> Any:
            carries = getattr(self._own, "carries", "")
            if carries:
                self._own.num_pieces += 1
                if carries == "exclusive_rows" and self._own.num_pieces == 2:
                    step = self._step_of["deferred", self._own.number]
                    self._first_pieces[step].set()
                    self._wait_for(self._chains[step])
                data = tensors[0] if len(tensors) == 1 else tensors[1]  # of a gather, an exchange
                self.note(f"piece of {carries}", num_bytes=data.nbytes)
            return collective(*tensors)

        return spied

    def _wait_for(self, other_lane: threading.Event) -> None:
        if not other_lane.wait(OVERTAKING_S):
            self.note("waited in vain")

    def _spy_on_exchange(self, exchange: Any) -> None:
        compare = exchange.compare

        def compared(*arguments: Any, **named: Any) -> Any:
            found = compare(*arguments, **named)
            self._kept.append(found)
            self._names |= {id(part): name for name, part in vars(found).items()}
            return found

        exchange.compare = self._carried("marks", compared)
        exchange.exchange_ids = self._carried("ids", exchange.exchange_ids)
        for name in ("send_rows", "send_gradients"):
            setattr(exchange, name, self._of_part(getattr(exchange, name)))
        apply = exchange.apply

        def applied(part: Any, *arguments: Any) -> None:
            apply(part, *arguments)
            self.note(f"applied {self._names.get(id(part), 'whole')}")

        exchange.apply = applied

    def _of_part(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def spied(transport: Any, part: Any, *arguments: Any) -> Any:
            name = self._names.get(id(part), "whole")
            return self._carried(name, send)(transport, part, *arguments)

        return spied

    def _carried(self, name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        """While `send` runs on a lane's thread, what travels is called so."""

        def spied(*arguments: Any, **named: Any) -> Any:
            self._own.carries, self._own.num_pieces = name, 0
            try:
                return send(*arguments, **named)
            finally:
                self._own.carries = ""

        return spied

    def _summing(self, transport: Any, flat_N: Tensor) -> Tensor:
        name = self._names[flat_N.untyped_storage().data_ptr()]
        return self._carried(name, self._ordered_sum)(transport, flat_N)

    def _spy_on_layers(self, engine: Engine) -> None:
        for number, layer in enumerate(engine.workload.model.chain):
            # the schedule's own hook stands between these two
            layer.register_forward_pre_hook(self._noting("before layer", number), prepend=True)
            layer.register_forward_pre_hook(self._noting("layer runs", number))
        first_pass = engine.dense.forward_and_first_pass

        def passed(*arguments: Any) -> Any:
            backward = first_pass(*arguments)
            weight_gradient = backward.weight_gradient

            def weights(bucket: Any) -> Tensor:
                gradient = weight_gradient(bucket)
                (layer,) = bucket.layers
                number = list(engine.workload.model.chain).index(layer)
                self.note("weights", number)
                self._kept.append(gradient)
                self._names[gradient.untyped_storage().data_ptr()] = f"sum of layer {number}"
                return gradient

            backward.weight_gradient = weights
            return backward

        engine.dense.forward_and_first_pass = passed  # type: ignore[method-assign]

    def _noting(self, what: str, number: int) -> Callable[..., None]:
        return lambda module, inputs: self.note(what, number)


def paper_batch(step: int) -> SmallBatch:
    """Items 0 to 3 and 20 further ones, by turns 4 to 23 and 24 to 43; two users."""
    first = NUM_COLLIDING + NUM_EXCLUSIVE * (step % 2)
    item_U = torch.cat([torch.arange(NUM_COLLIDING), torch.arange(first, first + NUM_EXCLUSIVE)])
    places = torch.arange(len(item_U))
    return SmallBatch(
        row_ids=(item_U, torch.arange(NUM_USERS)),
        items=[places],
        users=[places % NUM_USERS],
        num_targets=len(places) - 1,
        global_targets=2 * (len(places) - 1),
    )


def split_events(rank: int, world_size: int, init_method: str) -> list[Event]:
    """What the loop and the lanes of one rank did in NUM_STEPS steps and the settling after."""
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        workload = SmallWorkload()
        workload.model = ChainModel()
        engine = Engine(
            workload,
            table_configs(Case(num_items=NUM_COLLIDING + 2 * NUM_EXCLUSIVE)),
            lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
            EngineOptions(schedule="split", chunk_bytes=CHUNK_BYTES, timeout_s=30),
        )
        spies = Spies(engine)
        for step in range(NUM_STEPS):
            spies.step = step
            engine.recorder.begin_step()
            following = paper_batch(step + 1) if step + 1 < NUM_STEPS else None
            engine.schedule.step(paper_batch(step), following)
            spies.note("end of step")
        spies.step = NUM_STEPS
        engine.settle()
        engine.recorder.end_block()
        engine.close()
        return spies.events
