"""The plan: every global batch of every epoch, and which sequence each rank holds.

All arms read the same global batches; an arm only says on which rank a sequence lies. So a plan is
one array of sequences per arm, the same set in the same step for every arm. Its unit is the
training window (windows.py): the sequence itself, unless it was cut.

Layout of a plan folder:
    plan.json                 seed, ranks, steps, epochs and, per arm, its forecast
    windows.npy               int32 (num_windows, 4)           windows.py: which part of a sequence
    epochs.npy                int64 (num_steps,)               epoch of each step
    <arm>.sequences.npy       int32 (sum of batch sizes,)      windows, step by step, rank by rank
    <arm>.offsets.npy         int64 (num_steps, num_ranks + 1) rank r of step s holds
                                                               sequences[offsets[s,r]:offsets[s,r+1]]

Before: the store's lengths and a cost model.   After: training/feed.py, one rank's reader.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.errors import PlanError
from training.config import ArmConfig, RunConfig
from training.planning.balance import bound_share, load_of_ranks, straggler_share
from training.planning.cost import CostModel
from training.planning.lookahead import look_ahead
from training.planning.memory import place_within_tokens
from training.planning.placement import PLACEMENT_FUNCTIONS
from training.planning.windows import (
    Windows,
    read_windows,
    training_windows,
    whole_sequences,
    write_windows,
)

Ints = npt.NDArray[np.int64]
WindowIds = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PLAN_NAME = "plan.json"
_RANDOM_PLACEMENT, _LOOKAHEAD = 1, 2  # what a generator draws for


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmPlan:
    """Where every training window of every step lies, for one arm."""

    sequences: WindowIds  # numbers of windows; of sequences where none is cut
    offsets: Ints
    predicted_straggler_share: float | None
    bound_straggler_share: float | None  # of any placement of whole windows in the same batches

    def of_rank(self, step: int, rank: int) -> WindowIds:
        """The windows of one rank in one step; shape (b,), b may be 0."""
        return self.sequences[self.offsets[step, rank] : self.offsets[step, rank + 1]]

    def of_step(self, step: int) -> WindowIds:
        """The windows of the whole global batch; shape (B,)."""
        return self.sequences[self.offsets[step, 0] : self.offsets[step, -1]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Every step of every arm."""

    seed: int
    num_ranks: int
    epochs: Ints  # shape (num_steps,)
    cost: CostModel
    windows: Windows
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
    training_length_N: npt.ArrayLike,
    cost: CostModel,
    arms: tuple[ArmConfig, ...],
    *,
    num_ranks: int,
    batch_sequences: int,
    num_epochs: int,
    seed: int,
    lookahead_batches: int = 1,
    split_giants: bool = False,
    max_tokens_per_rank: int | None = None,
) -> Plan:
    """Place every global batch of every epoch, for every arm.

    training_length_N: events of each sequence that are trained on, shape (N,).
    batch_sequences: windows in a global batch; sequences where no giant is cut.
    lookahead_batches, split_giants, max_tokens_per_rank: as in TrainConfig, the same for every arm.
    Raises PlanError when there are fewer sequences than ranks, or when a sequence or a batch has
    more events than max_tokens_per_rank allows.
    """
    length_N = np.asarray(training_length_N, dtype=np.int64)
    num_sequences = len(length_N)
    if num_sequences < num_ranks:
        raise PlanError(
            f"There are {num_sequences} users for {num_ranks} ranks, so some ranks would never "
            f"work. Lower --ranks to {max(num_sequences, 1)} or give more users."
        )
    windows = whole_sequences(length_N)
    if split_giants:
        windows = training_windows(
            length_N,
            cost,
            num_ranks=num_ranks,
            batch_sequences=batch_sequences,
            max_events=max_tokens_per_rank,
        )
    dealing = Dealing(
        cost_W=cost.sequence_cost_s(windows.lengths),
        token_W=windows.lengths,
        num_ranks=num_ranks,
        seed=seed,
        max_tokens=max_tokens_per_rank,
    )
    batches = global_batches(len(windows), batch_sequences, num_epochs, seed)
    epochs = np.array([epoch for epoch, _ in batches], dtype=np.int64)
    dealt = dealing.look_ahead(batches, lookahead_batches)
    return Plan(
        seed=seed,
        num_ranks=num_ranks,
        epochs=epochs,
        cost=cost,
        windows=windows,
        arms={arm.name: dealing.place(arm, dealt) for arm in arms},
    )


