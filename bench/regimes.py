"""Where overlapping holds and where it loses: a map over ratio, collisions and ranks.

    python bench/regimes.py --quick
    python bench/regimes.py --json regimes.json --svg regimes.svg
    python bench/regimes.py --cells 8:0.3:0.12 2:1.0:0.9        # ranks:ratio:collision share
    python bench/regimes.py --ranks 8 --stretch 2 --retries 1   # on a busy host
    python bench/regimes.py --only-trace --trace DIR
    python bench/regimes.py --show two.json eight.json --svg both.svg

Ratio: all bytes of a synchronous step over the link's payload rate, divided by the compute. Each
cell measures all four schedules in turns, holds tables, optimiser state, dense part and loss
against synchronous, and prints the closed formulas beside the times
(training/planning/overlap_forecast.py, fed with three overheads measured without a link's limit).
Link and compute are emulated: PacedTransport, and sleeps, so that eight ranks run on two cores. Two
further columns say whether they really do: how much longer than its sleeps the compute took, and
the share of all cores that the ranks used. The more ranks, the longer the compute, for this reason.

The cells beside the map take forward, activation and weight gradients in the proportions of a real
DLRM step on eight ranks (bench/dlrm_layers.py); they are left out where the trace is not there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the packages lie beside it

from bench.dlrm_layers import StepDurations, default_trace, mean_durations  # noqa: E402
from bench.regime_cells import run_rank  # noqa: E402
from bench.regime_load import LATE_SHARE, Cell  # noqa: E402
from bench.regime_map import EMULATED, POINTS, deviations, svg, table, text_map  # noqa: E402

RATIOS = (0.02, 0.05, 0.1, 0.3, 0.6, 1.0, 2.0)
SHARES = (0.0, 0.02, 0.12, 0.3, 0.6, 0.9)
QUICK = ((0.05, 0.12), (0.3, 0.3), (1.0, 0.3), (1.0, 0.9))
RANKS = (2, 4, 8)
COMPUTE_S = {2: 0.09, 4: 0.12, 8: 0.24}  # a third each forward, activations, weights
NVIDIA_EXPOSED_SHARE = 0.033  # of a step
FREESCALE_EXPOSED_S = 0.111
TRACE_RANKS, TRACE_COMPUTE_S = 8, 0.3
TRACE_SHARES = (0.02, 0.12)


def map_cell(world_size: int, ratio: float, collision_share: float, stretch: float = 1.0) -> Cell:
    """A cell of the map; its compute `stretch` times as long as usual."""
    third = COMPUTE_S.get(world_size, 0.03 * world_size) * stretch / 3
    return Cell(
        world_size=world_size,
        ratio=ratio,
        collision_share=collision_share,
        forward_s=third,
        activations_s=third,
        weights_s=third,
    )


def trace_cells(durations: StepDurations) -> list[Cell]:
    """Cells in the proportions of a real step, at links that expose what others have published.

    What synchronous exposes is ratio x compute, so a share x of its step is ratio x / (1 - x).
    The trace's compute is stretched to 0.3 s: sleeps of its own 0.8 ms would be all overshoot.
    """
    stretch = TRACE_COMPUTE_S / durations.total_s
    points = [
        ("DLRM, NVIDIA's 3.3 %", NVIDIA_EXPOSED_SHARE / (1 - NVIDIA_EXPOSED_SHARE)),
        ("DLRM, FreeScale's 111 ms", FREESCALE_EXPOSED_S / TRACE_COMPUTE_S),
    ]
    return [
        Cell(
            world_size=TRACE_RANKS,
            ratio=ratio,
            collision_share=share,
            forward_s=durations.forward_s * stretch,
            activations_s=durations.activations_s * stretch,
            weights_s=durations.weights_s * stretch,
            label=label,
        )
        for label, ratio in points
        for share in TRACE_SHARES
    ]


def measure(cells: list[Cell], num_turns: int, num_retries: int = 0) -> list[dict[str, Any]]:
    """Every cell's row; ranks are started once for each number of them."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for world_size in sorted({cell.world_size for cell in cells}):
            mine = [cell for cell in cells if cell.world_size == world_size]
            results = Path(folder) / f"{world_size}.jsonl"
            begin, load = time.monotonic(), os.getloadavg()[0]
            given = (
                f"file://{folder}/rendezvous-{world_size}",
                mine,
                num_turns,
                num_retries,
                results,
            )
            run_forked(world_size, given)
            print(
                f"{len(mine)} cells on {world_size} ranks: {time.monotonic() - begin:.0f} s, load "
                f"{load:.1f} before",
                file=sys.stderr,
            )
            rows += [json.loads(line) for line in results.read_text().splitlines()]
    return rows


