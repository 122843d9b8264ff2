"""Our figures of open traces are those that HolisticTraceAnalysis 0.5.0 gives, or we know why not.

The answers are HTA's own output, made with its rounding of fractional microseconds
(hta_reference) and without (hta_reference_exact).
"""

import csv
import dataclasses
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from analytics.kineto import intervals
from analytics.kineto.breakdown import breakdown, kernels_that_count, num_steps
from analytics.kineto.reading import Trace, read

DATA = Path(os.environ.get("SEQSCALE_TEST_DATA", ""))
pytestmark = pytest.mark.skipif(
    not (DATA / "traces").is_dir(), reason="SEQSCALE_TEST_DATA names no folder with traces"
)
SETS = {
    "hta_amd": "hta/amd_trace/*.gz",
    "hta_critical_alexnet": "hta/critical_path/alexnet/*.gz",
    "hta_simple_add": "hta/critical_path/simple_add/*.gz",
    "hta_negative_queue": "hta/negative_queue_length_values_check/*.gz",
    "hta_ns_resolution": "hta/ns_resolution_trace/*.gz",
    "hta_trace_compare_base": "hta/trace_compare/base/*.gz",
    "hta_trace_diff_control": "hta/trace_diff/control/*.gz",
    "kineto_w0": "kineto_tb/resnet50_num_workers_0/*.gz",
    "param_dlrm_8rank": "param/dlrm_kineto_8rank/*.json",
    "param_linear": "param/linear_kineto.json.gz",
    "tl_h100_bert": "tracelens/h100_gaunernst*.json.gz",
    "tl_h100_qwen": "tracelens/h100_Qwen*.json.gz",
}
WHOLE_US = [name for name in SETS if not name.startswith(("hta_amd", "hta_ns", "tl_"))]
SYNCED = ("hta_critical_alexnet", "hta_simple_add")


def traces_of(name: str) -> list[Trace]:
    return [t for path in sorted((DATA / "traces").glob(SETS[name])) for t in read(path)]


def reference(name: str, table: str, *, exact: bool = False) -> list[dict[str, str]]:
    folder = DATA / ("hta_reference_exact" if exact else "hta_reference")
    with (folder / f"{name}__{table}.csv").open(newline="") as opened:
        return list(csv.DictReader(opened))


def check_temporal(name: str, traces: list[Trace], *, exact: bool, tolerance_us: float) -> None:
    drop = num_steps(traces) > 1
    for row in reference(name, "temporal_breakdown", exact=exact):
        trace = next(t for t in traces if (t.rank or 0) == int(row["rank"]))
        found = breakdown(trace, drop_last_step=drop)
        assert found is not None
        for key in ("idle", "compute", "non_compute", "kernel"):
            ours_us = getattr(found, f"{key}_ns") / 1000
            assert ours_us == pytest.approx(float(row[f"{key}_time(us)"]), abs=tolerance_us), key


def first_event_ns(name: str, trace: Trace) -> int:
    """Start of the first event as the file lists them: HTA's row 0."""
    path = next(p for p in (DATA / "traces").glob(SETS[name]) if p.name == trace.name)
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return round(json.loads(content)["traceEvents"][0]["ts"] * 1000)


def idle_of_hta(name: str, trace: Trace, stream: int, *, drop: bool) -> dict[str, float]:
    """Idle causes of a stream [us] where, as in HTA, row 0 stands for a launch that is missing."""
    place, launched = kernels_that_count(trace, drop_last_step=drop)
    mine = trace.stream[place] == stream
    spans, launched = trace.spans[place[mine]], launched[mine]
    if (launched < 0).any():
        launched = np.where(launched < 0, first_event_ns(name, trace), launched)
    gap = spans[1:, 0] - spans[:-1, 1]
    is_host = launched[1:] > spans[:-1, 1]
    is_delay = ~is_host & (gap < 30_000)
    return {
        "host_wait": gap[is_host].sum() / 1000,
        "kernel_wait": gap[is_delay].sum() / 1000,
        "other": gap[~is_host & ~is_delay].sum() / 1000,
    }


def check_idle(name: str, traces: list[Trace], *, exact: bool) -> None:
    drop = num_steps(traces) > 1
    by_rank = {t.rank or 0: t for t in traces}
    for row in reference(name, "idle_time_breakdown_0", exact=exact):
        trace, stream = by_rank[int(row["rank"])], int(row["stream"])
        told = idle_of_hta(name, trace, stream, drop=drop)
        # HTA rounds to two decimals, and adds doubles of 1e12 us
        tolerance_us = 0.02 if exact else 0
        assert told[row["idle_category"]] == pytest.approx(
            float(row["idle_time"]), abs=tolerance_us
        ), row
        found = breakdown(trace, drop_last_step=drop)
        assert found is not None
        ours = next(c for c in found.idle_causes if c.stream == stream)
        ours_us = {cause: getattr(ours, f"{cause}_ns") / 1000 for cause in told}
        assert sum(ours_us.values()) == pytest.approx(sum(told.values()), abs=1e-6)
        if np.isin(trace.correlation, trace.launch_correlation).all():
            assert ours_us == told


