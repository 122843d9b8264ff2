"""Makes a schedule by name, and picks one by trying all on a run's own first steps.

All schedules are exact: they can take turns within one run without changing a bit of what is
trained. So `auto` costs nothing but the time that slower ones take: schedules run a few steps each,
in turns, round after round; the slowest rank's time counts, for equal work (standings.py). What
has clearly lost is left out of the next round. The run goes on with the fastest; a schedule that is
more involved must win by more than the noise of the trial.

Before: the trainer's steps.   After: the run's further steps; what was tried goes to the journal.
"""

from __future__ import annotations

import dataclasses
import time

import torch

from analytics.errors import ConfigError
from training.config import SCHEDULES, schedule_refusal
from training.embeddings.exchange import Exchange
from training.pipeline.dense import DenseSide
from training.pipeline.lanes import Lanes
from training.pipeline.prioritised import Prioritised
from training.pipeline.split import SplitBackward, SplitRefusedError
from training.pipeline.standings import (
    WORTHWHILE_SHARE,
    Standing,
    fastest,
    standings,
    still_open,
)
from training.pipeline.step import Schedule, StepResult
from training.pipeline.synchronous import IdsAhead, Synchronous, WholeGradient
from training.pipeline.workload import Batch
from training.recorder import StepRecorder

CANDIDATES = tuple(name for name in SCHEDULES if name != "auto")
_STEPS_A_TURN = 4  # the first of each turn is not timed: nothing was fetched ahead for it
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """How one schedule did."""

    schedule: str
    num_steps: int
    step_s: float | None  # the slowest rank's, median for equal work; None when refused
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
        self._open = list(self._names)  # not beaten yet
        self._turns = list(self._names)  # still to come in this round
        self._num_rounds = 0
        self._num_steps = 0
        self._steps_left = 0  # of the turn
        self._timed: dict[str, list[tuple[int, int]]] = {name: [] for name in self._names}
        self._current: Schedule = self._schedules[self._names[0]]
        self.trials: list[Trial] = []  # told once the choice is made
        self.decided_at: int | None = None

    @property
    def chosen(self) -> str | None:
        """The schedule the run goes on with; None while they are tried."""
        return None if self.decided_at is None else self._current.name

    def step(self, batch: Batch, following: Batch | None) -> StepResult:
        """One step under the schedule whose turn it is."""
        if self.decided_at is None and self._steps_left == 0:
            self._change()
        is_timed = self.decided_at is None and self._steps_left < _STEPS_A_TURN
        begin = time.monotonic_ns()
        try:
            result = self._current.step(batch, following)
        except SplitRefusedError as error:  # the same on every rank
            result = self._without(self._current.name, str(error), batch, following)
            is_timed = False
        if is_timed:
            took_ns = time.monotonic_ns() - begin
            self._timed[self._current.name].append((took_ns, batch.global_targets))
        self._num_steps += 1
        self._steps_left -= 1
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
        for names in (self._names, self._open):
            names.remove(name)
        self._current = self._schedules[self._names[0]]
        return self._current.step(batch, following)

    def _change(self) -> None:
        """The next schedule's turn, the next round, or the decision."""
        self._current.settle()
        self._current.forget()
        if not self._turns:
            self._num_rounds += 1
            if self._num_rounds >= _LEAST_ROUNDS:
                found = self._standings()
                self._open = [name for name in self._open if name in still_open(found)]
                if len(self._open) == 1 or self._num_rounds == _MOST_ROUNDS:
                    self._decide(found)
                    return
            self._turns = list(self._open)
        self._current = self._schedules[self._turns.pop(0)]
        self._steps_left = _STEPS_A_TURN

    def _decide(self, found: dict[str, Standing]) -> None:
        best = fastest(found)
        self._current = self._schedules[best]
        self.decided_at = self._num_steps
        self.trials = [
            Trial(
                schedule=name,
                num_steps=standing.num_steps,
                step_s=standing.step_s,
                is_chosen=name == best,
                reason=_reason(name, best, found) + self._price(name),
            )
            for name, standing in found.items()
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

    def _standings(self) -> dict[str, Standing]:
        """How the schedules did, by the slowest rank's times. A collective."""
        transport = self._lanes.urgent.transport
        mine = torch.tensor(
            [took_ns for name in self._names for took_ns, _ in self._timed[name]],
            dtype=torch.int64,
        )
        slowest = transport.all_gather(mine.to(transport.device)).cpu().max(dim=0).values.tolist()
        left = iter(slowest)
        return standings(
            {
                name: [(next(left) / 1e9, work) for _, work in self._timed[name]]
                for name in self._names
            }
        )


def _reason(name: str, best: str, found: dict[str, Standing]) -> str:
    """Why a schedule was taken, or not."""
    own, of_best = found[name], found[best]
    ratio = own.step_s / of_best.step_s
    if name == best:
        others = [f"{n} {s.step_s * 1e3:.1f} ms" for n, s in found.items() if n != best]
        return (
            f"taken, with an error of {own.error_share:.1%}, against "
            f"{', '.join(others) or 'none'}, for equal work"
        )
    if ratio < 1:
        least = max(WORTHWHILE_SHARE, own.error_share)
        return f"faster than {best} by {1 - ratio:.1%}, within the trial's noise of {least:.1%}"
    return f"{ratio:.2f} times the step of {best}"
