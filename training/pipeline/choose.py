"""Makes a schedule by name, and picks one by trying all on a run's own first steps.

All schedules are exact: they can take turns within one run without changing a bit of what is
trained. So `auto` costs nothing but the time that slower ones take: each schedule runs a few steps,
in turns, the slowest rank's time counts, and the run goes on with the fastest. A schedule that is
more involved must win by more than the noise of the trial.

Before: the trainer's steps.   After: the run's further steps; what was tried goes to the journal.
"""

from __future__ import annotations

import dataclasses
import statistics
import time

import torch

from analytics.errors import ConfigError
from training.config import SCHEDULES, schedule_refusal
from training.embeddings.exchange import Exchange
from training.pipeline.dense import DenseSide
from training.pipeline.lanes import Lanes
from training.pipeline.prioritised import Prioritised
from training.pipeline.split import SplitBackward, SplitRefusedError
from training.pipeline.step import Schedule, StepResult
from training.pipeline.synchronous import IdsAhead, Synchronous, WholeGradient
from training.pipeline.workload import Batch
from training.recorder import StepRecorder

CANDIDATES = tuple(name for name in SCHEDULES if name != "auto")
_STEPS_A_TURN = 4  # the first of each turn is not timed: nothing was fetched ahead for it
_TURNS = 2
_WORTHWHILE = 0.02  # a more involved schedule must be faster by this share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """How one schedule did."""

    schedule: str
    num_steps: int
    step_s: float | None  # median over steps of the slowest rank's time; None when refused
    is_chosen: bool
    reason: str


def refusal(name: str, whole: WholeGradient) -> str | None:
    """Why a schedule cannot do what is asked of the gradient; None when it can."""
    return schedule_refusal(name, needs_whole_gradient=whole.is_asked)


def make_schedule(
    name: str,
    exchange: Exchange,
    dense: DenseSide,
    lanes: Lanes,
    recorder: StepRecorder,
    whole: WholeGradient = WholeGradient(),  # noqa: B008  (frozen)
) -> Schedule:
    """The schedule called `name`.

    Raises ConfigError for an unknown name, or when it cannot do what `whole` asks.
    """
    reason = refusal(name, whole)
    if reason is not None:
        raise ConfigError(reason)
    parts = (exchange, dense, lanes, recorder)
    if name == "synchronous":
        return Synchronous(*parts, whole)
    if name == "ids_ahead":
        return IdsAhead(*parts, whole)
    if name == "prioritised":
        return Prioritised(*parts)
    if name == "split":
        return SplitBackward(*parts)
    if name == "auto":
        return AutoSchedule(*parts, whole)
    raise ConfigError(f"schedule is {name!r}; known are {', '.join(SCHEDULES)}.")


class AutoSchedule(Schedule):
    """Tries every schedule that can be used, then goes on with the fastest."""

    name = "auto"

    def __init__(
        self,
        exchange: Exchange,
        dense: DenseSide,
        lanes: Lanes,
        recorder: StepRecorder,
        whole: WholeGradient = WholeGradient(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__(exchange, dense, lanes, recorder)
        self._refused = {n: r for n in CANDIDATES if (r := refusal(n, whole)) is not None}
        self._names = [name for name in CANDIDATES if name not in self._refused]
        self._schedules = {
            name: make_schedule(name, exchange, dense, lanes, recorder, whole)
            for name in self._names
        }
        self._turns = self._names * _TURNS
        self._num_steps = 0
        self._times_ns: dict[str, list[int]] = {name: [] for name in self._names}
        self._current: Schedule = self._schedules[self._names[0]]
        self.trials: list[Trial] = []  # told once the choice is made
        self.decided_at: int | None = None

    @property
    def chosen(self) -> str | None:
        """The schedule the run goes on with; None while they are tried."""
        return None if self.decided_at is None else self._current.name

    def step(self, batch: Batch, following: Batch | None) -> StepResult:
        """One step under the schedule whose turn it is."""
        turn, within = divmod(self._num_steps, _STEPS_A_TURN)
        if self.decided_at is None and within == 0:
            self._change(turn)
        begin = time.monotonic_ns()
        try:
            result = self._current.step(batch, following)
        except SplitRefusedError as error:  # the same on every rank
            result = self._without(self._current.name, str(error), batch, following)
        if self.decided_at is None and within > 0:
            self._times_ns[self._current.name].append(time.monotonic_ns() - begin)
        self._num_steps += 1
        return result

    def settle(self) -> None:
        """Finish what the schedule at work has deferred."""
        self._current.settle()

    def forget(self) -> None:
        """Drop what was fetched ahead."""
        self._current.forget()

    def close(self) -> None:
        """Take the hooks of all schedules off the model."""
        for schedule in self._schedules.values():
            schedule.close()

    def _without(self, name: str, reason: str, batch: Batch, following: Batch | None) -> StepResult:
        """Go on without a schedule that turned out not to fit the model; on all ranks alike."""
        refused = self._schedules.pop(name)
        refused.settle()
        refused.forget()
        refused.close()
        self._refused[name] = reason
        self._names.remove(name)
        self._current = self._schedules[self._names[0]]
        return self._current.step(batch, following)

    def _change(self, turn: int) -> None:
        """The next schedule's turn, or the decision after the last one."""
        self._current.settle()
        self._current.forget()
        if turn < len(self._turns):
            name = self._turns[turn]
            self._current = self._schedules.get(name, self._schedules[self._names[0]])
        else:
            self._decide()

    def _decide(self) -> None:
        medians = self._slowest_rank_s()
        best = self._names[0]
        for name in self._names[1:]:
            if medians[name] < medians[best] * (1 - _WORTHWHILE):
                best = name
        self._current = self._schedules[best]
        self.decided_at = self._num_steps
        self.trials = [
            Trial(
                schedule=name,
                num_steps=len(self._times_ns[name]),
                step_s=medians[name],
                is_chosen=name == best,
                reason=_reason(name, best, medians) + self._price(name),
            )
            for name in self._names
        ] + [
            Trial(schedule=name, num_steps=0, step_s=None, is_chosen=False, reason=reason)
            for name, reason in self._refused.items()
        ]

    def _price(self, name: str) -> str:
        """What the split backward pass has to work with, and what it holds."""
        schedule = self._schedules[name]
        if not isinstance(schedule, SplitBackward):
            return ""
        return (
            f"; its weight gradients, under which the colliding rows travel, are "
            f"{schedule.weights_share:.0%} of the compute and hold "
            f"{schedule.held_bytes / 2**20:.1f} MiB meanwhile"
        )

    def _slowest_rank_s(self) -> dict[str, float]:
        """Median over a schedule's steps of the slowest rank's time. A collective."""
        transport = self._lanes.urgent.transport
        mine = torch.tensor(
            [t for name in self._names for t in self._times_ns[name]], dtype=torch.int64
        )
        slowest = transport.all_gather(mine.to(transport.device)).cpu().max(dim=0).values.tolist()
        medians, start = {}, 0
        for name in self._names:
            end = start + len(self._times_ns[name])
            medians[name] = statistics.median(slowest[start:end]) / 1e9
            start = end
        return medians


def _reason(name: str, best: str, medians: dict[str, float]) -> str:
    ratio = medians[name] / medians[best]
    if name == best:
        others = [f"{other} {s * 1e3:.1f} ms" for other, s in medians.items() if other != best]
        return f"taken: {medians[best] * 1e3:.1f} ms a step, against {', '.join(others)}"
    if ratio < 1:
        return f"faster than {best} by less than {_WORTHWHILE:.0%}, which is noise"
    return f"{ratio:.2f} times the step of {best}"
