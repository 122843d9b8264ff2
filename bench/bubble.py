"""Straggler seconds and exchange seconds end to end, one technique added at a time.

    python bench/bubble.py
    python bench/bubble.py --ranks 2 --network namespaces --model both --json bubble.json
    python bench/bubble.py --ranks 2 4 --link 100mbit --law movielens

    random + SparseDist     TorchRec's own pipeline (two namespaces only)
    random + ids_ahead      random placement, what SparseDist hides, on our transport
    + balance               longest first, free counts, giants cut, looking four batches ahead
    + prioritised           exclusive rows early, exclusive gradients late
    + split                 the colliding rows under the weight gradients

Emulated: each rank sleeps as long as its sequences cost by L + L^2/500, lengths by the law; all
arms read the same rows, so they must end alike to the bit. Real: SASRec on histories of such
lengths; placements share steps differently (giants are cut, batches dealt anew), so only arms of
one placement must end alike. Goal, emulated: 95 % fewer straggler seconds and 95 % fewer exchange
seconds than random + ids_ahead; none for the real model on two busy cores.

Straggler seconds are a rank's waits in collectives until the last rank was there, exchange seconds
the rest of its waits (docs/definitions.md); both are means over ranks and steps, with 95 %
intervals by bootstrap over blocks. Beside them the same imbalance without any clock of a wait: mean
over steps of the largest less the mean work of the ranks, in CPU seconds for the real model, in
busy seconds for the emulated one; and the CPU seconds of a rank's own work. TorchRec's waits cannot
be told apart: only its step is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the packages lie beside it

import numpy as np  # noqa: E402

from bench import sparsedist  # noqa: E402
from bench.arms_in_turn import TORCHREC, Arm, Spec, plan_of, run  # noqa: E402
from bench.figures import (  # noqa: E402
    counted,
    interval_of_mean,
    interval_of_removed,
    milliseconds,
    per_cent,
    removed_share,
)
from bench.length_laws import (  # noqa: E402
    COST,
    LATEST_SMALL,
    log_normal_lengths,
    movielens_lengths,
    zipf_lengths,
)
from bench.link import missing  # noqa: E402
from bench.overlap import chunk_bytes, write_rows  # noqa: E402

BASELINE = "random + ids_ahead"
ARMS = (
    Arm(name="random + SparseDist", schedule=TORCHREC, placement="random"),
    Arm(name=BASELINE, schedule="ids_ahead", placement="random"),
    Arm(name="+ balance", schedule="ids_ahead", placement="balanced"),
    Arm(name="+ prioritised", schedule="prioritised", placement="balanced"),
    Arm(name="+ split", schedule="split", placement="balanced"),
)
# half of the rows that overlap.py reads, so that four ranks' bytes fit under a short step's compute
LOAD = {"rows_per_rank": 640}
PER_RANK = {"emulated": 32, "real": 16}  # sequences of a rank in a step, on average
GOAL_SHARE = 0.95
REAL_LAW = {"median": 60.0, "longest": 800}  # log-normal; two cores have to compute it
Row = dict[str, Any]


def lengths_of(law: str, num_sequences: int, seed: int = 1) -> Any:
    """Events of each sequence by a law's name."""
    rng = np.random.default_rng([seed, num_sequences])
    if law == "zipf":
        return zipf_lengths(num_sequences, rng)
    path = Path(os.environ.get("SEQSCALE_TEST_DATA", "")) / LATEST_SMALL
    if not path.is_file():
        raise SystemExit(f"set SEQSCALE_TEST_DATA to the folder that holds {LATEST_SMALL}")
    return rng.choice(movielens_lengths(path), num_sequences)


def scale_of(placement: str, length_N: Any, num_ranks: int, batch: int, num_steps: int) -> Any:
    """Work of each step and rank over the mean of all; shape (steps, ranks)."""
    plan = plan_of(placement, length_N, num_ranks, batch)
    cost_W = COST.sequence_cost_s(plan.windows.lengths)
    arm = plan.arms[placement]
    assert plan.num_steps >= num_steps, "too few sequences were drawn"
    load_SR = np.array(
        [
            [cost_W[arm.of_rank(step, rank)].sum() for rank in range(num_ranks)]
            for step in range(num_steps)
        ]
    )
    return load_SR / load_SR.mean()


