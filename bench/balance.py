"""What each placement leaves to the slowest rank: public length laws by cost model, and two ranks.

    .venv/bin/python bench/balance.py
    .venv/bin/python bench/balance.py --json > balance.json

By cost model: ten draws of four global batches (of MovieLens ten epochs); an epoch's last batch is
left out where it is short, since four batches would give it more weight than a run does. Share lost
= 1 - sum of mean loads / sum of largest loads of a draw; shown are mean and standard deviation over
the draws. All placements get the same batches; then longest first with free counts once more with
giants cut, with look-ahead over 4 batches, and with both, which change the batches. NVIDIA's
balancer keeps equal counts; once it is given the cost that it is judged by, once its own published
formula. "bound" is the least of any placement of whole sequences in the batches as drawn.
Measured: forward and backward of the model on two gloo ranks (two_ranks.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

import numpy as np
from length_laws import (
    COSTS,
    LAWS,
    Law,
    NoDataError,
    equal_count_karmarkar_karp,
    nvidia_cost,
)
from planning import COMBINATIONS
from two_ranks import MeasuredArm, measure

from training.config import PLACEMENTS, ArmConfig
from training.planning.balance import bound_share, load_of_ranks, straggler_share
from training.planning.cost import CostModel
from training.planning.plan import Plan, make_plan

NVIDIA = {
    "Karmarkar-Karp, equal counts (NVIDIA)": None,
    "the same, placed by NVIDIA's cost formula": nvidia_cost,
}
BALANCED = ArmConfig(name="lpt_free", placement="lpt_free", schedule="synchronous")
ARMS = tuple(ArmConfig(name=n, placement=n, schedule="synchronous") for n in PLACEMENTS)
Row = dict[str, Any]


def shares_of_draw(law: Law, cost: CostModel, seed: int) -> dict[str, float]:
    """Share lost of every placement in one draw, and the bound."""
    rng = np.random.default_rng([seed, law.num_ranks])
    batch = law.num_ranks * law.per_rank
    lengths = law.draw(rng, batch)

    def plan(arms: tuple[ArmConfig, ...], **chosen: Any) -> Plan:
        return make_plan(
            lengths, cost, arms, num_ranks=law.num_ranks, batch_sequences=batch, num_epochs=1,
            seed=seed, **chosen,
        )  # fmt: skip

    def share_of(made: Plan, placement: str) -> float | None:
        cost_W, arm = cost.sequence_cost_s(made.windows.lengths), made.arms[placement]
        return straggler_share(
            [
                [cost_W[arm.of_rank(step, rank)].sum() for rank in range(law.num_ranks)]
                for step in range(made.num_steps)
                if len(arm.of_step(step)) == batch
            ]
        )

    whole = plan(ARMS)
    shares = {name: share_of(whole, name) for name in whole.arms}
    cost_W = cost.sequence_cost_s(whole.windows.lengths)
    steps = [whole.arms["lpt_free"].of_step(step) for step in range(whole.num_steps)]
    full = [np.sort(mine) for mine in steps if len(mine) == batch]
    for name, formula in NVIDIA.items():
        told_W = cost_W if formula is None else formula(whole.windows.lengths)
        ranks = [equal_count_karmarkar_karp(told_W[mine], law.num_ranks) for mine in full]
        shares[name] = straggler_share(
            [load_of_ranks(cost_W[b], r, law.num_ranks) for b, r in zip(full, ranks, strict=True)]
        )
    for words, chosen in COMBINATIONS.items():
        if chosen:  # else it is the plan above
            shares[f"lpt_free, {words}"] = share_of(plan((BALANCED,), **chosen), "lpt_free")
    shares["bound"] = bound_share([cost_W[mine] for mine in full], law.num_ranks)
    assert None not in shares.values()  # two ranks or more
    return {name: float(share or 0.0) for name, share in shares.items()}


def rows_by_cost(law: Law, cost_name: str, num_draws: int, seed: int) -> list[Row]:
    """One row a placement; a single one with the reason where the data are missing."""
    shape = {"law": law.name, "ranks": law.num_ranks, "per_rank": law.per_rank, "cost": cost_name}
    try:
        draws = [shares_of_draw(law, COSTS[cost_name], seed + n) for n in range(num_draws)]
    except NoDataError as error:
        return [shape | {"placement": None, "skipped": str(error)}]
    bound = statistics.mean(draw["bound"] for draw in draws)
    return [
        shape
        | {
            "placement": name,
            "straggler_share": statistics.mean(draw[name] for draw in draws),
            "straggler_share_deviation": statistics.stdev(draw[name] for draw in draws)
            if num_draws > 1
            else None,
            "bound": bound,
            "num_draws": num_draws,
        }
        for name in draws[0]
    ]


def _share(row: Row) -> str:
    deviation = row["straggler_share_deviation"]  # None for a single draw
    return f"{row['straggler_share']:.2%}" + ("" if deviation is None else f" ± {deviation:.2%}")


def table_by_cost(rows: list[Row]) -> list[str]:
    """Laws across, placements down, for one cost model."""
    laws = list(dict.fromkeys((r["law"], r["ranks"], r["per_rank"]) for r in rows))
    shown = {(r["law"], r["ranks"], r["placement"]): r for r in rows if r["placement"]}
    names = list(dict.fromkeys(r["placement"] for r in rows if r["placement"]))
    kept = [law for law in laws if any(key[:2] == law[:2] for key in shown)]
    lines = [
        "| placement | " + " | ".join(f"{name}, {r} x {b}" for name, r, b in kept) + " |",
        "|---|" + "---:|" * len(kept),
    ]
    for name in names:
        found = [shown[law[0], law[1], name] for law in kept]
        cells = [_share(row) for row in found]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [f"Skipped {r['law']}: {r['skipped']}." for r in rows if "skipped" in r]
    return lines


def table_measured(arms: list[MeasuredArm]) -> list[str]:
    """One row an arm: predicted and measured, in CPU time and by the clock."""
    lines = [
        "| two gloo ranks, real model | predicted | lost, CPU time | lost, wall time "
        "| straggler wait a step | step |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {arm.name} | {arm.predicted_share:.1%} | {arm.cpu_share:.1%} ({arm.cpu_range}) "
        f"| {arm.wall_share:.1%} ({arm.wall_range}) | {1e3 * arm.wait_s:.1f} ms "
        f"| {1e3 * arm.step_s:.1f} ms |"
        for arm in arms
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5, help="of the measured part; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    load_before = os.getloadavg()[0]
    by_cost = {
        name: [row for law in LAWS for row in rows_by_cost(law, name, given.draws, given.seed)]
        for name in COSTS
    }
    measured, fit = measure(given.repeats, given.seed) if given.repeats else ([], None)
    if given.json:
        rows = [row for rows in by_cost.values() for row in rows]
        rows += [arm.as_row() for arm in measured]
        print(json.dumps({"rows": rows, "load_before": load_before}, indent=2))
        return 0
    for name, rows in by_cost.items():
        print(f"Share of rank time lost to the slowest rank by cost model, cost {name}\n")
        print("\n".join(table_by_cost(rows)) + "\n")
    if measured and fit is not None:
        print("\n".join(table_measured(measured)))
        print(
            f"\nRefit: {fit.num_measured} rows, {fit.num_left_out} left out, residual "
            f"{fit.residual_ratio:.1%}; {fit.reason}. Load before: {load_before:.1f}."
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
