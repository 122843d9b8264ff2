"""Our figures are those that PyTorch's TensorBoard plugin tells of the same traces, or we know why.

The answers are the plugin's own: what its tests expect of its sample resnet50 trace (lines 1, 4 and
5 of result_check_file.txt) and of its trace with counters (gpu_metrics_expected.json).
"""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from analytics.kineto import intervals
from analytics.kineto.analysis import RankAnalysis, analyze, analyze_files, as_mapping
from analytics.kineto.breakdown import launch_of
from analytics.kineto.fullness import fullness
from analytics.kineto.kernels import COPY
from analytics.kineto.marks import STEP
from analytics.kineto.parts import PARTS, parts
from analytics.kineto.reading import Trace, read
from analytics.kineto.windows import Windows
from tests.analytics.test_kineto_reading import kernel, launch, write

DATA = Path(os.environ.get("SEQSCALE_TEST_DATA", ""))
TRACES = DATA / "traces" / "kineto_tb"
needs_data = pytest.mark.skipif(
    not TRACES.is_dir(), reason="SEQSCALE_TEST_DATA names no folder with traces"
)


@pytest.fixture(scope="module")
def told() -> list:
    """The lines of the plugin's answers for the trace with num_workers=0: overview and kernels."""
    text = (DATA / "known_answers" / "kineto_result_check_file.json").read_text()
    return [json.loads(line) for line in text.splitlines()[:5]]


@pytest.fixture(scope="module")
def rank() -> RankAnalysis:
    (one,) = analyze_files([TRACES / "resnet50_num_workers_0"]).ranks
    return one


def overview(told: list) -> dict[str, list[int]]:
    """What the plugin tells of each step [us], without its tooltips."""
    steps = told[0]["steps"]
    names = [column.get("name") for column in steps["columns"]]
    numbers = [place for place, name in enumerate(names) if name and name != "Step"]
    return {names[i]: [row[i] for row in steps["rows"]] for i in numbers}


def shown(told: list, title: str) -> float:
    """A figure of the plugin's GPU summary [%]."""
    (value,) = [row["value"] for row in told[0]["gpu_metrics"]["data"] if row["title"] == title]
    return float(value.removesuffix(" %"))


@needs_data
def test_the_steps_together_are_the_same(told, rank):
    us = {name: sum(values) for name, values in overview(told).items()}
    found = dict(zip(PARTS, rank.found.part_ns.sum(axis=0).tolist(), strict=True))
    assert found["busy"] == us["Kernel"] * 1000
    assert found["exposed_copy"] == (us["Memcpy"] + us["Memset"]) * 1000
    assert found["data_wait"] == us["DataLoader"] * 1000
    # the rest is idle: the plugin tells what the host did, ours whether the device waited for it
    rest = found["host_wait"] + found["kernel_gap"] + found["unattributed"]
    assert rest == (us["Runtime"] + us["CPU Exec"] + us["Other"]) * 1000


def steps_of_plugin(trace: Trace) -> Windows:
    """Its bounds: a step ends with the last kernel that it launched, the next one begins there."""
    steps = [mark for mark in trace.marks if mark.what == STEP]
    launched, found = launch_of(trace.correlation, trace.launch_correlation, trace.launch_ns)
    bounds = [steps[0].start_ns]
    for step in steps:
        own = found & (launched >= step.start_ns) & (launched < step.end_ns)
        bounds.append(max(step.end_ns, int(trace.spans[own, 1].max())))
    return Windows(np.array(bounds), tuple(range(len(steps))), is_of_steps=True)