def check_overlap(name: str, traces: list[Trace]) -> None:
    drop = num_steps(traces) > 1
    by_rank = {t.rank or 0: breakdown(t, drop_last_step=drop) for t in traces}
    for row in reference(name, "comm_comp_overlap"):
        found = by_rank[int(row["rank"])]
        assert found is not None
        if row["comp_comm_overlap_pctg"]:
            assert found.overlap_share is not None
            shown = round(100 * found.overlap_share, 2)
            assert shown == pytest.approx(float(row["comp_comm_overlap_pctg"]), abs=0.0101)
        else:
            assert found.overlap_share is None


@pytest.mark.parametrize("name", WHOLE_US)
def test_traces_in_whole_microseconds_give_hta_figures_exactly(name):
    traces = traces_of(name)
    if name not in SYNCED:
        check_temporal(name, traces, exact=False, tolerance_us=0)
    check_idle(name, traces, exact=False)
    check_overlap(name, traces)


@pytest.mark.parametrize("name", ["hta_amd", "tl_h100_bert", "tl_h100_qwen"])
def test_fractional_traces_give_the_figures_of_hta_without_rounding(name):
    traces = traces_of(name)
    # HTA adds doubles of 1e12 us, whose distance is 0.0002 us
    check_temporal(name, traces, exact=True, tolerance_us=0.02)
    check_idle(name, traces, exact=True)
    check_overlap(name, traces)


def quarters(times_ns: np.ndarray) -> np.ndarray:
    """The nearest quarters of a microsecond, halves to the even one, as doubles hold them.

    In whole numbers: a double of nanoseconds since 1970 is off by up to 128 itself.
    """
    quarter, rest = np.divmod(times_ns, 250)
    return (quarter + ((rest > 125) | ((rest == 125) & (quarter % 2 == 1)))) * 250


def as_hta_rounds(trace: Trace) -> Trace:
    """The same kernels and launches with starts rounded up and ends down to microseconds.

    Of times since 1970 a double holds quarters of a microsecond only; HTA rounds those.
    """
    hold = quarters if trace.base_unix_ns == 0 else np.asarray
    start = hold(trace.spans[:, 0])
    end = hold(start + trace.spans[:, 1] - trace.spans[:, 0])
    spans = np.stack([-(-start // 1000), end // 1000], axis=1) * 1000
    launched = -(-hold(trace.launch_ns) // 1000) * 1000
    return dataclasses.replace(trace, spans=spans, launch_ns=launched)


@pytest.mark.parametrize("name", ["hta_amd", "hta_ns_resolution", "tl_h100_bert"])
def test_the_difference_to_hta_rounding_is_the_rounding(name):
    traces = [as_hta_rounds(trace) for trace in traces_of(name)]
    check_temporal(name, traces, exact=False, tolerance_us=0)
    check_idle(name, traces, exact=False)


@pytest.mark.parametrize("name", SYNCED)
def test_where_hta_counts_waits_of_the_host_as_kernels_ours_do_not(name):
    # PR#149: HTA still counts cuda_sync events that name a stream; 'Stream Wait Event' as compute
    (trace,) = traces_of(name)
    path = next((DATA / "traces").glob(SETS[name]))
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    synced = [e for e in events if e.get("cat") == "cuda_sync" and "stream" in e["args"]]
    spans = np.array([(e["ts"] * 1000, (e["ts"] + e["dur"]) * 1000) for e in synced], np.int64)
    is_compute = np.array(["Sync" not in e["name"] for e in synced])
    everything = np.concatenate([trace.spans, spans])
    compute = np.concatenate([trace.of_class(0), spans[is_compute]])
    kernel_ns = everything[:, 1].max() - everything[:, 0].min()
    (row,) = reference(name, "temporal_breakdown")
    assert kernel_ns / 1000 == float(row["kernel_time(us)"])
    idle_ns = kernel_ns - intervals.length_ns(intervals.union(everything))
    assert idle_ns / 1000 == float(row["idle_time(us)"])
    assert intervals.length_ns(intervals.union(compute)) / 1000 == float(row["compute_time(us)"])
    found = breakdown(trace, drop_last_step=False)
    assert found is not None and found.num_kernels == len(trace.spans)


@pytest.mark.parametrize("name", ["tl_h100_bert", "tl_h100_qwen"])
def test_tracelens_tells_the_same_times(name):
    (trace,) = traces_of(name)
    path = next((DATA / "traces").glob(SETS[name].replace(".json.gz", ".gpu_timeline.csv")))
    with path.open(newline="") as opened:
        told = {row["type"]: float(row["time ms"]) for row in csv.DictReader(opened)}
    # TraceLens takes kernels whose launch is in the trace, and clearing memory as compute
    own = np.isin(trace.correlation, trace.launch_correlation) & (trace.correlation >= 0)
    spans = trace.spans[own]
    is_copy = np.array([trace.names[i].startswith("Memcpy") for i in trace.name_id[own]])
    compute_ns = intervals.length_ns(intervals.union(spans[~is_copy]))
    busy_ns = intervals.length_ns(intervals.union(spans))
    total_ns = int(spans[:, 1].max() - spans[:, 0].min())
    # it adds doubles of 1e12 us
    assert compute_ns / 1e6 == pytest.approx(told["computation_time"], abs=2e-5)
    assert busy_ns / 1e6 == pytest.approx(told["busy_time"], abs=2e-5)
    assert (total_ns - busy_ns) / 1e6 == pytest.approx(told["idle_time"], abs=2e-5)
