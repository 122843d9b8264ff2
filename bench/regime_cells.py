"""Measures cells of bench/regimes.py on one rank: four schedules in turns over an emulated link.

Compute is sleep, the link is `PacedTransport`, tables, exchange and schedules are the engine's.
Schedules take turns of a few steps; the first step of a turn has nothing under way and is not
counted. All engines of a rank share two process groups and are at work one at a time.

Before: regimes.py starts the ranks.   After: rank 0 writes one JSON line a cell.
Shape letters: S schedules, N counted steps, R ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bench.emulated import EmulatedBatch, EmulatedLoad, EmulatedWorkload, batches
from bench.regime_load import (
    LATE_SHARE,
    NUM_LAYERS,
    NUM_ROWS,
    ROWS_PER_RANK,
    WIDTH,
    Cell,
    Overheads,
    as_run,
    step_load,
)
from training.comm.gloo import GlooTransport
from training.comm.paced import WIRE_PER_PAYLOAD, Link, PacedTransport
from training.comm.transport import Transport
from training.config import TableConfig
from training.engine import Engine, EngineOptions
from training.planning.overlap_forecast import FORECAST_SCHEDULES, StepLoad, forecast
from training.ranks import another_group, joined
from training.recorder import Window
from training.step_parts import step_parts

TIMEOUT_S = 60
STEPS_A_TURN = 3  # the first is not counted
_FAST_MBIT_PER_S = 1e6


def emulated(cell: Cell) -> EmulatedLoad:
    """What a rank computes and reads in a cell."""
    return EmulatedLoad(
        forward_s=cell.forward_s,
        activations_s=cell.activations_s,
        weights_s=cell.weights_s,
        num_layers=NUM_LAYERS,
        width=WIDTH,
        num_rows=NUM_ROWS,
        rows_per_rank=ROWS_PER_RANK,
        collision_share=cell.collision_share,
    )


class Groups:
    """Two process groups for all engines of this rank, and one to compare ranks."""

    def __init__(self) -> None:
        cpu = torch.device("cpu")
        self.lanes = [GlooTransport(another_group(TIMEOUT_S), cpu) for _ in range(2)]
        self.control = GlooTransport(another_group(TIMEOUT_S), cpu)

    def engine(self, schedule: str, cell: Cell, rate_mbit_per_s: float, chunk_bytes: int) -> Engine:
        """An engine over a link of its own; only one may be at work at a time."""
        link = Link(rate_mbit_per_s)
        inner = iter(self.lanes)

        def transport(urgent: bool) -> Transport:
            return PacedTransport(next(inner), link)

        return Engine(
            EmulatedWorkload(emulated(cell)),
            [TableConfig(name="item", num_rows=NUM_ROWS, width=WIDTH)],
            lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
            EngineOptions(schedule=schedule, chunk_bytes=chunk_bytes),
            transport=transport,
        )

    def of_all_ranks(self, values: Any) -> Any:
        """Every rank's float64 array, shape (R, ...). A collective."""
        return self.control.all_gather(torch.from_numpy(np.asarray(values, np.float64))).numpy()


class Arm:
    """One schedule's engine and where it is in the batches."""

    def __init__(self, engine: Engine, data: list[EmulatedBatch]) -> None:
        self.engine = engine
        self._data = data
        self._at = 0
        self.losses: list[float] = []
        self._counted: list[tuple[Window, int]] = []  # and the bytes it sent

    def turn(self, num_steps: int) -> None:
        """Run some steps and settle."""
        engine, recorder = self.engine, self.engine.recorder
        sent = []
        for _ in range(num_steps):
            following = self._data[self._at + 1] if self._at + 1 < len(self._data) else None
            recorder.begin_step()
            result = engine.schedule.step(self._data[self._at], following)
            self.losses.append(float(result.local_loss_sum))
            sent.append(result.sent_bytes)
            self._at += 1
        windows = recorder.end_block()
        recorder.begin_step()  # what settling waits for belongs to no step
        engine.schedule.settle()
        recorder.end_block()
        self._counted += list(zip(windows, sent, strict=True))[1:]

    def measured(self, groups: Groups) -> list[list[float]]:
        """Of each counted step: length, exposed, of it for late ranks, busy, CPU [s]; bytes.

        A collective: all ranks' arrivals are compared, on the one clock of this host.
        """
        waits = [[w.arrival_ns for w in window.sorted_waits()] for window, _ in self._counted]
        arrivals = groups.control.all_gather(torch.tensor(waits, dtype=torch.int64))
        last_NW = arrivals.max(dim=0).values.tolist()
        found = []
        for (window, num_bytes), last_W in zip(self._counted, last_NW, strict=True):
            parts = step_parts(window, last_W)
            assert parts.straggler_wait_s is not None
            times = [parts.window_s, parts.exposed_comm_total_s, parts.straggler_wait_s]
            found.append([*times, parts.busy_s, parts.cpu_s, float(num_bytes)])
        return found


