"""What each schedule hides of the exchange, beside TorchRec's SparseDist, over a limited link.

    python bench/overlap.py
    python bench/overlap.py --rates 30mbit 100mbit --model real --repeats 5 --json overlap.json
    python bench/overlap.py --emulated-link        without root; without TorchRec

Two network namespaces joined by a link of a given rate (link.py), a rank in each; all arms train on
the same batches in turn (arms_in_turn.py). Emulated: compute is sleep, so that two busy cores do
not hide or make a wait; 30 % of the distinct rows collide. Real: SASRec, two blocks, width 64.

Seconds over the floor are one measure for every arm: step time less the busy time of our
synchronous arm in the same run. Beside it, what the link costs an arm: its step time less its own
step time over a link without a limit. Waits by the recorder are blocked time in collectives; of
TorchRec they are not known. TorchRec travels by gloo's own all-to-all, ours posts its receives
first, so what a schedule removes is told against ids_ahead too: what SparseDist hides, on our
transport. Goal: 98 % at 30 and 100 mbit, emulated; none for the real model on two busy cores.
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

from analytics.errors import ConfigError  # noqa: E402
from bench import sparsedist  # noqa: E402
from bench.arms_in_turn import TORCHREC, Arm, Spec, run  # noqa: E402
from bench.figures import (  # noqa: E402
    counted,
    milliseconds,
    over_blocks,
    per_cent,
    removed_share,
)
from bench.link import missing  # noqa: E402
from training.comm.paced import WIRE_PER_PAYLOAD  # noqa: E402
from training.links import parse_link  # noqa: E402

UNLIMITED = "unlimited"
CHUNK_S = 5e-3  # of wire in a piece of deferrable traffic
SCHEDULES = ("synchronous", "ids_ahead", "prioritised", "split")
WAITS = ("ids", "rows", "gradients", "dense")
GOAL_SHARE, GOAL_RATES = 0.98, (30.0, 100.0)
REAL_LENGTH, REAL_BATCH = 100, 32  # events of every history; histories of a global batch
Row = dict[str, Any]


def chunk_bytes(rate: str) -> int:
    """Bytes of a piece at a rate; of the quickest rate measured when there is no limit."""
    mbit = 300.0 if rate == UNLIMITED else parse_link(rate)
    return int(CHUNK_S * mbit * 1e6 / 8 / WIRE_PER_PAYLOAD)


def rows_of(found: Sequence[dict[str, Any]], *, model: str, rate: str, link: str) -> list[Row]:
    """One row an arm from what the ranks found; the warm-up block is left out."""
    steps = [rank["steps"] for rank in found]

    def blocks(arm: str, key: str) -> list[list[float]]:
        """Of each block, every step's mean over ranks."""
        return [
            [statistics.fmean(step[key] for step in at) for at in zip(*block, strict=True)]
            for block in zip(*(rank[arm][1:] for rank in steps), strict=True)
        ]

    reference = next(iter(found[0]["compared_with"].values()))
    floor_s = over_blocks(blocks(reference, "busy_s")).middle
    rows = []
    for arm in steps[0]:
        step = over_blocks(blocks(arm, "window_s"))
        row: Row = {
            "model": model, "rate": rate, "link": link, "arm": arm, "floor_s": floor_s,
            "step_s": step.middle, "step_low_s": step.low, "step_high_s": step.high,
            "over_floor_s": step.middle - floor_s,
            "collision_share": found[0]["collision_share"],
            "rows_ahead_share": None, "exposed_s": None,
        }  # fmt: skip
        row |= {f"exposed_{kind}_s": None for kind in WAITS}
        if arm != TORCHREC:
            for kind in WAITS:
                row[f"exposed_{kind}_s"] = over_blocks(blocks(arm, f"exposed_{kind}_s")).middle
            row["exposed_s"] = over_blocks(blocks(arm, "exposed_comm_total_s")).middle
            row["busy_s"] = over_blocks(blocks(arm, "busy_s")).middle
            ahead, all_rows = (
                sum(sum(counted(block)) for block in blocks(arm, key))
                for key in ("num_rows_ahead", "num_rows")
            )
            row["rows_ahead_share"] = ahead / all_rows
        for kind in ("table", "table_state", "dense", "dense_state", "loss"):
            row[f"difference_{kind}"] = max(rank["difference"][arm][kind] for rank in found)
        rows.append(row)
    return with_removed(rows)


