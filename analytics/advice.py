"""What follows from a profile: cap, look-ahead window, cut giants, hot rows, each with its number.

An advice rests on the same batches, functions and seeds as the forecast it stands beside. Where the
evidence says that nothing is to be gained, that is said; without evidence there is no advice.

Before: forecasts.py's batches, batches.py's hot rows.   After: profile.py.
Price: a look-ahead advice places the drawn batches four times.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.forecasts import Setting, cut_lengths, drawn_lengths, lookahead_share
from analytics.group_size import rounded_up
from analytics.lengths import share
from training.planning.balance import bound_share
from training.planning.cost import CostModel
from training.planning.forecast import forecast_stragglers

Ints = npt.NDArray[np.int64]

AIM_SHARE = 0.01  # a straggler share below is not worth a measure
LOOKAHEAD_WINDOWS = (1, 2, 4, 8)
_HOT_ID_SHARE = 0.25  # hot rows are worth a copy when they are so much of a batch's ids
_HOT_FALL = 0.05  # and the collision share falls by so much


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """One recommendation with the numbers it rests on."""

    kind: str  # history_cap, lookahead_window, cut_giants or hot_rows
    is_needed: bool  # False: nothing to do, or nothing that helps
    recommendation: str
    number: float | None  # None where there is nothing to set
    unit: str  # of number
    measure: str  # which share it is to lower
    before_share: float
    after_share: float
    given_up_share: float | None  # of training events: lost by a cap, read twice by cuts
    num_ranks: int  # the setting that it is for
    sequences_per_rank: int
    evidence: dict[str, float]  # further numbers it rests on

    def plain(self) -> dict[str, Any]:
        """As plain values, with the expected effect: how far the share falls."""
        effect = self.before_share - self.after_share
        return dataclasses.asdict(self) | {"effect_share": max(0.0, effect)}


def advise(
    length_U: Ints,
    cost: CostModel,
    setting: Setting,
    hot: list[dict[str, Any]],
    *,
    row_bytes: int,
    min_group_users: int,
) -> list[Advice]:
    """Every advice that has evidence.

    length_U: events per user that are trained on, shape (num_users,); hot: batches.hot_rows.
    """
    found = [
        history_cap(length_U, cost, setting),
        lookahead_window(length_U, cost, setting),
        cut_giants(length_U, cost, setting, min_group_users=min_group_users),
        hot_rows_to_copy(hot, setting, row_bytes=row_bytes),
    ]
    return [advice for advice in found if advice is not None]


def history_cap(length_U: Ints, cost: CostModel, setting: Setting) -> Advice:
    """The longest cap of histories that brings the straggler bound below the aim.

    Caps tried are powers of two and half-way between them. Only whole sequences are thought of:
    the bound is what the best placement of these could reach.
    """
    lengths = drawn_lengths(length_U, setting)

    def bound(cap: int) -> float:
        costs = [cost.sequence_cost_s(length_B.clip(max=cap)) for length_B in lengths]
        share_lost = bound_share(costs, setting.num_ranks)
        assert share_lost is not None  # a setting has two ranks or more
        return share_lost

    top = rounded_up(int(length_U.max(initial=1)))
    before = bound(top)
    cap, after = top, before
    while after >= AIM_SHARE and cap > 2:
        cap = cap * 3 // 4 if cap.bit_count() == 1 else cap * 2 // 3  # 8, 6, 4, 3, 2
        after = bound(cap)
    lost = share(int(np.maximum(length_U - cap, 0).sum()), int(length_U.sum()))
    is_needed = before >= AIM_SHARE and after < AIM_SHARE
    if is_needed:
        words = (
            f"Cap histories at {cap:,} events: the bound of whole sequences falls from "
            f"{before:.1%} to {after:.1%}; {lost:.1%} of the training events are lost by it."
        )
    elif before < AIM_SHARE:
        words = f"Nothing to do: the bound of whole sequences is {before:.2%} without a cap."
    else:
        words = f"No cap of histories brings the bound of {before:.1%} below {AIM_SHARE:.0%}."
    return Advice(
        kind="history_cap",
        is_needed=is_needed,
        recommendation=words,
        number=float(cap) if is_needed else None,
        unit="events",
        measure="bound_share",
        before_share=before,
        after_share=after if is_needed else before,
        given_up_share=lost if is_needed else None,
        num_ranks=setting.num_ranks,
        sequences_per_rank=setting.sequences_per_rank,
        evidence={"num_batches": float(setting.num_batches)},
    )


def lookahead_window(length_U: Ints, cost: CostModel, setting: Setting) -> Advice:
    """The shortest look-ahead that brings the share of balanced placement below the aim."""
    costs = [cost.sequence_cost_s(length_B) for length_B in drawn_lengths(length_U, setting)]
    shares: dict[int, float] = {}
    for window in LOOKAHEAD_WINDOWS:
        shares[window] = lookahead_share(costs, setting, window=window)
        if shares[window] < AIM_SHARE:
            break
    before, (best, after) = shares[1], min(shares.items(), key=lambda entry: entry[1])
    is_needed = after < AIM_SHARE <= before
    if is_needed:
        words = (
            f"Look ahead over {best} batches: balanced by cost, the share lost falls from "
            f"{before:.1%} to {after:.2%}."
        )
    elif before < AIM_SHARE:
        words = f"Nothing to do: balanced by cost, {before:.2%} is lost without look-ahead."
    else:
        words = (
            f"None helps enough: with windows up to {max(shares)} batches at least {after:.1%} is "
            f"lost, {before:.1%} without."
        )
    return Advice(
        kind="lookahead_window",
        is_needed=is_needed,
        recommendation=words,
        number=float(best) if is_needed else None,
        unit="batches",
        measure="straggler_share",
        before_share=before,
        after_share=after if is_needed else before,
        given_up_share=None,
        num_ranks=setting.num_ranks,
        sequences_per_rank=setting.sequences_per_rank,
        evidence={f"share_over_{w}_batches": s for w, s in shares.items()},
    )


def cut_giants(
    length_U: Ints, cost: CostModel, setting: Setting, *, min_group_users: int
) -> Advice:
    """Cutting histories that cost more than a rank's share, instead of capping all.

    The number is the longest window left, rounded up to a power of two.
    """
    window_lengths, num_cut = cut_lengths(length_U, cost, setting)
    before = _balanced_share(length_U, cost, setting)
    after = before if num_cut == 0 else _balanced_share(window_lengths, cost, setting)
    again = share(int(window_lengths.sum() - length_U.sum()), int(length_U.sum()))
    longest = rounded_up(int(window_lengths.max(initial=0)))
    is_needed = num_cut > 0 and after < before and before >= AIM_SHARE
    how_many = f"{num_cut:,}" if num_cut >= min_group_users else f"fewer than {min_group_users}"
    if is_needed:
        words = (
            f"Instead of a cap, cut the histories that cost more than a rank's share ({how_many}) "
            f"into windows of at most {longest:,} events: balanced by cost, the share lost falls "
            f"from {before:.1%} to {after:.1%}; no event is lost, {again:.1%} are read again as "
            "context."
        )
    elif num_cut == 0:
        words = "Nothing to do: no history costs more than a rank's share of a mean batch."
    else:
        words = (
            f"Nothing to do: cutting the histories that cost more than a rank's share ({how_many}) "
            f"does not help; {before:.1%} is lost with them whole, {after:.1%} with them cut."
        )
    told = {"num_cut_users": float(num_cut)} if num_cut >= min_group_users else {}
    return Advice(
        kind="cut_giants",
        is_needed=is_needed,
        recommendation=words,
        number=float(longest) if is_needed else None,
        unit="events",
        measure="straggler_share",
        before_share=before,
        after_share=after if is_needed else before,
        given_up_share=again if is_needed else None,
        num_ranks=setting.num_ranks,
        sequences_per_rank=setting.sequences_per_rank,
        evidence=told,
    )


def hot_rows_to_copy(
    hot: list[dict[str, Any]], setting: Setting, *, row_bytes: int
) -> Advice | None:
    """The fewest of the hottest rows that are worth a copy on every rank.

    hot: batches.hot_rows; None when it is empty.
    """
    if not hot:
        return None
    good = [
        entry
        for entry in hot
        if entry["id_share"] >= _HOT_ID_SHARE
        and entry["collision_share"] - entry["collision_share_without"] >= _HOT_FALL
    ]
    chosen = good[0] if good else hot[-1]
    before, after = chosen["collision_share"], chosen["collision_share_without"]
    num_bytes = chosen["num_hot_rows"] * row_bytes
    num_hot = chosen["num_hot_rows"]
    rows = "the hottest row" if num_hot == 1 else f"the {num_hot:,} hottest rows"
    facts = (
        f"{rows} ({num_bytes / 2**20:,.1f} MiB a rank) made up {chosen['id_share']:.1%} of a "
        f"batch's ids, and without {'it' if num_hot == 1 else 'them'} the collision share is "
        f"{after:.1%} instead of {before:.1%}"
    )
    return Advice(
        kind="hot_rows",
        is_needed=bool(good),
        recommendation=f"Replicate on every rank: {facts}."
        if good
        else f"Nothing to do: {facts}. Worth a copy are rows with {_HOT_ID_SHARE:.0%} of the ids "
        f"that lower the share by {_HOT_FALL:.0%}.",
        number=float(chosen["num_hot_rows"]) if good else None,
        unit="rows",
        measure="collision_share",
        before_share=before,
        after_share=after if good else before,
        given_up_share=None,
        num_ranks=setting.num_ranks,
        sequences_per_rank=setting.sequences_per_rank,
        evidence={"id_share": float(chosen["id_share"]), "num_bytes": float(num_bytes)},
    )


def _balanced_share(length_U: Ints, cost: CostModel, setting: Setting) -> float:
    """The forecast's share for free-count placement at a setting."""
    rows = forecast_stragglers(
        length_U,
        cost,
        num_ranks=setting.num_ranks,
        sequences_per_rank=setting.sequences_per_rank,
        seed=setting.seed,
        num_batches=setting.num_batches,
        placements=("lpt_free",),
    )
    return rows[0].straggler_share
