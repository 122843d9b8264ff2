"""The map of regimes: what a cell measures, and what its letter says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.dlrm_layers import durations_us, mean_durations
from bench.regime_load import Overheads, as_run, step_load
from bench.regime_map import letter, svg, text_map, verdict
from bench.regimes import map_cell, measure, report, trace_cells
from training.planning.overlap_forecast import FORECAST_SCHEDULES, forecast

QUIET = Overheads(latency_s=0.0, apply_s=0.0, host_s=0.0)


def row(prioritised_s: float, split_s: float, **changes: Any) -> dict[str, Any]:
    """A cell whose ids_ahead takes 1 s."""
    times = zip(FORECAST_SCHEDULES, (1.05, 1.0, prioritised_s, split_s), strict=True)
    steps = {
        name: {"step_s": s, "step_low_s": s, "step_high_s": s, "difference": 0.0}
        for name, s in times
    }
    place = {"label": "", "world_size": 2, "ratio": 0.3, "collision_share": 0.12, "kept_up": True}
    return steps | place | changes


@pytest.mark.parametrize(
    ("prioritised_s", "split_s", "expected"),
    [(0.8, 0.7, "S"), (0.7, 0.8, "P"), (1.1, 1.2, "p"), (1.2, 1.1, "s"), (1.005, 1.2, "=")],
)
def test_a_letter_tells_the_faster_one_and_whether_it_loses(
    prioritised_s: float, split_s: float, expected: str
) -> None:
    assert letter(row(prioritised_s, split_s)) == expected


def test_a_cell_that_is_late_or_not_exact_is_marked() -> None:
    assert letter(row(0.8, 0.7, kept_up=False)) == "S!"
    wrong = row(0.8, 0.7)
    wrong["split"]["difference"] = 1e-9
    assert letter(wrong) == "Sx"


def test_a_gain_within_the_spread_of_the_steps_is_noise() -> None:
    cell = row(0.95, 0.97)
    assert verdict(cell, "prioritised") == "wins"
    cell["ids_ahead"] |= {"step_low_s": 0.9, "step_high_s": 1.1}  # half the middle spread is 10 %
    assert verdict(cell, "prioritised") == "equal"


def test_the_map_has_a_line_a_ratio_and_marks_published_points() -> None:
    rows = [row(0.8, 0.7), row(1.2, 1.1, ratio=0.05, collision_share=0.3)]
    lines = text_map(rows)
    assert "   0.05 |     .     s   <- NVIDIA" in lines
    assert "    0.3 |     S     .   <- 100 mbit" in lines
    assert "columns: 0.12 FreeScale, 0.3 bench/overlap" in lines
    picture = ElementTree.fromstring(svg(rows))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "S 30" in texts and "s -10" in texts


def test_a_cells_link_carries_all_bytes_in_the_asked_share_of_the_compute() -> None:
    load = step_load(map_cell(4, 0.5, 0.3), QUIET)
    assert load.ratio == pytest.approx(0.5)
    # 3 of 4 rows of 1,280 with 64 fp32 entries lie elsewhere
    assert load.row_bytes == 960 * 256
    assert load.id_bytes == 960 * 8
    # chain and all bytes fit: split takes the compute, 120 ms
    assert forecast("split", load).step_s == pytest.approx(0.12)
    # compute twice as long as its sleeps
    assert as_run(load, 0.24).compute_s == pytest.approx(0.24)


def test_the_trace_cells_expose_what_was_published(tmp_path: Path) -> None:
    (tmp_path / "rank0.pt.trace.json").write_text(json.dumps({"traceEvents": trace()}))
    durations = mean_durations(tmp_path)
    cells = trace_cells(durations)
    nvidia, freescale = step_load(cells[0], QUIET), step_load(cells[-1], QUIET)
    synchronous = forecast("synchronous", nvidia)
    assert synchronous.exposed_s / synchronous.step_s == pytest.approx(0.033)
    assert forecast("synchronous", freescale).exposed_s == pytest.approx(0.111)
    # 4, 10 and 8 us of the trace below
    assert cells[0].activations_s / cells[0].forward_s == pytest.approx(10 / 4)
    assert cells[0].weights_s / cells[0].forward_s == pytest.approx(8 / 4)


def trace() -> list[dict[str, Any]]:
    """One step: a forward kernel, a linear layer's backward, the table's update, NCCL."""

    def event(cat: str, name: str, tid: int, ts: int, dur: int, **args: int) -> dict[str, Any]:
        times = {"ph": "X", "tid": tid, "ts": ts, "dur": dur}
        return {"cat": cat, "name": name, "args": args} | times

    def kernel(name: str, correlation: int, tid: int, at: int, dur: int) -> list[dict[str, Any]]:
        return [
            event("cuda_runtime", "cudaLaunchKernel", tid, at, 1, correlation=correlation),
            event("kernel", name, 7, at + 500, dur, correlation=correlation),
        ]

    return [
        event("user_annotation", "## forward ##", 1, 0, 100),
        event("user_annotation", "## backward ##", 1, 100, 100),
        *kernel("gemm", 1, 1, 10, 4),
        *kernel("ncclKernel_SendRecv", 2, 1, 20, 900),
        event("cpu_op", "AddmmBackward0", 2, 110, 30),
        event("cpu_op", "aten::mm", 2, 111, 9),
        event("cpu_op", "aten::mm", 2, 125, 9),
        *kernel("gemm", 3, 2, 112, 10),  # the input's gradient comes first
        *kernel("gemm", 4, 2, 126, 8),
        event("cpu_op", "CppNode<SplitLookupFunction_adagrad_Op>", 2, 150, 9),
        *kernel("split_embedding_backward", 5, 2, 151, 70),
        *kernel("optimizer", 6, 1, 300, 60),
    ]


def test_kernels_are_told_apart_by_what_launched_them() -> None:
    assert durations_us(trace()) == (4, 10, 8)
    with pytest.raises(ValueError, match="must have one '## forward ##'"):
        durations_us(trace()[1:])


def test_the_real_trace_of_eight_ranks() -> None:
    folder = Path(os.environ.get("SEQSCALE_TEST_DATA", "-"), "traces/param/dlrm_kineto_8rank")
    if not folder.is_dir():
        pytest.skip("SEQSCALE_TEST_DATA does not hold traces/param/dlrm_kineto_8rank")
    durations = mean_durations(folder)
    assert durations.num_ranks == 8
    # all kernels of a rank's step but NCCL's sum to 1.3 ms, optimiser and tables' update included
    assert 0.5e-3 < durations.total_s < 1.3e-3


@pytest.mark.full
@pytest.mark.timeout(300)
def test_two_ranks_measure_a_cell_exactly() -> None:
    (cell,) = measure([map_cell(2, 1.0, 0.3)], num_turns=1)
    assert [cell[name]["difference"] for name in FORECAST_SCHEDULES] == [0.0] * 4
    assert cell["num_steps"] == 2
    # all bytes went over the link, split's marks included: within the luck of the owners' shares
    assert cell["synchronous"]["sent_bytes"] == pytest.approx(cell["total_bytes"], rel=0.05)
    assert cell["synchronous"]["exposed_s"] > cell["split"]["exposed_s"]
    assert "emulated" in report([cell])[0]