def measure_cell(groups: Groups, cell: Cell, overheads: Overheads, num_turns: int) -> Any:
    """The cell's row; the same on every rank. A collective."""
    overheads = dataclasses.replace(overheads, latency_s=measure_latency(groups))
    load = step_load(cell, overheads)
    rank, world_size = groups.control.rank, cell.world_size
    num_steps = num_turns * STEPS_A_TURN
    # one more than is trained on, so that the last step has a following batch, too
    data = list(batches(emulated(cell), rank=rank, world_size=world_size, num_steps=num_steps + 1))
    rate_mbit = load.payload_bytes_per_s * WIRE_PER_PAYLOAD * 8 / 1e6
    arms = [
        Arm(groups.engine(name, cell, rate_mbit, int(load.chunk_bytes)), data)
        for name in FORECAST_SCHEDULES
    ]
    cpu_begin, wall_begin = time.process_time(), time.monotonic()
    for _ in range(num_turns):
        for arm in arms:
            dist.barrier(groups.control.group)
            arm.turn(STEPS_A_TURN)
    used = [time.process_time() - cpu_begin, time.monotonic() - wall_begin]
    differences = [largest_difference(arms[0], arm) for arm in arms]
    measured_RSNM = groups.of_all_ranks([arm.measured(groups) for arm in arms])
    differences_RS4 = groups.of_all_ranks(differences)
    used_R2 = groups.of_all_ranks(used)
    for arm in arms:
        arm.engine.close()
    return as_row(cell, load, rate_mbit, measured_RSNM, differences_RS4, used_R2)


def largest_difference(expected: Arm, found: Arm) -> list[float]:
    """Largest absolute differences of (tables, their optimiser state, dense, loss)."""
    table, other = expected.engine.tables[0], found.engine.tables[0]
    dense, other_dense = expected.engine.dense.state(), found.engine.dense.state()
    return [
        float((table.weight_MD - other.weight_MD).abs().max()),
        max(float((v - other.state[k]).abs().max()) for k, v in table.state.items()),
        max(float((v - other_dense[k]).abs().max()) for k, v in dense.items()),
        float(np.abs(np.array(expected.losses) - np.array(found.losses)).max()),
    ]


