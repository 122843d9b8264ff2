"""Parts of a step: worked out on paper, and summing to the window whatever ran."""

import json

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import landing
from analytics.kineto import files, intervals
from analytics.kineto.analysis import Analysis, analyze, as_mapping
from analytics.kineto.importing import import_traces
from analytics.kineto.kernels import FAMILIES, collective_kind, kernel_class, kernel_family
from analytics.kineto.parts import PARTS
from analytics.kineto.reading import Trace, read_source
from tests.analytics.test_kineto_reading import kernel, launch, write


def trace(found, *, rank=0, world_size=None, base=0, devices=1) -> Trace:
    about = {"traceEvents": found, "baseTimeNanoseconds": base}
    about["deviceProperties"] = [{"name": "paper"}] * devices
    about["distributedInfo"] = {"rank": rank} | ({"world_size": world_size} if world_size else {})
    return read_source(files.Source(f"rank{rank}.json", iter([json.dumps(about).encode()])))


def note(name, ts, dur, tid=1):
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": tid, "ts": ts,
            "dur": dur, "args": {}}  # fmt: skip


def parts_us(found: Analysis, rank: int = 0, window: int = 0) -> dict[str, float]:
    row = found.ranks[rank].found.part_ns[window].tolist()
    return {name: ns / 1000 for name, ns in zip(PARTS, row, strict=True) if ns}


def test_each_moment_goes_to_the_first_part_that_fits():
    found = [
        note("ProfilerStep#7", 0, 200),
        note("enumerate(DataLoader)#_Iter.__next__", 0, 20),
        kernel(40, 20, correlation=1), launch(30, 1),         # idle 0-20 data, 20-40 late launch
        kernel(50, 30, "ncclKernel_AllReduce", 2, stream=8),  # 50-60 under compute, 60-80 alone
        launch(31, 2),
        kernel(70, 20, "Memcpy DtoH", 3, cat="gpu_memcpy"), launch(32, 3),  # 80-90 alone
        kernel(95, 5, correlation=4), launch(33, 4),          # 90-95 a short gap
        kernel(150, 10, correlation=5), launch(34, 5),        # 100-150 launched long ago: left over
    ]  # fmt: skip
    told = analyze([trace(found)])
    assert told.ranks[0].tiles.steps == (7,)
    assert parts_us(told) == {
        "busy": 35, "exposed_comm": 20, "exposed_copy": 10, "data_wait": 20, "host_wait": 20,
        "kernel_gap": 5, "unattributed": 50 + 40,
    }  # fmt: skip
    rank = as_mapping(told)["ranks"][0]
    assert rank["straggler_wait_s"] is None and rank["exposed_comm_s"] is None
    assert rank["exposed_comm_total_s"] == pytest.approx(20e-6)
    assert rank["window_overlap_share"] == pytest.approx(1 / 3)


def test_windows_tile_and_the_last_one_holds_what_it_launched():
    found = [note("ProfilerStep#3", 10, 20), note("ProfilerStep#4", 35, 10)]
    found += [launch(40, 1), kernel(44, 16)]
    (rank,) = analyze([trace(found)]).ranks
    assert rank.tiles.steps == (3, 4)
    assert rank.tiles.bounds_ns.tolist() == [10_000, 35_000, 60_000]


def test_a_trace_without_steps_is_one_window_with_the_host():
    found = [launch(5, 1), kernel(20, 10), {**note("aten::mm", 0, 50), "cat": "cpu_op"}]
    (rank,) = analyze([trace(found)]).ranks
    assert rank.tiles.bounds_ns.tolist() == [0, 50_000] and not rank.tiles.is_of_steps


def two_ranks(offset_us: int = 0, devices: int = 2) -> list[Trace]:
    """Rank 0 arrives at 10, rank 1 at 40; both end at 50 (rank 1's clock is ahead)."""
    made = []
    for rank, arrived in ((0, 10), (1, 40)):
        shift = offset_us if rank else 0
        found = [note("ProfilerStep#1", shift, 100), launch(shift + 1, 1)]
        found += [kernel(shift + arrived, 50 - arrived, "ncclKernel_AllReduce_RING", device=rank)]
        made.append(trace(found, rank=rank, world_size=2, devices=devices, base=10**18))
    return made


