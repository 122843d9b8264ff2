"""One rank's batches, built ahead in a thread so that the step loop does not wait for them.

The plan's numbers are those of training windows (planning/windows.py): a window is a whole training
history, or a part of a giant's, whose first events may be context without a target. Its events keep
the positions they have in the history, which are those that evaluation asks for. Negatives and
dropout are drawn by window.

A plan may be replaced while the feed runs (`ArmPlans`), from a step on that no rank can have built
yet: `first_safe_step` gives it, the same on every rank that has taken as many batches.

Before: the plan says which windows; the store maps their events.   After: training/pipeline/.
Price: `depth` batches of host memory; order is kept, so a run is repeatable.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from analytics.errors import IdError, PlanError
from analytics.store import SequenceStore
from training.config import RunConfig
from training.jagged import JaggedBatch, moved
from training.planning.plan import ArmPlan, WindowIds
from training.planning.windows import Windows
from training.randomness import dropout_keep, negatives

Ids = npt.NDArray[np.int64]
DEPTH = 3  # batches built ahead


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankBatch:
    """What one rank needs for one step."""

    step: int
    row_ids_U: Tensor  # int64, distinct item ids, ascending
    batch: JaggedBatch
    num_targets: int  # on this rank
    global_targets: int  # over all ranks: what every gradient is divided by

    @property
    def row_ids(self) -> tuple[Tensor, ...]:
        """The distinct ids of each table; there is one."""
        return (self.row_ids_U,)

    def to(self, device: torch.device) -> RankBatch:
        """The batch with its tensors on `device`; itself when they are there already."""
        if self.row_ids_U.device == device:
            return self
        return dataclasses.replace(
            self, row_ids_U=moved(self.row_ids_U, device), batch=self.batch.to(device)
        )


class BatchBuilder:
    """Builds the batch of one rank and step from plan and store; pure but for reading the store.

    windows: the plan's.
    Raises PlanError when the windows are not of this store and max_length.
    """

    def __init__(self, store: SequenceStore, config: RunConfig, windows: Windows) -> None:
        self._store = store
        self._model = config.model
        self._train = config.train
        self._num_sites = 1 + 2 * config.model.num_blocks
        self._trained_length_N = np.minimum(
            store.training_lengths(), config.model.max_trained_events
        )
        self._check(windows)
        self._windows = windows
        self._num_targets_W = windows.num_targets
        self.lengths_W = windows.lengths  # events of each window, the last target included

    def num_targets(self, windows: WindowIds) -> int:
        """Positions with a next item to train on over these windows."""
        return int(self._num_targets_W[windows].sum())

    def build(self, *, step: int, epoch: int, arm: ArmPlan, rank: int) -> RankBatch:
        """The batch of one rank in one step; a rank may hold no window at all."""
        mine = self._with_targets(arm.of_rank(step, rank))
        events = [self._events(window) for window in mine]
        drawn = [self._negatives(epoch, window) for window in mine]
        num_targets = tuple(int(self._num_targets_W[window]) for window in mine)
        begins = tuple(int(self._windows.begin[window]) for window in mine)
        inputs = _concatenated([e[:-1] for e in events])
        targets = _concatenated([e[len(e) - n :] for e, n in zip(events, num_targets, strict=True)])
        negatives_K = _concatenated(drawn)
        row_ids, place = np.unique(
            np.concatenate([inputs, targets, negatives_K]), return_inverse=True
        )
        self._check_ids(row_ids, step)
        place_T = torch.from_numpy(place.astype(np.int64))
        parts = torch.split(place_T, [len(inputs), len(targets), len(negatives_K)])
        lengths = tuple(len(e) - 1 for e in events)
        return RankBatch(
            step=step,
            row_ids_U=torch.from_numpy(row_ids),
            batch=JaggedBatch(
                lengths=lengths,
                inputs_N=parts[0],
                targets_N=parts[1],
                negatives_BK=parts[2].view(len(mine), self._train.num_negatives),
                keep_SND=self._keep(epoch, mine, lengths),
                num_targets=None if num_targets == lengths else num_targets,
                begins=begins if any(begins) else None,
            ),
            num_targets=len(targets),
            global_targets=self.num_targets(arm.of_step(step)),
        )

    def row_ids(self, *, step: int, epoch: int, arm: ArmPlan, rank: int) -> Ids:
        """Distinct rows that one rank needs in one step, without building its batch; ascending."""
        mine = self._with_targets(arm.of_rank(step, rank))
        parts = [self._events(window) for window in mine]
        return np.unique(_concatenated(parts + [self._negatives(epoch, w) for w in mine]))

    def _check(self, windows: Windows) -> None:
        """Raise PlanError unless the windows end where the training histories do."""
        end_N = np.zeros(len(self._trained_length_N), dtype=np.int64)
        if windows.num_sequences == len(end_N):
            np.maximum.at(end_N, windows.sequence, windows.end)
        if windows.num_sequences != len(end_N) or (end_N != self._trained_length_N).any():
            raise PlanError(
                f"The plan deals {windows.num_sequences} sequences of {int(end_N.sum()):,} events, "
                f"the store has {len(end_N)} of {int(self._trained_length_N.sum()):,} to train on. "
                "The plan was made for another store or max_length; delete its folder and run "
                "'seqscale run' again."
            )

    def _check_ids(self, row_ids: Ids, step: int) -> None:
        """Raise IdError when the store holds an item that its own header does not know."""
        num_items = self._store.header.num_items
        if len(row_ids) and not 0 <= row_ids[0] <= row_ids[-1] < num_items:
            outside = row_ids[0] if row_ids[0] < 0 else row_ids[-1]
            raise IdError(
                f"batch of step {step}, column 'item_index', table 'item': id {outside} is "
                f"outside; the store's header says {num_items:,} items, ids 0 to {num_items - 1}. "
                "The store is damaged: prepare it again."
            )

    def _with_targets(self, windows: WindowIds) -> list[int]:
        """Those of the windows that have at least one position to train on."""
        return [int(window) for window in windows if self._num_targets_W[window] > 0]

    def _events(self, window: int) -> Ids:
        """Events of a window with a target; inputs are all but the last, targets the newest."""
        sequence = int(self._windows.sequence[window])
        longest = int(self._trained_length_N[sequence])
        trained = self._store.training_items(sequence)[-longest:]
        part = slice(int(self._windows.begin[window]), int(self._windows.end[window]))
        return trained[part].astype(np.int64)

    def _negatives(self, epoch: int, window: int) -> Ids:
        return negatives(
            seed=self._train.seed,
            epoch=epoch,
            sequence=window,
            num_items=self._store.header.num_items,
            count=self._train.num_negatives,
        )

    def _keep(self, epoch: int, mine: list[int], lengths: tuple[int, ...]) -> Tensor | None:
        if self._model.dropout == 0 or not mine:
            return None
        keep = [
            dropout_keep(
                seed=self._train.seed,
                epoch=epoch,
                sequence=window,
                num_sites=self._num_sites,
                length=length,
                width=self._model.embedding_dim,
                share=self._model.dropout,
            )
            for window, length in zip(mine, lengths, strict=True)
        ]
        return torch.from_numpy(np.concatenate(keep, axis=1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """One batch to build: which arm's plan, which step."""

    arm: str
    step: int