def with_removed(rows: list[Row]) -> list[Row]:
    """Each row of one model and rate with what is removed against TorchRec and ids_ahead."""
    by_arm = {row["arm"]: row for row in rows}
    for row in rows:
        for baseline, key in ((TORCHREC, "over_floor_s"), ("ids_ahead", "over_floor_s"),
                              ("ids_ahead", "exposed_s")):  # fmt: skip
            other = by_arm.get(baseline)
            known = other is not None and other[key] is not None and row[key] is not None
            name = f"removed_of_{baseline}_{key.removesuffix('_s')}_share"
            row[name] = removed_share(row[key], other[key]) if known and other else None
    return rows


def with_link_costs(rows: list[Row]) -> list[Row]:
    """Each row with what its link costs the arm; None without a run over an unlimited link."""
    unlimited = {(r["model"], r["arm"]): r["step_s"] for r in rows if r["rate"] == UNLIMITED}
    cost = {}
    for row in rows:
        free_s = unlimited.get((row["model"], row["arm"]))
        limited = free_s is not None and row["rate"] != UNLIMITED
        row["link_cost_s"] = row["step_s"] - free_s if limited and free_s else None
        cost[row["model"], row["rate"], row["arm"]] = row["link_cost_s"]
    for row in rows:
        theirs = cost.get((row["model"], row["rate"], TORCHREC))
        known = row["link_cost_s"] is not None and theirs is not None
        row[f"removed_of_{TORCHREC}_link_cost_share"] = (
            removed_share(row["link_cost_s"], theirs) if known and theirs else None
        )
    return rows