def as_row(
    cell: Cell,
    load: StepLoad,
    rate_mbit: float,
    measured_RSNM: Any,
    differences_RS4: Any,
    used_R2: Any,
) -> dict[str, Any]:
    """A cell's row: a step is as long as its slowest rank's; medians over steps."""
    row = dataclasses.asdict(cell) | {
        "compute_s": cell.compute_s,
        "rate_mbit_per_s": rate_mbit,
        "link": "emulated",
        "num_steps": measured_RSNM.shape[2],
        "cpu_share": float(used_R2[:, 0].sum() / used_R2[:, 1].max() / (os.cpu_count() or 1)),
        "latency_s": load.latency_s,
        "apply_s": load.apply_s,
        "host_s": load.host_s,
        "total_bytes": load.total_bytes,
    }
    late = []
    for s, name in enumerate(FORECAST_SCHEDULES):
        step_RN, exposed_RN, late_RN, busy_RN, cpu_RN, sent_RN = (
            measured_RSNM[:, s, :, m] for m in range(6)
        )
        step_N = step_RN.max(axis=0)
        predicted = forecast(name, load)
        busy_s = float(np.median(busy_RN.max(axis=0)))
        late.append(busy_s / cell.compute_s - 1)
        own_s = float(np.median(busy_RN.mean(axis=0)))
        wire_s = float(np.median((exposed_RN - late_RN).mean(axis=0)))
        as_run_s = forecast(name, as_run(load, own_s)).step_s
        row[name] = {
            "step_s": float(np.median(step_N)),
            "step_low_s": float(np.quantile(step_N, 0.25)),
            "step_high_s": float(np.quantile(step_N, 0.75)),
            "exposed_s": float(np.median(exposed_RN.mean(axis=0))),
            "wire_s": wire_s,  # of it, without waiting for ranks that came late
            "busy_s": own_s,
            "cpu_s": float(np.median(cpu_RN.mean(axis=0))),  # of a rank's loop and lanes
            "late_share": late[-1],
            "sent_bytes": float(np.median(sent_RN.max(axis=0))),
            "predicted_s": predicted.step_s,
            "bound_by": predicted.bound_by,
            "deviation_share": float(np.median(step_N)) / predicted.step_s - 1,
            "predicted_as_run_s": as_run_s,
            "deviation_as_run_share": (own_s + wire_s) / as_run_s - 1,
            "difference": float(differences_RS4[:, s].max()),
        }
    for name in FORECAST_SCHEDULES:
        for part, key in (("exposed_s", "hidden_share"), ("wire_s", "hidden_wire_share")):
            whole = row["ids_ahead"][part]
            row[name][key] = 1 - row[name][part] / whole if whole else None
    row["late_share"] = max(late)
    row["kept_up"] = max(late) <= LATE_SHARE
    return row


def measure_overheads(groups: Groups, cell: Cell) -> Overheads:
    """Latency of a small collective, the rows' update, and the loop's own work. A collective."""
    data = list(
        batches(emulated(cell), rank=groups.control.rank, world_size=cell.world_size, num_steps=7)
    )
    engine = groups.engine("synchronous", cell, _FAST_MBIT_PER_S, 1 << 20)
    applied: list[float] = []
    apply = engine.schedule._exchange.apply

    def timed(*given: Any) -> None:
        begin = time.monotonic()
        apply(*given)
        applied.append(time.monotonic() - begin)

    engine.schedule._exchange.apply = timed  # type: ignore[method-assign]
    arm = Arm(engine, data)
    arm.turn(6)
    engine.close()
    apply_s = float(np.median(applied))
    measured_NM = np.array(arm.measured(groups))
    own_s = float(np.median(measured_NM[:, 0] - measured_NM[:, 1])) - cell.compute_s
    mine = [apply_s, max(0.0, own_s - apply_s)]
    apply_s, host_s = np.median(groups.of_all_ranks(mine), axis=0).tolist()
    return Overheads(latency_s=measure_latency(groups), apply_s=apply_s, host_s=host_s)


def measure_latency(groups: Groups) -> float:
    """Of a collective that carries a number, lower quartile, mean over ranks. A collective."""
    small = torch.zeros(groups.control.world_size, dtype=torch.int64)
    paced = PacedTransport(groups.lanes[0], Link(_FAST_MBIT_PER_S))
    latencies = []
    for _ in range(40):
        begin = time.monotonic()
        paced.all_to_all(torch.empty_like(small), small)
        latencies.append(time.monotonic() - begin)
    return float(groups.of_all_ranks([np.quantile(latencies, 0.25)]).mean())


def run_rank(
    rank: int,
    rendezvous: str,
    cells: list[Cell],
    num_turns: int,
    num_retries: int,
    results: Path,
) -> None:
    """Measure cells of one number of ranks; rank 0 appends each as a line of JSON."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    world_size = cells[0].world_size
    with joined(TIMEOUT_S, init_method=rendezvous, rank=rank, world_size=world_size):
        groups = Groups()
        overheads = measure_overheads(groups, cells[0])
        for cell in cells:
            row = measure_cell(groups, cell, overheads, num_turns)
            attempts = 1
            while not row["kept_up"] and attempts <= num_retries:
                again = measure_cell(groups, cell, overheads, num_turns)
                row = min(row, again, key=lambda found: found["late_share"])
                attempts += 1
            row["num_attempts"] = attempts  # the one whose compute was least late is kept
            if groups.control.rank == 0:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        dist.barrier(groups.control.group)