def test_a_rank_waits_until_the_last_one_arrives():
    told = analyze(two_ranks())
    assert parts_us(told, 0)["straggler_wait"] == 30 and parts_us(told, 0)["exposed_comm"] == 10
    assert "straggler_wait" not in parts_us(told, 1) and parts_us(told, 1)["exposed_comm"] == 10
    (first,), (second,) = (rank.collectives for rank in told.ranks)
    assert first.last_rank == second.last_rank == 1
    assert first.last_arrived_ns == 10**18 + 40_000


def test_clocks_of_several_hosts_are_aligned_where_collectives_end():
    told = analyze(two_ranks(offset_us=5000, devices=1))
    assert told.ranks[1].clock.offset_ns == 5_000_000
    assert parts_us(told, 0)["straggler_wait"] == 30
    assert told.ranks[1].collectives[0].last_arrived_ns == 10**18 + 5_040_000


def test_without_every_rank_the_wait_is_not_told_apart():
    told = analyze(two_ranks()[:1])
    assert not told.ranks[0].is_split
    assert parts_us(told)["exposed_comm"] == 40


def test_collectives_that_cannot_be_one_are_not_joined():
    first, second = two_ranks()
    late = trace(
        [
            note("ProfilerStep#1", 0, 900), launch(1, 1),
            kernel(800, 5, "ncclKernel_AllReduce_RING", device=1),
        ],
        rank=1, world_size=2, devices=2, base=10**18,
    )  # fmt: skip
    assert second.rank == late.rank
    assert not any(rank.is_split for rank in analyze([first, late]).ranks)


def test_on_the_host_alone_operators_are_work_and_collectives_communication():
    found = [note("ProfilerStep#1", 0, 100), note("gloo:all_reduce", 50, 30, tid=2)]
    found += [{**note("aten::mm", 10, 45), "cat": "cpu_op"}]
    told = analyze([trace(found, world_size=2)])
    assert parts_us(told) == {"busy": 45, "exposed_comm": 25, "unattributed": 30}
    rank = as_mapping(told)["ranks"][0]
    assert rank["host_wait_s"] is None and rank["kernel_gap_s"] is None
    assert rank["idle_us"] is None


times = st.integers(0, 400)
device_events = st.builds(
    lambda ts, dur, kind, correlation, stream: kernel(
        ts, dur, "ncclKernel_AllReduce" if kind == "comm" else "gemm", correlation,
        cat="gpu_memcpy" if kind == "copy" else "kernel", stream=stream,
    ),
    times, times, st.sampled_from(["compute", "comm", "copy"]), st.integers(-1, 6),
    st.integers(0, 2),
)  # fmt: skip
host_events = st.one_of(
    st.builds(launch, times, st.integers(0, 6)),
    st.builds(
        lambda n, ts, dur: note(f"ProfilerStep#{n}", ts, dur), st.integers(0, 3), times, times
    ),
    st.builds(lambda ts, dur: note("enumerate(DataLoader)#x", ts, dur), times, times),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(device_events, min_size=1, max_size=12), st.lists(host_events, max_size=8))
def test_parts_sum_to_the_window_to_the_nanosecond(device, host):
    for rank in analyze([trace(device + host, world_size=1)]).ranks:
        lengths = np.diff(rank.tiles.bounds_ns)
        assert rank.found.part_ns.sum(axis=1).tolist() == lengths.tolist()
        assert (rank.found.part_ns >= 0).all()
        assert (rank.found.overlapped_comm_ns <= rank.found.comm_ns).all()


spans = st.lists(st.tuples(times, times), max_size=8).map(
    lambda found: np.array(found, np.int64).reshape(-1, 2)
)


@given(spans, spans)
def test_sets_of_time_are_what_their_moments_say(ones, others):
    a, b = intervals.union(ones), intervals.union(others)
    moments = np.arange(400)
    inside = [
        np.array([any(s <= t < e for s, e in found.tolist()) for t in moments])
        for found in (ones, others)
    ]
    assert intervals.covers(a, moments).tolist() == inside[0].tolist()
    both = intervals.covers(intervals.overlap(a, b), moments)
    assert both.tolist() == (inside[0] & inside[1]).tolist()
    only = intervals.covers(intervals.without(a, b), moments)
    assert only.tolist() == (inside[0] & ~inside[1]).tolist()
    assert intervals.length_ns(a) == inside[0].sum()