def make_run_plan(training_length_N: npt.ArrayLike, cost: CostModel, config: RunConfig) -> Plan:
    """The plan of a whole run, every setting taken from its configuration.

    training_length_N: events of each sequence left for training, shape (N,); longer ones count as
    the newest `max_trained_events`. Raises PlanError as make_plan does.
    """
    train = config.train
    return make_plan(
        np.minimum(training_length_N, config.model.max_trained_events),
        cost,
        config.arms,
        num_ranks=config.num_ranks,
        batch_sequences=train.global_batch_sequences,
        num_epochs=train.num_epochs,
        seed=train.seed,
        lookahead_batches=train.lookahead_batches,
        split_giants=train.split_giants,
        max_tokens_per_rank=train.max_tokens_per_rank,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dealing:
    """What every batch and arm of one plan is dealt by; also replan.py's and a user's sampler's."""

    cost_W: Floats  # cost of each window
    token_W: Ints  # events of each window
    num_ranks: int
    seed: int
    max_tokens: int | None

    def look_ahead(self, batches: list[tuple[int, Ints]], window: int) -> list[Ints]:
        """The batches of all epochs, each epoch dealt anew within its windows of batches."""
        dealt: list[Ints] = []
        for epoch, of_epoch in itertools.groupby(batches, key=lambda entry: entry[0]):
            dealt += look_ahead(
                [batch for _, batch in of_epoch],
                self.cost_W,
                num_ranks=self.num_ranks,
                window=window,
                rng=np.random.default_rng([self.seed, _LOOKAHEAD, epoch]),
                token_N=self.token_W,
                max_tokens=None if self.max_tokens is None else self.num_ranks * self.max_tokens,
            )
        return dealt

    def place(self, arm: ArmConfig, batches: list[Ints]) -> ArmPlan:
        """Every batch placed as the arm does it."""
        sequences, loads = [], []
        count_SR = np.zeros((len(batches), self.num_ranks), dtype=np.int64)
        for step, batch in enumerate(batches):
            rank_B = self.ranks(arm.placement, batch, step)
            sequences.append(batch[np.argsort(rank_B, kind="stable")].astype(np.int32))
            count_SR[step] = np.bincount(rank_B, minlength=self.num_ranks)
            loads.append(load_of_ranks(self.cost_W[batch], rank_B, self.num_ranks))
        offsets = np.concatenate(([0], np.cumsum(count_SR.ravel())))
        first = np.arange(len(batches))[:, None] * self.num_ranks
        return ArmPlan(
            sequences=np.concatenate(sequences),
            offsets=offsets[first + np.arange(self.num_ranks + 1)],
            predicted_straggler_share=straggler_share(loads),
            bound_straggler_share=bound_share([self.cost_W[b] for b in batches], self.num_ranks),
        )

    def ranks(self, placement: str, batch: Ints, step: int) -> Ints:
        """The rank of each window of one batch; shape (B,). Raises PlanError as make_plan does."""
        place = PLACEMENT_FUNCTIONS[placement]
        cost_B = self.cost_W[batch]
        rng = np.random.default_rng([self.seed, _RANDOM_PLACEMENT, step])
        if self.max_tokens is None:
            return place(cost_B, self.num_ranks, rng)
        return place_within_tokens(
            place, cost_B, self.token_W[batch], self.num_ranks, rng, max_tokens=self.max_tokens
        )


def write_plan(plan: Plan, directory: Path) -> None:
    """Write a plan into an existing empty folder; plan.json comes last."""
    np.save(directory / "epochs.npy", plan.epochs)
    write_windows(plan.windows, directory)
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
            windows=read_windows(directory),
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
