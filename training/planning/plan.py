"""The plan: every global batch of every epoch, and which sequence each rank holds.

Both arms read the same global batches; an arm only says on which rank a sequence lies. So a plan is
one array of sequences per arm, the same set in the same step for every arm.

Layout of a plan folder:
    plan.json                 seed, ranks, steps, epochs and, per arm, its forecast
    epochs.npy                int64 (num_steps,)               epoch of each step
    <arm>.sequences.npy       int64 (sum of batch sizes,)      sequences, step by step, rank by rank
    <arm>.offsets.npy         int64 (num_steps, num_ranks + 1) rank r of step s holds
                                                               sequences[offsets[s,r]:offsets[s,r+1]]

Before: the store's lengths and a cost model.   After: training/feed.py, one rank's reader.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.errors import PlanError
from training.config import ArmConfig
from training.planning.cost import CostModel
from training.planning.placement import (
    PLACEMENT_FUNCTIONS,
    bound_load,
    load_of_ranks,
    straggler_share,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PLAN_NAME = "plan.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmPlan:
    """Where every sequence of every step lies, for one arm."""

    sequences: Ints
    offsets: Ints
    predicted_straggler_share: float | None
    bound_straggler_share: float | None

    def of_rank(self, step: int, rank: int) -> Ints:
        """The sequences of one rank in one step; shape (b,), b may be 0."""
        return self.sequences[self.offsets[step, rank] : self.offsets[step, rank + 1]]

    def of_step(self, step: int) -> Ints:
        """The sequences of the whole global batch; shape (B,)."""
        return self.sequences[self.offsets[step, 0] : self.offsets[step, -1]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Every step of every arm."""

    seed: int
    num_ranks: int
    epochs: Ints  # shape (num_steps,)
    cost: CostModel
    arms: Mapping[str, ArmPlan]

    @property
    def num_steps(self) -> int:
        """Global batches over all epochs."""
        return len(self.epochs)


def global_batches(
    num_sequences: int, batch_sequences: int, num_epochs: int, seed: int
) -> list[tuple[int, Ints]]:
    """(epoch, sequences) of every step: each epoch a seeded permutation cut into batches.

    The last batch of an epoch may be short; every sequence is in each epoch exactly once.
    """
    batches = []
    for epoch in range(num_epochs):
        order = np.random.default_rng([seed, epoch]).permutation(num_sequences).astype(np.int64)
        for start in range(0, num_sequences, batch_sequences):
            batches.append((epoch, order[start : start + batch_sequences]))
    return batches


def make_plan(
    training_length_N: Ints,
    cost: CostModel,
    arms: tuple[ArmConfig, ...],
    *,
    num_ranks: int,
    batch_sequences: int,
    num_epochs: int,
    seed: int,
) -> Plan:
    """Place every global batch of every epoch, for every arm.

    training_length_N: events of each sequence that are trained on, shape (N,).
    Raises PlanError when there are fewer sequences than ranks.
    """
    num_sequences = len(training_length_N)
    if num_sequences < num_ranks:
        raise PlanError(
            f"There are {num_sequences} users for {num_ranks} ranks, so some ranks would never "
            f"work. Lower --ranks to {max(num_sequences, 1)} or give more users."
        )
    cost_N = cost.sequence_cost_s(training_length_N)
    batches = global_batches(num_sequences, batch_sequences, num_epochs, seed)
    epochs = np.array([epoch for epoch, _ in batches], dtype=np.int64)
    placed = {
        arm.name: _place_arm(arm, batches, cost_N, num_ranks=num_ranks, seed=seed) for arm in arms
    }
    return Plan(seed=seed, num_ranks=num_ranks, epochs=epochs, cost=cost, arms=placed)


def _place_arm(
    arm: ArmConfig,
    batches: list[tuple[int, Ints]],
    cost_N: Floats,
    *,
    num_ranks: int,
    seed: int,
) -> ArmPlan:
    place = PLACEMENT_FUNCTIONS[arm.placement]
    sequences, offsets, loads, bounds = [], [], [], []
    start = 0
    for step, (_, batch) in enumerate(batches):
        batch_cost = cost_N[batch]
        rank_B = place(batch_cost, num_ranks, np.random.default_rng([seed, 1, step]))
        sequences.append(batch[np.argsort(rank_B, kind="stable")])
        counts = np.bincount(rank_B, minlength=num_ranks)
        offsets.append(start + np.concatenate(([0], np.cumsum(counts))))
        start += len(batch)
        loads.append(load_of_ranks(batch_cost, rank_B, num_ranks))
        bounds.append(bound_load(batch_cost, num_ranks))
    mean_load = float(sum(load.mean() for load in loads))
    bound = None if num_ranks < 2 else max(0.0, 1.0 - mean_load / max(sum(bounds), 1e-300))
    return ArmPlan(
        sequences=np.concatenate(sequences),
        offsets=np.stack(offsets).astype(np.int64),
        predicted_straggler_share=straggler_share(loads),
        bound_straggler_share=bound,
    )


def write_plan(plan: Plan, directory: Path) -> None:
    """Write a plan into an existing empty folder; plan.json comes last."""
    np.save(directory / "epochs.npy", plan.epochs)
    arms: dict[str, Any] = {}
    for name, arm in plan.arms.items():
        np.save(directory / f"{name}.sequences.npy", arm.sequences)
        np.save(directory / f"{name}.offsets.npy", arm.offsets)
        arms[name] = {
            "predicted_straggler_share": arm.predicted_straggler_share,
            "bound_straggler_share": arm.bound_straggler_share,
        }
    header = {
        "seed": plan.seed,
        "num_ranks": plan.num_ranks,
        "cost": dataclasses.asdict(plan.cost),
        "arms": arms,
    }
    (directory / PLAN_NAME).write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")


def read_plan(directory: Path) -> Plan:
    """Open a plan; the arrays are memory-mapped, read-only.

    Raises PlanError when a part is missing or unreadable.
    """
    try:
        header = json.loads((directory / PLAN_NAME).read_text(encoding="utf-8"))
        arms = {
            name: ArmPlan(
                sequences=_load(directory / f"{name}.sequences.npy"),
                offsets=_load(directory / f"{name}.offsets.npy"),
                **shares,
            )
            for name, shares in header["arms"].items()
        }
        return Plan(
            seed=header["seed"],
            num_ranks=header["num_ranks"],
            epochs=_load(directory / "epochs.npy"),
            cost=CostModel(**header["cost"]),
            arms=arms,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(
            f"{directory}: no readable plan is here ({error}). Delete the folder and run "
            "'seqscale run' again."
        ) from error


def _load(path: Path) -> Ints:
    array: Ints = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
