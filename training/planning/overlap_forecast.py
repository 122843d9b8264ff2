"""How long a step takes under each schedule, from its compute, its bytes and the link, on paper.

What is exposed is what the formulas differ in. With compute C = forward + activations + weights,
rows R, gradients G, dense sum D, ids I and marks M in bytes, a share c of them colliding, a payload
rate b, the loop's own work h, the update of the rows a and a latency l of a collective:

    synchronous   C + h + a + (I + R + G + D) / b + 6 l
    ids_ahead     C + h + a + (R + G + D) / b + 4 l           and what of I does not fit into C
    prioritised   max(C, p) + h + a + (c G + c R + D) / b + 4 l, or all bytes / b
    split         max(C + h, F + A + h + (c G + c R) / b + a + 2 l, all bytes / b)

p is what prioritised must know before its colliding gradients may go: exclusive gradients of the
batch before, ids and marks of the next. A collective that is cut into chunks costs a latency each.
All bytes count one direction of a full-duplex link, of the rank that sends or receives most.

Before: measured times and counted bytes.   After: bench/regimes.py holds them against the engine.
Definition: exact overlap, docs/definitions.md; the orders, training/pipeline/.
Not in the formulas: that deferred traffic slows the urgent chain while both share the link, ranks
that come late, a host that cannot keep up.
"""

from __future__ import annotations

import dataclasses
import math

FORECAST_SCHEDULES = ("synchronous", "ids_ahead", "prioritised", "split")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLoad:
    """One rank's step and its link."""

    forward_s: float
    activations_s: float  # of the backward pass, down to the embedding rows
    weights_s: float  # of the backward pass
    row_bytes: float  # of all rows of a batch, to or from other ranks
    gradient_bytes: float  # of these rows
    dense_bytes: float  # of the dense sum over ranks, both its passes
    id_bytes: float
    mark_bytes: float = 0.0  # which rows collide; only prioritised and split send them
    collision_share: float  # of the rows, 0..1
    payload_bytes_per_s: float
    latency_s: float = 0.0  # of a collective that carries next to nothing
    apply_s: float = 0.0  # the update of the batch's rows
    host_s: float = 0.0  # the loop's own work: grouping ids, putting rows together, dense update
    chunk_bytes: float = math.inf  # the most that one piece of deferred traffic carries

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise ValueError(f"{field.name} is {value}; it must be 0 or more.")
        if self.collision_share > 1:
            raise ValueError(f"collision_share is {self.collision_share}; it lies in 0..1.")
        if not self.payload_bytes_per_s or not self.chunk_bytes:
            raise ValueError("payload_bytes_per_s and chunk_bytes must be above 0.")

    @property
    def compute_s(self) -> float:
        """The model's forward and backward pass."""
        return self.forward_s + self.activations_s + self.weights_s

    @property
    def total_bytes(self) -> float:
        """What every schedule sends; marks come on top in prioritised and split."""
        return self.row_bytes + self.gradient_bytes + self.dense_bytes + self.id_bytes

    @property
    def ratio(self) -> float:
        """Communication to compute: all bytes over the payload rate, divided by the compute."""
        return self.total_bytes / self.payload_bytes_per_s / self.compute_s

    def wire_s(self, num_bytes: float) -> float:
        """Time of bytes on the link [s]."""
        return num_bytes / self.payload_bytes_per_s

    def pieces_s(self, num_bytes: float) -> float:
        """Latencies of a deferred transfer that is cut into chunks [s]."""
        return self.latency_s * max(1, math.ceil(num_bytes / self.chunk_bytes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepForecast:
    """What a schedule's step would take."""

    step_s: float
    exposed_s: float  # of it, neither compute nor own work nor the rows' update
    bound_by: str  # compute, exchange (on the critical path), or wire (all bytes)


def forecast(schedule: str, load: StepLoad) -> StepForecast:
    """A step of `schedule`, one of FORECAST_SCHEDULES, after the first few.

    Raises ValueError for another name.
    """
    if schedule not in FORECAST_SCHEDULES:
        raise ValueError(f"schedule is {schedule!r}; known are {', '.join(FORECAST_SCHEDULES)}.")
    bounds = {
        "synchronous": _synchronous,
        "ids_ahead": _ids_ahead,
        "prioritised": _prioritised,
        "split": _split,
    }[schedule](load)
    bound_by = max(bounds, key=lambda name: bounds[name])
    own_s = load.compute_s + load.host_s + (0.0 if schedule == "split" else load.apply_s)
    step_s = bounds[bound_by]
    return StepForecast(step_s=step_s, exposed_s=max(0.0, step_s - own_s), bound_by=bound_by)


def split_pays_until_ratio(load: StepLoad) -> float:
    """The largest communication-to-compute ratio at which split hides everything; inf when always.

    The colliding bytes must fit under the weight gradients and all bytes under the step. Without
    latencies; the rate of `load` does not matter.
    """
    colliding = load.collision_share * (load.row_bytes + load.gradient_bytes)
    under_weights_s = max(0.0, load.weights_s - load.apply_s)
    lowest_rate = load.total_bytes / load.compute_s
    if colliding:
        if not under_weights_s:
            return 0.0
        lowest_rate = max(lowest_rate, colliding / under_weights_s)
    return load.total_bytes / lowest_rate / load.compute_s if lowest_rate else math.inf


def _synchronous(load: StepLoad) -> dict[str, float]:
    own_s = load.compute_s + load.host_s + load.apply_s
    return {"exchange": own_s + load.wire_s(load.total_bytes) + 6 * load.latency_s}


def _ids_ahead(load: StepLoad) -> dict[str, float]:
    own_s = load.compute_s + load.host_s + load.apply_s
    carried_s = load.wire_s(load.total_bytes - load.id_bytes) + 4 * load.latency_s
    ids_s = load.wire_s(load.id_bytes) + 2 * load.latency_s
    return {"exchange": own_s + carried_s + max(0.0, ids_s - load.compute_s)}


def _prioritised(load: StepLoad) -> dict[str, float]:
    share, own_s = load.collision_share, load.host_s + load.apply_s
    urgent_s = load.wire_s(_colliding(load) + load.dense_bytes) + 4 * load.latency_s
    gradients = (1 - share) * load.gradient_bytes
    known_s = (
        load.wire_s(gradients + load.id_bytes + load.mark_bytes)
        + load.pieces_s(gradients)
        + 3 * load.latency_s
    )
    latencies_s = load.pieces_s(gradients) + load.pieces_s((1 - share) * load.row_bytes)
    return {
        "exchange": max(load.compute_s, known_s) + own_s + urgent_s,
        "wire": load.wire_s(load.total_bytes + load.mark_bytes) + latencies_s + 3 * load.latency_s,
    }


def _split(load: StepLoad) -> dict[str, float]:
    exclusive = 1 - load.collision_share
    chain_s = load.wire_s(_colliding(load)) + load.apply_s + 2 * load.latency_s
    latencies_s = (
        load.pieces_s(exclusive * load.gradient_bytes)
        + load.pieces_s(exclusive * load.row_bytes)
        + 2 * load.pieces_s(load.dense_bytes / 2)
        + 3 * load.latency_s
    )
    return {
        "compute": load.compute_s + load.host_s,
        "exchange": load.forward_s + load.activations_s + load.host_s + chain_s,
        "wire": load.wire_s(load.total_bytes + load.mark_bytes) + latencies_s,
    }


def _colliding(load: StepLoad) -> float:
    return load.collision_share * (load.row_bytes + load.gradient_bytes)