def table(rows: list[Row]) -> list[str]:
    """The rows of one model as Markdown."""
    lines = [
        "| rate | arm | step [ms] (blocks) | over the floor [ms] | link's cost [ms] "
        "| waits: ids / rows / gradients / dense = all [ms] "
        "| removed of SparseDist: over floor, link's cost | of ids_ahead: over floor, waits "
        "| rows ahead | largest difference: table, state, dense, state, loss |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        waits = " / ".join(milliseconds(row[f"exposed_{kind}_s"]) for kind in WAITS)
        differences = ", ".join(
            f"{row[f'difference_{kind}']:.1e}" if row[f"difference_{kind}"] else "0.0"
            for kind in ("table", "table_state", "dense", "dense_state", "loss")
        )
        lines.append(
            f"| {row['rate']} | {row['arm']} | {milliseconds(row['step_s'])} "
            f"({milliseconds(row['step_low_s'])}-{milliseconds(row['step_high_s'])}) "
            f"| {milliseconds(row['over_floor_s'])} | {milliseconds(row['link_cost_s'])} "
            f"| {waits} = {milliseconds(row['exposed_s'], 2)} "
            f"| {per_cent(row['removed_of_torchrec_over_floor_share'])}, "
            f"{per_cent(row['removed_of_torchrec_link_cost_share'])} "
            f"| {per_cent(row['removed_of_ids_ahead_over_floor_share'])}, "
            f"{per_cent(row['removed_of_ids_ahead_exposed_share'])} "
            f"| {per_cent(row['rows_ahead_share'], 0)} | {differences} |"
        )
    return lines


def goals(rows: list[Row]) -> list[str]:
    """A line for each rate that has a goal: what the best arm of ours removes."""
    lines = []
    for row in rows:
        is_judged = row["rate"] != UNLIMITED and parse_link(row["rate"]) in GOAL_RATES
        if row["model"] != "emulated" or row["arm"] != "split" or not is_judged:
            continue
        measures = {
            "over the floor, of SparseDist": row["removed_of_torchrec_over_floor_share"],
            "link's cost, of SparseDist": row["removed_of_torchrec_link_cost_share"],
            "waits, of ids_ahead": row["removed_of_ids_ahead_exposed_share"],
        }
        told = "; ".join(
            f"{name}: {per_cent(share)} "
            f"({'reached' if share is not None and share >= GOAL_SHARE else 'not reached'})"
            for name, share in measures.items()
            if share is not None
        )
        lines.append(f"Goal {GOAL_SHARE:.0%} at {row['rate']}, split, {row['link']}: {told}.")
    return lines


def measure(
    given: argparse.Namespace, model: str, rate: str, schedules: Sequence[str]
) -> list[Row]:
    """The rows of one model over one link."""
    num_steps = (given.repeats + 1) * given.steps
    spec = Spec(
        model=model,
        arms=tuple(Arm(name=name, schedule=name) for name in schedules),
        num_blocks=given.repeats,
        block_steps=given.steps,
        chunk_bytes=chunk_bytes(rate),
        link=rate if given.emulated_link and rate != UNLIMITED else None,
        load=given.load,
        lengths=(REAL_LENGTH,) * (REAL_BATCH * num_steps),
        batch_sequences=REAL_BATCH,
    )
    found = run(
        spec,
        rate=None if rate == UNLIMITED else rate,
        namespaces=not given.emulated_link,
        timeout_s=600,
    )
    link = f"{rate}, emulated" if given.emulated_link else f"{rate}, two namespaces"
    return rows_of(found, model=model, rate=rate, link=link)


def write_rows(path: Path | None, rows: list[Row], **about: Any) -> None:
    """The rows as JSON, if a path was given."""
    if path is not None:
        path.write_text(json.dumps({"rows": rows} | about, indent=2) + "\n", encoding="utf-8")


def rate_of(text: str) -> str:
    """A link's rate as it was given, once it can be read."""
    try:
        parse_link(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    rates = ["30mbit", "100mbit", "300mbit"]
    parser.add_argument("--rates", nargs="+", type=rate_of, default=rates)
    parser.add_argument("--model", choices=("emulated", "real", "both"), default="emulated")
    parser.add_argument("--repeats", type=int, default=3, help="blocks of each arm that count")
    parser.add_argument("--steps", type=int, default=12, help="steps of a block")
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), help="ours")
    parser.add_argument("--emulated-link", action="store_true", help="loopback, paced; no root")
    parser.add_argument("--no-unlimited", action="store_true", help="leave the free link out")
    parser.add_argument("--load", type=json.loads, default={}, help="fields of EmulatedLoad, JSON")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    given = parser.parse_args()
    notes = []
    reason = missing()
    if reason is not None and not given.emulated_link:
        given.emulated_link = True
        notes.append(f"Link emulated: {reason}.")
    absent = sparsedist.missing()
    if given.emulated_link:
        absent = "gloo's own collectives cannot be held as if over an emulated link"
    if absent is not None:
        notes.append(f"TorchRec's SparseDist left out: {absent}.")
    schedules = [*([] if absent else [TORCHREC]), *given.schedules]
    load_before = os.getloadavg()[0]
    rows: list[Row] = []
    for model in ("emulated", "real") if given.model == "both" else (given.model,):
        for rate in [*([] if given.no_unlimited else [UNLIMITED]), *given.rates]:
            rows += measure(given, model, rate, schedules)
            write_rows(given.json, rows)  # a long run that is stopped keeps what it has
            print(f"{model}, {rate}: done", file=sys.stderr)
    rows = with_link_costs(rows)
    load_after = os.getloadavg()[0]
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        links = "emulated link" if given.emulated_link else "two namespaces"
        shares = ", ".join(dict.fromkeys(per_cent(row["collision_share"]) for row in of_model))
        print(f"\n{model} compute, {links}; {shares} of the distinct rows collide\n")
        print("\n".join(table(of_model)))
    print("\n" + "\n".join([*goals(rows), *notes]))
    print(f"Load average {load_before:.1f} before, {load_after:.1f} after.")
    write_rows(given.json, rows, notes=notes, load_before=load_before, load_after=load_after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
