"""A cell of bench/regimes.py and what the formulas are told about it."""

from __future__ import annotations

import dataclasses

from training.planning.overlap_forecast import StepLoad

# few layers: each sleeps three times a step, and every sleep wakes late on a busy host
WIDTH, NUM_LAYERS, ROWS_PER_RANK, NUM_ROWS = 64, 4, 1280, 40_000
CHUNKS_A_COMPUTE = 12  # a chunk is so much of the compute time on the wire: 5-20 ms
LATE_SHARE = 0.1  # compute that took longer than its sleeps by more: the machine did not keep up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One place in the map."""

    world_size: int
    ratio: float  # all bytes of a synchronous step over the payload rate, over the compute
    collision_share: float
    forward_s: float
    activations_s: float
    weights_s: float
    label: str = ""  # of a cell that stands beside the map

    @property
    def compute_s(self) -> float:
        """Sleeps of a step."""
        return self.forward_s + self.activations_s + self.weights_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overheads:
    """What this machine takes at this number of ranks, measured without a link's limit."""

    latency_s: float  # of a small collective
    apply_s: float
    host_s: float  # the loop's own work in a synchronous step, besides sleeps and the rows' update


def step_load(cell: Cell, overheads: Overheads) -> StepLoad:
    """The cell as the formulas see it; bytes of a rank, each owner with an even share of rows."""
    to_others = (cell.world_size - 1) / cell.world_size
    rows = ROWS_PER_RANK * to_others
    parameters = NUM_LAYERS * (WIDTH * WIDTH + WIDTH)
    sizes = {
        "row_bytes": 4.0 * WIDTH * rows,
        "gradient_bytes": 4.0 * WIDTH * rows,
        "dense_bytes": 8.0 * parameters * to_others,
        "id_bytes": 8.0 * rows,
    }
    rate = sum(sizes.values()) / (cell.ratio * cell.compute_s)
    return StepLoad(
        forward_s=cell.forward_s,
        activations_s=cell.activations_s,
        weights_s=cell.weights_s,
        **sizes,
        mark_bytes=2.0 * rows,
        collision_share=cell.collision_share,
        payload_bytes_per_s=rate,
        chunk_bytes=max(4096.0, rate * cell.compute_s / CHUNKS_A_COMPUTE),
        latency_s=overheads.latency_s,
        apply_s=overheads.apply_s,
        host_s=overheads.host_s,
    )


def as_run(load: StepLoad, busy_s: float) -> StepLoad:
    """The load with its compute as long as the loop's work really took, own work included.

    Held against that work plus the wait for the wire alone: what is left of a forecast's error is
    then that of the exchange, not of late sleeps and late ranks.
    """
    stretch = max(0.0, busy_s - load.apply_s) / load.compute_s
    return dataclasses.replace(
        load,
        forward_s=load.forward_s * stretch,
        activations_s=load.activations_s * stretch,
        weights_s=load.weights_s * stretch,
        host_s=0.0,
    )