class ArmPlans:
    """Every arm's plan, replaceable from a step on while a feed reads it; safe between threads.

    The steps before a replacement keep the plan they had.
    """

    def __init__(self, plans: Mapping[str, ArmPlan]) -> None:
        self._lock = threading.Lock()
        # of each arm, the plans by the first step they hold for, ascending
        self._plans = {name: [(0, plan)] for name, plan in plans.items()}
        self._last_built = dict.fromkeys(plans, -1)

    def at(self, arm: str, step: int) -> ArmPlan:
        """The plan that holds for a step."""
        with self._lock:
            return self._at(arm, step)

    def take(self, arm: str, step: int) -> ArmPlan:
        """The plan to build a step from; the step can no longer be replaced."""
        with self._lock:
            self._last_built[arm] = max(self._last_built[arm], step)
            return self._at(arm, step)

    def replace(self, arm: str, new_plan: ArmPlan, from_step: int) -> None:
        """Let `new_plan` hold from a step on; every rank gives the same plan and step.

        Raises PlanError when the step was built already, or the plan has other batches there.
        """
        with self._lock:
            built = self._last_built[arm]
            if from_step <= built:
                raise PlanError(
                    f"Arm {arm}: step {built} is built already, so its plan cannot change from "
                    f"step {from_step} on. Take the step that first_safe_step gives."
                )
            old_S, new_S = (
                plan.offsets[from_step:, [0, -1]] for plan in (self._at(arm, from_step), new_plan)
            )
            if not np.array_equal(old_S, new_S):
                raise PlanError(
                    f"Arm {arm}: the new plan has other global batches from step {from_step} on. "
                    "Make it with replan from the arm's own plan."
                )
            kept = [entry for entry in self._plans[arm] if entry[0] < from_step]
            self._plans[arm] = [*kept, (from_step, new_plan)]

    def _at(self, arm: str, step: int) -> ArmPlan:
        return next(plan for first, plan in reversed(self._plans[arm]) if first <= step)


def first_safe_step(
    orders: Sequence[Order], arm: str, num_taken: int, *, depth: int = DEPTH
) -> int | None:
    """The first step of an arm that cannot have been built when `num_taken` batches were taken.

    The feed holds up to `depth` batches ready and has one more in hands, so of `orders` the first
    num_taken + depth + 1 may be built. None when no step of the arm is left. Depends on the loop's
    place alone, so ranks that ask at the same place get the same step, however far their feeds are.
    """
    for order in orders[num_taken + depth + 1 :]:
        if order.arm == arm:
            return order.step
    return None


def feed(
    builder: BatchBuilder,
    arms: Mapping[str, ArmPlan] | ArmPlans,
    epochs: Ids,
    orders: Sequence[Order],
    *,
    rank: int,
    depth: int = DEPTH,
) -> Iterator[RankBatch]:
    """Yield the batches of `orders`, in order, built up to `depth` ahead by one thread.

    An error of the thread is raised in the loop that reads, at the batch it belongs to.
    arms: ArmPlans when a plan may be replaced meanwhile; an arm's steps must ascend then.
    """
    plans = arms if isinstance(arms, ArmPlans) else ArmPlans(arms)
    ready: queue.Queue[RankBatch | BaseException] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: RankBatch | BaseException) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for order in orders:
                if stop.is_set():
                    return
                epoch = int(epochs[order.step])
                arm = plans.take(order.arm, order.step)
                put(builder.build(step=order.step, epoch=epoch, arm=arm, rank=rank))
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name="feed", daemon=True)
    thread.start()
    try:
        for _ in orders:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join(timeout=10)


def _concatenated(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