@needs_data
def test_each_step_is_the_same_between_the_bounds_of_the_plugin(told, rank):
    tiles = steps_of_plugin(rank.trace)
    ours = parts(rank.cover, intervals.NOTHING, tiles, has_launches=True).part_ns
    us = overview(told)
    assert (ours[:, PARTS.index("busy")] // 1000).tolist() == us["Kernel"]
    copies = np.add(us["Memcpy"], us["Memset"])
    assert (ours[:, PARTS.index("exposed_copy")] // 1000).tolist() == copies.tolist()
    assert (ours[:, PARTS.index("data_wait")] // 1000).tolist() == us["DataLoader"]
    # between our own bounds they differ: the kernels that one step launches run into the next one
    assert (rank.found.part_ns[:, 0] // 1000).tolist() != us["Kernel"]


@needs_data
def test_the_summary_of_the_device_is_the_same(told, rank):
    one = as_mapping(analyze([rank.trace]))["ranks"][0]
    for key, title in (
        ("gpu_utilization_share", "GPU Utilization"),
        ("est_sm_efficiency_share", "Est. SM Efficiency"),
        ("est_occupancy_share", "Est. Achieved Occupancy"),
    ):
        assert round(100 * one[key], 2) == shown(told, title), title


@needs_data
def test_the_time_of_every_kernel_is_the_same(told, rank):
    table = told[3]["data"]["rows"]
    ours = {k.name: k for k in rank.kernels if k.family != "memory"}
    assert len(table) == len(ours) == 67
    for name, calls, total_us, _, max_us, min_us, _, _ in table:
        one = ours[name]
        assert (one.num_kernels, one.total_ns) == (calls, total_us * 1000), name
        assert (one.max_ns, one.min_ns) == (max_us * 1000, min_us * 1000), name
    by_name = {name: us * 1000 for name, us in told[4]["total"]["rows"]}
    assert by_name == {name: one.total_ns for name, one in ours.items()}


def counters(name: str) -> list[tuple[int, float]]:
    """(time [ns], value) of a counter, without the two that scale its axis."""
    events = json.loads((TRACES / "gpu_metrics_expected.json").read_text())["traceEvents"]
    return [
        (event["ts"] * 1000, value)
        for event in events
        if event.get("ph") == "C" and event["name"] == f"GPU 0 {name}"
        for value in event["args"].values()
    ][2:]


@needs_data
@pytest.mark.parametrize("file", ["gpu_metrics_input.json", "gpu_metrics_expected.json"])
def test_utilization_and_sm_efficiency_over_time_are_the_same(file):
    (trace,) = read(TRACES / file)
    buckets = counters("Utilization")
    for (begin_ns, value), (end_ns, _) in itertools.pairwise(buckets):
        share = fullness(trace, begin_ns, end_ns).utilization_share
        assert share is not None
        assert 100 * share == pytest.approx(value, abs=1e-9)  # the plugin's test shows 100 times
    steps = counters("Est. SM Efficiency")
    assert len(steps) == 2 * int((trace.its_class != COPY).sum()) == 60
    for (begin_ns, value), (end_ns, _) in itertools.pairwise(steps):
        share = fullness(trace, begin_ns, end_ns).sm_efficiency_share
        assert 10 * (share or 0.0) == pytest.approx(value, abs=1e-9)  # and 10 times of these


def test_sms_are_full_once_and_occupancy_is_the_kernels_mean(tmp_path):
    # 0-10 us: 0.5 blocks an SM; 5-10 another 0.75, together more than each SM has; 10-20 nothing;
    # the copy is no kernel: (5 * 0.5 + 5 * 1) / 20 = 0.375; occupancy (10 * 20 + 5 * 80) / 15 %
    said = {"blocks per SM": 0.5, "est. achieved occupancy %": 20}
    more = {"blocks per SM": 0.75, "est. achieved occupancy %": 80}
    found = [launch(0), kernel(0, 10, **said), kernel(5, 5, correlation=2, stream=8, **more)]
    found += [kernel(10, 10, "Memcpy HtoD", 3, cat="gpu_memcpy")]
    (rank,) = as_mapping(analyze_files([write(tmp_path / "a.json", found)]))["ranks"]
    assert rank["gpu_utilization_share"] == 0.5
    assert rank["est_sm_efficiency_share"] == pytest.approx(0.375)
    assert rank["est_occupancy_share"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    "found",
    [
        [kernel(0, 1), launch(0)],
        [kernel(0, 1, **{"blocks per SM": "x", "est. achieved occupancy %": -1})],
        [kernel(0, 1, device=d, **{"blocks per SM": 1, "est. achieved occupancy %": 9})
         for d in (0, 1)],
    ],
)  # fmt: skip
def test_what_kernels_do_not_tell_of_one_device_is_not_known(tmp_path, found):
    (rank,) = as_mapping(analyze_files([write(tmp_path / "a.json", found)]))["ranks"]
    assert rank["gpu_utilization_share"] == 1
    assert rank["est_sm_efficiency_share"] is None
    assert rank["est_occupancy_share"] is None


def test_on_cpu_nothing_is_told_of_a_device(tmp_path):
    found = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0,
              "dur": 5}]  # fmt: skip
    (rank,) = as_mapping(analyze_files([write(tmp_path / "a.json", found)]))["ranks"]
    assert rank["gpu_utilization_share"] is None