def test_kernels_are_told_by_their_names():
    known = {
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "communication",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64>>": "attention",
        "ampere_sgemm_128x64_tn": "gemm",
        "Cijk_Ailk_Bjlk_SB": "gemm",
        "split_embedding_codegen_forward_unweighted_kernel": "embedding",
        "void multi_tensor_apply_kernel<AdamFunctor>": "optimizer",
        "vectorized_layer_norm_kernel": "normalisation",
        "void at::native::vectorized_elementwise_kernel<4, add>": "elementwise",
        "void at::native::reduce_kernel<512>": "reduction",
        "DeviceRadixSortOnesweepKernel": "sort",
        "my_own": "other",
    }
    told = {name: kernel_family(name, kernel_class(name)) for name in known}
    assert told == known and set(known.values()) <= set(FAMILIES)
    assert collective_kind("ncclDevKernel_ReduceScatter_Sum") == "reduce_scatter"
    assert collective_kind("nccl:all_to_all") == "all_to_all"


def test_a_trace_is_stored_once_however_often_it_is_imported(tmp_path):
    found = [note("ProfilerStep#1", 0, 100), launch(1, 1), kernel(10, 5), {"ph": "X", "cat": "a"}]
    path = write(tmp_path / "rank0.json", found, baseTimeNanoseconds=10**18)
    about = import_traces([path], tmp_path / "runs", device_hour_cost=2.0, currency="EUR")
    assert (about.num_read, about.num_loaded, about.num_rejected) == (4, 3, 1)
    again = import_traces([path], tmp_path / "runs")
    assert again == about and len(landing.landed(tmp_path / "runs")) == 1
    (folder,) = landing.landed(tmp_path / "runs")
    assert {p.stem for p in folder.glob("*.parquet")} == {
        "dim_run", "dim_rank", "fact_step", "fact_kernel_family", "fact_import_reject",
    }  # fmt: skip


def devices_of(runs_dir) -> list[tuple]:
    (folder,) = landing.landed(runs_dir)
    return duckdb.sql(
        f"SELECT rank, device_id FROM '{folder}/dim_rank.parquet' ORDER BY rank"
    ).fetchall()


@pytest.mark.parametrize(
    ("devices", "host", "told"),
    [
        ((0, 1), None, ["gpu-0", "gpu-1"]),
        ((0, 0), None, [None, None]),  # of two machines, or of one: nobody knows
        ((0, 0), "node-1", ["gpu-0", "gpu-0"]),
    ],
)
def test_ranks_of_unknown_hosts_are_not_put_on_one_device(tmp_path, devices, host, told):
    for rank, device in enumerate(devices):
        found = [note("ProfilerStep#1", 0, 100), launch(1, 1), kernel(10, 20, device=device)]
        write_rank(tmp_path / f"node{rank}", rank, found)
    import_traces([tmp_path / "node0", tmp_path / "node1"], tmp_path / "runs", host=host)
    assert [device_id for _, device_id in devices_of(tmp_path / "runs")] == told


def test_rejects_of_files_that_are_named_alike_are_all_kept(tmp_path):
    for rank in (0, 1):
        write_rank(tmp_path / f"node{rank}", rank, [note("ProfilerStep#1", rank, 100), 5])
    about = import_traces([tmp_path / "node0", tmp_path / "node1"], tmp_path / "runs")
    (folder,) = landing.landed(tmp_path / "runs")
    kept = duckdb.sql(f"SELECT count(*) FROM '{folder}/fact_import_reject.parquet'").fetchall()
    assert about.num_rejected == 2 and kept == [(2,)]


def test_an_untold_process_group_and_the_unnamed_one_are_counted_on(tmp_path):
    found = [note("ProfilerStep#1", 0, 100)]
    for number, (at, group) in enumerate([(10, {"Process Group Name": ""}), (20, {}), (30, {})]):
        found += [launch(at - 5, number), kernel(at, 5, "ncclKernel_AllReduce_RING", number)]
        found[-1]["args"] |= group
    write_rank(tmp_path / "one", 0, found)
    import_traces([tmp_path / "one"], tmp_path / "runs")
    (folder,) = landing.landed(tmp_path / "runs")
    kept = duckdb.sql(f"SELECT count(*) FROM '{folder}/fact_collective.parquet'").fetchall()
    assert kept == [(3,)]


def write_rank(folder, rank, found) -> None:
    folder.mkdir()
    about = {"traceEvents": found, "deviceProperties": [{"name": "paper"}]}
    about["distributedInfo"] = {"rank": rank}
    (folder / "trace.json").write_text(json.dumps(about))
