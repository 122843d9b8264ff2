"""Refits the cost model from measured step times, and says whether the new one is worth taking.

A calibration times the model alone; the steps of a run tell what sequences really cost there. Every
rank's steps are rows: what it held, and its own time before the collective. Machines are noisy, so
the rows that fit worst are left out of the fit. A new model is taken only when it tells times of
steps it has not seen better than the old one does, and when placing by it lowers the predicted
straggler share of the coming batches. Steps that are all alike (a balanced arm's may be) cannot
tell what an event costs; then the old model stays.

Least trimmed squares, then a cut at three robust standard deviations: Rousseeuw 1984.

Before: recorded steps of all ranks.   After: replan.py places the coming batches anew.
Price: about 15 ms for 1,000 rows. Ranks must agree to the bit: one rank fits and tells the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from training.planning.balance import Floats, Ranks, load_of_ranks, straggler_share
from training.planning.cost import CostModel, fit_cost_model

Ints = npt.NDArray[np.int64]
LEAST_ROWS = 16  # four coefficients, two halves, and something left to trim
_KEPT_SHARE = 0.75  # of the rows, in the trimmed fits
_TRIMMED_FITS = 5
_FARTHEST = 3.0  # robust standard deviations a kept row may lie from the fit
_MAD_TO_SIGMA = 1.4826
_LEAST_SCALE = 0.005  # of a step's time: no clock of a shared machine is better
_LEAST_COST_SHARE = 0.05  # of the measured time that must depend on what a rank holds
_LEAST_GAIN = 0.001  # of straggler share; less is not worth another placement


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """One row a rank and step, in the order of steps; arrays of shape (S,)."""

    num_sequences: Ints
    sum_lengths: Ints  # [events]
    sum_squares: Ints  # of the lengths
    step_s: Floats  # the rank's own time before it waits for others [s]

    def __len__(self) -> int:
        return len(self.step_s)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> MeasuredSteps:
        """Some of the rows, in their order; chosen: shape (S,)."""
        return MeasuredSteps(
            **{f.name: getattr(self, f.name)[chosen] for f in dataclasses.fields(self)}
        )

    def predicted_s(self, cost: CostModel) -> Floats:
        """What the model says each row takes, t_step included [s]; shape (S,)."""
        held = cost.c0_s * self.num_sequences + cost.a_s * self.sum_lengths
        predicted: Floats = cost.t_step_s + held + cost.b_s * self.sum_squares
        return predicted


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedBatches:
    """Coming global batches: the lengths in each, and where they lie now and would lie anew."""

    lengths: Sequence[Ints]  # of each batch, shape (B,) [events]
    rank_before: Sequence[Ranks]  # of each sequence, shape (B,)
    rank_after: Sequence[Ranks]  # placed by the new model

    def shares(self, cost: CostModel, num_ranks: int) -> tuple[float | None, float | None]:
        """(straggler share as placed now, as placed anew) by a cost model; None for one rank."""
        costs = [cost.sequence_cost_s(length_B) for length_B in self.lengths]
        before, after = (
            straggler_share(
                [
                    load_of_ranks(cost_B, rank_B, num_ranks)
                    for cost_B, rank_B in zip(costs, ranks, strict=True)
                ]
            )
            for ranks in (self.rank_before, self.rank_after)
        )
        return before, after


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostFit:
    """One refit: what was measured, what came out, and what was decided."""

    step: int  # the step after which it was made
    num_measured: int  # rows
    num_left_out: int  # rows too far from the fit
    cost: CostModel  # as fitted, also when it is not taken
    residual_ratio: float  # mean |measured - fitted| / mean measured, of the rows kept
    held_out_residual_ratio: float  # the same of rows that the fit has not seen
    old_residual_ratio: float  # of the old model on these, scaled to them
    old_share: float | None  # straggler share of the coming batches as placed, by the new model
    new_share: float | None  # as placed by the new model; None: nothing was placed
    taken: bool
    reason: str  # why it was taken or not, one sentence


def fit_robustly(
    measured: MeasuredSteps, *, source: str
) -> tuple[CostModel, npt.NDArray[np.bool_]]:
    """(cost model, which rows were kept, shape (S,)); the worst-fitting rows are left out.

    Raises ValueError for fewer than 16 rows or a time that is not positive.
    """
    if len(measured) < LEAST_ROWS:
        raise ValueError(
            f"{len(measured)} measured steps of all ranks are too few to refit the cost model; "
            f"wait for {LEAST_ROWS}."
        )
    num_kept = int(np.ceil(_KEPT_SHARE * len(measured)))
    cost = _fit(measured, source)
    for _ in range(_TRIMMED_FITS):
        miss_S = _misses(measured, cost)
        kept_S = np.zeros(len(measured), dtype=np.bool_)
        kept_S[np.argsort(miss_S, kind="stable")[:num_kept]] = True
        cost = _fit(measured.rows(kept_S), source)
    miss_S = _misses(measured, cost)
    scale = max(_MAD_TO_SIGMA * float(np.median(miss_S)), _LEAST_SCALE)
    kept_S = miss_S <= _FARTHEST * scale
    return _fit(measured.rows(kept_S), source), kept_S


def fit_and_compare(
    measured: MeasuredSteps, old: CostModel, *, step: int, source: str | None = None
) -> CostFit:
    """Fit and judge by the measured rows alone; `taken` means: worth placing by.

    step: the one after which it is done. Raises ValueError as fit_robustly does.
    """
    cost, kept_S = fit_robustly(measured, source=source or f"refitted after step {step}")
    kept = measured.rows(kept_S)
    held_out, old_residual = _held_out_residuals(kept, old)
    mean_s = float(kept.step_s.mean())
    cost_share = 1.0 - cost.t_step_s / mean_s
    taken, reason = True, "the new model tells steps that it has not seen better than the old one"
    if cost_share < _LEAST_COST_SHARE:
        taken = False
        reason = (
            "the old model stays, for the measured steps take the same time whatever a rank "
            "holds and do not tell what an event costs"
        )
    elif held_out >= old_residual:
        taken = False
        reason = (
            f"the old model stays, for it tells steps that neither was fitted to no worse (off by "
            f"{old_residual:.1%}, the new one by {held_out:.1%})"
        )
    return CostFit(
        step=step,
        num_measured=len(measured),
        num_left_out=int((~kept_S).sum()),
        cost=cost,
        residual_ratio=cost.residual_share,
        held_out_residual_ratio=held_out,
        old_residual_ratio=old_residual,
        old_share=None,
        new_share=None,
        taken=taken,
        reason=reason,
    )


def decide(fit: CostFit, coming: PlacedBatches, num_ranks: int) -> CostFit:
    """The fit with its decision: taken when it lowers the predicted share of the coming batches.

    coming: placed as the plan has them, and by the new model. Both are judged by the new model.
    A fit that was not worth placing by stays so.
    """
    if not fit.taken:
        return fit
    before, after = coming.shares(fit.cost, num_ranks)
    if before is None or after is None:
        changes = (False, "the old model stays, for one rank waits for nobody")
    elif after > before - _LEAST_GAIN:
        changes = (
            False,
            f"the old model stays, for placing anew would still lose {after:.2%} to the slowest "
            f"rank, {before:.2%} are lost now",
        )
    else:
        changes = (
            True,
            f"the new model is taken: placing anew loses {after:.2%} to the slowest rank, "
            f"{before:.2%} were lost",
        )
    return dataclasses.replace(
        fit, old_share=before, new_share=after, taken=changes[0], reason=changes[1]
    )


def _fit(measured: MeasuredSteps, source: str) -> CostModel:
    return fit_cost_model(
        measured.num_sequences,
        measured.sum_lengths,
        measured.sum_squares,
        measured.step_s,
        source=source,
    )


def _misses(measured: MeasuredSteps, cost: CostModel) -> Floats:
    """How far the model is from each row, as a share of its measured time; shape (S,)."""
    miss_S: Floats = np.abs(measured.predicted_s(cost) - measured.step_s) / measured.step_s
    return miss_S


def _held_out_residuals(measured: MeasuredSteps, old: CostModel) -> tuple[float, float]:
    """(residual share of new fits, of the old model) on rows that neither has seen.

    Every other row is fitted, the rest judged, and the other way round. The old model may be of
    another host, so of it only t_step and one scale are fitted.
    """
    even_S = np.arange(len(measured)) % 2 == 0
    missed_new = missed_old = 0.0
    for seen_S in (even_S, ~even_S):
        seen, unseen = measured.rows(seen_S), measured.rows(~seen_S)
        fresh = _fit(seen, "half")
        scaled = _scaled(old, seen)
        missed_new += float(np.abs(unseen.predicted_s(fresh) - unseen.step_s).sum())
        missed_old += float(np.abs(unseen.predicted_s(scaled) - unseen.step_s).sum())
    total_s = float(measured.step_s.sum())
    return missed_new / total_s, missed_old / total_s


def _scaled(old: CostModel, measured: MeasuredSteps) -> CostModel:
    """The old model with t_step and one factor fitted to the rows."""
    held_S = measured.predicted_s(dataclasses.replace(old, t_step_s=0.0))
    zero_S = np.zeros_like(measured.step_s)
    line = fit_cost_model(zero_S, held_S, zero_S, measured.step_s, source=old.source)
    return dataclasses.replace(
        old,
        t_step_s=line.t_step_s,
        c0_s=line.a_s * old.c0_s,
        a_s=line.a_s * old.a_s,
        b_s=line.a_s * old.b_s,
    )