def rows_of(found: Sequence[dict[str, Any]], arms: Sequence[Arm], about: Row) -> list[Row]:
    """One row an arm from what the ranks found; the warm-up block is left out."""
    steps = [rank["steps"] for rank in found]

    def blocks(arm: str, key: str) -> list[float]:
        """Of each block the mean over its counted steps and all ranks."""
        return [
            statistics.fmean(
                statistics.fmean(counted([step[key] for step in of_rank])) for of_rank in block
            )
            for block in zip(*(rank[arm][1:] for rank in steps), strict=True)
        ]

    work = "cpu_s" if about["model"] == "real" else "busy_s"
    measured: dict[str, dict[str, list[float]]] = {}
    for arm in arms:
        kept = {"step_s": blocks(arm.name, "window_s")}
        if arm.schedule != TORCHREC:
            kept["straggler_wait_s"] = blocks(arm.name, "straggler_wait_s")
            kept["exposed_comm_s"] = blocks(arm.name, "exposed_comm_s")
            kept["busy_s"] = blocks(arm.name, "busy_s")
            kept["cpu_s"] = blocks(arm.name, "cpu_s")
            kept["imbalance_s"] = [
                statistics.fmean(
                    counted([imbalance([s[work] for s in at]) for at in zip(*block, strict=True)])
                )
                for block in zip(*(rank[arm.name][1:] for rank in steps), strict=True)
            ]
        measured[arm.name] = kept
    return [
        about
        | {
            "arm": arm.name,
            "schedule": arm.schedule,
            "placement": arm.placement,
            "work": work,
            "compared_with": found[0]["compared_with"][arm.name],
        }
        | with_intervals(measured[arm.name], measured[BASELINE])
        | {
            f"difference_{kind}": max(rank["difference"][arm.name][kind] for rank in found)
            for kind in ("table", "table_state", "dense", "dense_state", "loss")
        }
        for arm in arms
    ]


def imbalance(work_R: Sequence[float]) -> float:
    """What ranks would wait for the busiest one, mean over ranks."""
    return max(work_R) - statistics.fmean(work_R)


def with_intervals(
    measured: dict[str, list[float]], baseline: dict[str, list[float]]
) -> dict[str, Any]:
    """Mean over blocks of each figure, its interval, and what is removed of the baseline's."""
    row: dict[str, Any] = {}
    for key in ("step_s", "straggler_wait_s", "exposed_comm_s", "imbalance_s", "busy_s", "cpu_s"):
        values = measured.get(key)
        row[key] = None if values is None else statistics.fmean(values)
        row[f"{key}_interval"] = None if values is None else list(interval_of_mean(values))
    for key in ("straggler_wait_s", "exposed_comm_s", "imbalance_s"):
        name = f"removed_{key.removesuffix('_s')}"
        if key not in measured:
            row[f"{name}_share"] = row[f"{name}_interval"] = None
            continue
        row[f"{name}_share"] = removed_share(row[key], statistics.fmean(baseline[key]))
        row[f"{name}_interval"] = list(interval_of_removed(measured[key], baseline[key]))
    return row


def table(rows: list[Row]) -> list[str]:
    """The rows as Markdown; straggler and exchange apart."""
    lines = [
        "| compute, ranks, link | arm | step [ms] | straggler wait [ms] | removed "
        "| exchange wait [ms] | removed | imbalance of own work [ms] | own CPU time [ms] "
        "| largest difference: table, state, dense, state, loss |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        differences = ", ".join(
            f"{row[f'difference_{kind}']:.1e}" if row[f"difference_{kind}"] else "0.0"
            for kind in ("table", "table_state", "dense", "dense_state", "loss")
        )
        lines.append(
            f"| {row['model']}, {row['ranks']}, {row['link']} | {row['arm']} "
            f"| {_with_interval(row, 'step_s')} | {_with_interval(row, 'straggler_wait_s')} "
            f"| {_share(row, 'removed_straggler_wait')} | {_with_interval(row, 'exposed_comm_s')} "
            f"| {_share(row, 'removed_exposed_comm')} | {_with_interval(row, 'imbalance_s')} "
            f"({'CPU' if row['work'] == 'cpu_s' else 'wall'}) | {_with_interval(row, 'cpu_s')} "
            f"| {differences} |"
        )
    return lines


