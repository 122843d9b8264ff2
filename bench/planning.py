"""Times every placement of a global batch and tells what each leaves to the slowest rank.

    .venv/bin/python bench/planning.py
    .venv/bin/python bench/planning.py --shapes 64x512 --movielens ml-latest-small.zip

Lengths follow Zipf's law of exponent 1.2 in [1, 4096), cost is L + L^2 / 500. Placements take turns
on the same batches; times are medians, shares are over all batches (sum of means / sum of largest).
Prints Markdown: placements per shape; what cut giants and look-ahead add; the plan of an epoch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from length_laws import COST, Ints, movielens_lengths, zipf_lengths

from training.config import PLACEMENTS, ArmConfig
from training.planning.balance import bound_share, load_of_ranks, straggler_share
from training.planning.placement import PLACEMENT_FUNCTIONS
from training.planning.plan import make_plan

COMBINATIONS = {  # arguments of make_plan
    "whole sequences": {},
    "look-ahead over 4": {"lookahead_batches": 4},
    "giants cut": {"split_giants": True},
    "giants cut, look-ahead over 4": {"split_giants": True, "lookahead_batches": 4},
}
SHOWN = ("random_equal", "serpentine", "lpt_equal", "lpt_free", "karmarkar_karp")


def placements_table(shapes: list[tuple[int, int]], repeats: int, seed: int) -> list[str]:
    """One row a placement and shape: time of one global batch, and share lost beside the bound."""
    rows = [
        "| ranks x sequences | placement | time | lost | least possible |",
        "|---|---|---:|---:|---:|",
    ]
    for num_ranks, per_rank in shapes:
        rng = np.random.default_rng([seed, num_ranks])
        costs = [
            COST.sequence_cost_s(zipf_lengths(num_ranks * per_rank, rng)) for _ in range(repeats)
        ]
        times: dict[str, list[float]] = {name: [] for name in PLACEMENTS}
        loads: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in PLACEMENTS}
        for cost_N in costs:
            for name in PLACEMENTS:
                begin = time.perf_counter()
                rank_N = PLACEMENT_FUNCTIONS[name](cost_N, num_ranks, rng)
                times[name].append(time.perf_counter() - begin)
                loads[name].append(load_of_ranks(cost_N, rank_N, num_ranks))
        bound = bound_share(costs, num_ranks)
        rows += [
            f"| {num_ranks} x {per_rank} | {name} | {1e3 * statistics.median(times[name]):.2f} ms "
            f"| {straggler_share(loads[name]):.4%} | {bound:.4%} |"
            for name in PLACEMENTS
        ]
    return rows


def combinations_table(
    data: list[tuple[str, Ints, int, int]], num_epochs: int, seed: int
) -> list[str]:
    """Share lost over all epochs by placement, with and without cut giants and look-ahead."""
    rows = [
        "| lengths | batches | " + " | ".join(SHOWN) + " | least possible | events |",
        "|---|---|" + "---:|" * (len(SHOWN) + 2),
    ]
    arms = tuple(ArmConfig(name=n, placement=n, schedule="synchronous") for n in SHOWN)
    for label, length_N, num_ranks, per_rank in data:
        for words, chosen in COMBINATIONS.items():
            plan = make_plan(
                length_N, COST, arms, num_ranks=num_ranks, batch_sequences=num_ranks * per_rank,
                num_epochs=num_epochs, seed=seed, **chosen,
            )  # fmt: skip
            shares = [plan.arms[name].predicted_straggler_share for name in SHOWN]
            shares.append(plan.arms[SHOWN[0]].bound_straggler_share)
            cells = " | ".join(f"{share:.2%}" for share in shares)
            grown = plan.windows.lengths.sum() / length_N.sum() - 1
            rows.append(f"| {label}, {num_ranks} x {per_rank} | {words} | {cells} | {grown:+.1%} |")
    return rows


def epoch_table(num_sequences: int, num_ranks: int, per_rank: int, seed: int) -> list[str]:
    """Time of the plan of one epoch for one balanced arm."""
    length_N = zipf_lengths(num_sequences, np.random.default_rng(seed))
    arm = ArmConfig(name="balanced", placement="lpt_free", schedule="synchronous")
    rows = ["| plan of one epoch | time | lost |", "|---|---:|---:|"]
    for words, chosen in COMBINATIONS.items():
        begin = time.perf_counter()
        plan = make_plan(
            length_N, COST, (arm,), num_ranks=num_ranks, batch_sequences=num_ranks * per_rank,
            num_epochs=1, seed=seed, **chosen,
        )  # fmt: skip
        took_s = time.perf_counter() - begin
        share = plan.arms["balanced"].predicted_straggler_share
        rows.append(
            f"| {num_sequences:,} sequences, {num_ranks} x {per_rank}, {words} "
            f"| {took_s:.2f} s | {share:.4%} |"
        )
    return rows


def shape(text: str) -> tuple[int, int]:
    """'64x512' as ranks and sequences a rank."""
    num_ranks, _, per_rank = text.partition("x")
    return int(num_ranks), int(per_rank)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", type=shape, nargs="+", default=[(16, 32), (64, 512)])
    parser.add_argument("--repeats", type=int, default=9, help="global batches of each shape")
    parser.add_argument("--epochs", type=int, default=3, help="that the second table is over")
    parser.add_argument("--sequences", type=int, default=1_000_000, help="of the epoch's plan")
    parser.add_argument("--epoch-shape", type=shape, default=(256, 128))
    parser.add_argument("--movielens", type=Path, help="ml-latest-small.zip, when it is at hand")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    data = [("Zipf 1.2", zipf_lengths(20_000, np.random.default_rng(given.seed)), 16, 32)]
    if given.movielens:
        data.append(("MovieLens latest-small", movielens_lengths(given.movielens), 4, 16))
    tables = (
        placements_table(given.shapes, given.repeats, given.seed),
        combinations_table(data, given.epochs, given.seed),
        epoch_table(given.sequences, *given.epoch_shape, given.seed),
    )
    print("\n\n".join("\n".join(rows) for rows in tables))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