def run_forked(world_size: int, given: tuple[Any, ...]) -> None:
    """Run `run_rank` on so many ranks, forked from a process that has torch loaded once.

    Raises RuntimeError when one fails; the others then end by themselves or are ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.regime_cells", "torch._dynamo"])
    ranks = [context.Process(target=run_rank, args=(n, *given)) for n in range(world_size)]
    for rank in ranks:
        rank.start()
    try:
        multiprocessing.connection.wait([rank.sentinel for rank in ranks])
        for rank in ranks:
            if not any(other.exitcode for other in ranks):
                rank.join()
        codes = [rank.exitcode for rank in ranks]
        if any(codes):
            raise RuntimeError(f"ranks ended with exit codes {codes}; see their output above")
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def cell_of(text: str) -> tuple[int, float, float]:
    """(ranks, communication / compute, collision share) of 'ranks:ratio:share'."""
    try:
        ranks, ratio, share = text.split(":")
        return int(ranks), float(ratio), float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no cell; give ranks:ratio:collision share, such as 8:0.3:0.12"
        ) from None


def chosen_cells(arguments: argparse.Namespace) -> list[Cell]:
    """The map's cells that were asked for."""
    if arguments.only_trace:
        return []
    if arguments.cells:
        return [
            map_cell(ranks, ratio, share, arguments.stretch)
            for ranks, ratio, share in arguments.cells
        ]
    places = (
        QUICK if arguments.quick else [(r, s) for r in arguments.ratios for s in arguments.shares]
    )
    stretch = arguments.stretch
    return [map_cell(n, ratio, share, stretch) for n in arguments.ranks for ratio, share in places]


def report(rows: list[dict[str, Any]]) -> list[str]:
    """The whole output."""
    lines = [
        EMULATED,
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.platform()}",
    ]
    lines += ["", *text_map(rows), "", "Published operating points:", *POINTS]
    lines += ["", *deviations(rows), "", *table(rows)]
    late = sum(not row["kept_up"] for row in rows)
    lines += [
        "",
        f"{late} of {len(rows)} cells: compute over {LATE_SHARE:.0%} longer than its sleeps.",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="four cells a number of ranks")
    parser.add_argument("--cells", nargs="+", type=cell_of, metavar="RANKS:RATIO:SHARE")
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--ratios", nargs="+", type=float, default=list(RATIOS))
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--stretch", type=float, default=1.0, help="longer compute, a busy host")
    parser.add_argument("--retries", type=int, default=0, help="of cells that were late")
    parser.add_argument(
        "--turns", type=int, default=2, help="of each schedule, 2 counted steps each"
    )
    parser.add_argument("--trace", type=Path, help="folder of the 8-rank DLRM Kineto trace")
    parser.add_argument("--no-trace", action="store_true", help="only the map")
    parser.add_argument("--only-trace", action="store_true", help="no map, only the DLRM cells")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--svg", type=Path, help="also draw the map here")
    parser.add_argument("--show", nargs="+", type=Path, help="measure nothing, show these --json")
    arguments = parser.parse_args()
    if arguments.show:
        present([row for file in arguments.show for row in json.loads(file.read_text())], arguments)
        return
    cells = chosen_cells(arguments)
    folder = None if arguments.no_trace else arguments.trace or default_trace()
    durations = mean_durations(folder) if folder is not None and folder.is_dir() else None
    if durations is None and not arguments.no_trace:
        print(
            "No DLRM cells: give --trace DIR, or set SEQSCALE_TEST_DATA to a folder that holds "
            "traces/param/dlrm_kineto_8rank.",
            file=sys.stderr,
        )
    elif durations is not None and not arguments.cells:
        cells += trace_cells(durations)
    present(measure(cells, arguments.turns, arguments.retries), arguments)
    if durations is not None:
        print("\n" + durations.sentence)


def present(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print the report and write what else was asked for."""
    print("\n".join(report(rows)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if arguments.svg is not None:
        arguments.svg.write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