def _with_interval(row: Row, key: str) -> str:
    if row[key] is None:
        return "-"
    low, high = row[f"{key}_interval"]
    return f"{milliseconds(row[key])} ({milliseconds(low)}..{milliseconds(high)})"


def _share(row: Row, name: str) -> str:
    if row[f"{name}_share"] is None:
        return "-"
    low, high = row[f"{name}_interval"]
    return f"{per_cent(row[f'{name}_share'])} ({per_cent(low)}..{per_cent(high)})"


def goals(rows: list[Row]) -> list[str]:
    """Two lines for each emulated setting: stragglers and exchange, never one figure of both."""
    lines = []
    for row in rows:
        if row["model"] != "emulated" or row["arm"] != ARMS[-1].name:
            continue
        for words, name in (("straggler", "straggler_wait"), ("exchange", "exposed_comm")):
            share = row[f"removed_{name}_share"]
            reached = share is not None and share >= GOAL_SHARE
            lines.append(
                f"Goal {GOAL_SHARE:.0%} fewer {words} seconds, {row['ranks']} ranks, "
                f"{row['link']}: {per_cent(share)} ({'reached' if reached else 'not reached'})."
            )
    return lines


def measure(given: argparse.Namespace, model: str, num_ranks: int) -> list[Row]:
    """The rows of one model on so many ranks."""
    namespaces = given.network == "namespaces"
    arms = tuple(arm for arm in ARMS if namespaces or arm.schedule != TORCHREC)
    num_steps = (given.repeats + 1) * given.steps
    batch = PER_RANK[model] * num_ranks
    spec: dict[str, Any] = {}
    if model == "emulated":
        # a random placement needs no more than these; a balanced one cuts giants, so has more
        length_N = lengths_of(given.law, batch * num_steps)
        spec["load"] = LOAD | given.load
        spec["scale_PSR"] = {
            name: scale_of(name, length_N, num_ranks, batch, num_steps).tolist()
            for name in ("random", "balanced")
        }
    else:
        rng = np.random.default_rng([1, num_ranks])
        length_N = log_normal_lengths(batch * num_steps, rng, **REAL_LAW)
        spec |= {"lengths": tuple(int(n) for n in length_N), "batch_sequences": batch}
    found = run(
        Spec(
            model=model,
            arms=arms,
            num_blocks=given.repeats,
            block_steps=given.steps,
            chunk_bytes=chunk_bytes(given.link),
            link=None if namespaces else given.link,
            **spec,
        ),
        num_ranks=num_ranks,
        rate=given.link,
        namespaces=namespaces,
        timeout_s=900,
    )
    link = f"{given.link}, {'two namespaces' if namespaces else 'emulated'}"
    law = given.law if model == "emulated" else "log-normal"
    about = {"model": model, "ranks": num_ranks, "link": link, "law": law}
    return rows_of(found, arms, about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--link", default="100mbit")
    parser.add_argument(
        "--network",
        choices=("emulated", "namespaces"),
        default="emulated",
        help="namespaces: a real link, two ranks, root, TorchRec installed",
    )
    parser.add_argument("--model", choices=("emulated", "real", "both"), default="both")
    parser.add_argument("--law", choices=("zipf", "movielens"), default="zipf")
    parser.add_argument("--repeats", type=int, default=5, help="blocks of each arm that count")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--load", type=json.loads, default={}, help="fields of EmulatedLoad, JSON")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    given = parser.parse_args()
    if given.network == "namespaces":
        reason = missing() or sparsedist.missing()
        if reason is not None:
            parser.error(reason)
        if given.ranks != [2]:
            parser.error("namespaces join two hosts; add --ranks 2")
    load_before = os.getloadavg()[0]
    rows: list[Row] = []
    for model in ("emulated", "real") if given.model == "both" else (given.model,):
        for num_ranks in given.ranks:
            rows += measure(given, model, num_ranks)
            write_rows(given.json, rows)  # a long run that is stopped keeps what it has
            print(f"{model}, {num_ranks} ranks: done", file=sys.stderr)
    load_after = os.getloadavg()[0]
    print("\n".join([*table(rows), "", *goals(rows)]))
    print(f"Load average {load_before:.1f} before, {load_after:.1f} after.")
    write_rows(given.json, rows, load_before=load_before, load_after=load_after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
