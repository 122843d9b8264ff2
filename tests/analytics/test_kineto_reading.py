"""What a trace may look like, and that it is read right or refused with a reason."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.errors import InputError
from analytics.kineto import events
from analytics.kineto.analysis import analyze, analyze_files, as_mapping
from analytics.kineto.importing import import_traces
from analytics.kineto.reading import Trace, looks_like_trace, read
from analytics.kineto.times import TextNeededError, exact_ns, to_ns
from analytics.landing import landed


def kernel(ts, dur, name="gemm", correlation=1, cat="kernel", **args):
    args = {"stream": 7, "device": 0, "correlation": correlation} | args
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def launch(ts, correlation=1, cat="cuda_runtime"):
    return {"ph": "X", "cat": cat, "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": ts,
            "dur": 1, "args": {"correlation": correlation}}  # fmt: skip


def write(path: Path, found, **about) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": found}))
    return path


def one(path: Path) -> Trace:
    (trace,) = read(path)
    return trace


def test_times_become_whole_nanoseconds_by_their_digits():
    assert to_ns([1, 2_000_000]).tolist() == [1000, 2_000_000_000]
    assert to_ns([4203669603187.439, 0.001]).tolist() == [4203669603187439, 1]
    assert exact_ns("1712195495984501.132") == 1712195495984501132
    assert exact_ns("-1.5") == -1500 and exact_ns("1e3") == 1_000_000
    with pytest.raises(TextNeededError):
        to_ns([1712195495984501.132])
    for wrong in ("", "x", "nan", "inf", "1e400", "9e99999999"):
        with pytest.raises(ValueError):
            exact_ns(wrong)


@given(st.integers(-(2**43) + 1, 2**43 - 1), st.integers(0, 999))
def test_a_double_below_101_days_tells_its_nanosecond(us, ns):
    text = f"{us}.{ns:03d}" if us >= 0 else f"-{-us}.{ns:03d}"
    assert to_ns([float(text)]).tolist() == [exact_ns(text)]


def test_fractional_times_since_1970_lose_no_digit(tmp_path):
    text = json.dumps({"traceEvents": [launch(1), kernel(1, 2)]})
    text = text.replace('"ts": 1,', '"ts": 1712195495984501.133,')
    path = tmp_path / "rank0.json"
    path.write_text(text.replace('"dur": 2', '"dur": 0.867'))
    assert one(path).spans.tolist() == [[1712195495984501133, 1712195495984502000]]


def test_durations_of_less_than_a_microsecond_stay_as_they_are(tmp_path):
    # HTA#317: its start is rounded up and its end down, which makes durations negative
    trace = one(write(tmp_path / "a.json", [kernel(1.4, 0.3), kernel(3, -2)]))
    assert trace.spans.tolist() == [[1400, 1700], [3000, 3000]]
    assert trace.num_clamped == 1


def test_waits_of_the_host_are_no_kernels(tmp_path):
    # HTA PR#149: cuda_sync events name a stream, as kernels do
    synced = kernel(5, 100, "Stream Sync", cat="cuda_sync")
    trace = one(write(tmp_path / "a.json", [kernel(1, 2), synced]))
    assert trace.spans.tolist() == [[1000, 3000]]


def test_every_kernel_on_any_stream_counts_as_busy(tmp_path):
    # HTA#241: non-compute was told as 0.2 % where the trace shows 9 %
    found = [kernel(0, 10), kernel(5, 10, "ncclKernel_AllReduce", 2, stream=8)]
    found += [launch(0), launch(0, 2)]
    (rank,) = as_mapping(analyze_files([write(tmp_path / "a.json", found)]))["ranks"]
    assert (rank["compute_us"], rank["non_compute_us"], rank["idle_us"]) == (10, 5, 0)
    assert rank["overlap_share"] == 0.5


def test_categories_of_before_are_read_like_those_of_today(tmp_path):
    today = [launch(1), kernel(2, 3), kernel(6, 1, "Memcpy HtoD", 2, cat="gpu_memcpy")]
    before = [launch(1, cat="Runtime"), kernel(2, 3, cat="Kernel", stream="7")]
    before += [kernel(6, 1, "Memcpy HtoD", 2, cat="Memcpy")]
    a, b = one(write(tmp_path / "a.json", today)), one(write(tmp_path / "b.json", before))
    assert a.spans.tolist() == b.spans.tolist()
    assert a.its_class.tolist() == b.its_class.tolist() == [0, 2]
    assert a.stream.tolist() == b.stream.tolist()


def test_bare_nan_and_broken_utf8_are_forgiven(tmp_path):
    text = json.dumps({"traceEvents": [kernel(1, 2, "odd", bandwidth=1.5)]}).encode()
    path = tmp_path / "a.json"
    path.write_bytes(text.replace(b"1.5", b"-nan").replace(b"odd", b"o\xffd"))
    assert one(path).names == ("o\ufffdd",)


def test_what_is_told_as_json_holds_no_nan(tmp_path):
    # bug report 16: a figure that is not there is null
    told = as_mapping(analyze_files([write(tmp_path / "a.json", [kernel(1, 2)])]))
    assert told["ranks"][0]["overlap_share"] is None
    json.dumps(told, allow_nan=False)


def test_broken_events_are_refused_one_by_one_with_their_place(tmp_path):
    found = [kernel(1, 2), 7, kernel(None, 1), {"ph": "X", "cat": "kernel"}, {"ph": "M"}]
    found += [kernel(True, 1), kernel("x", 1), kernel(1e300, 1), kernel(1, 1, name=[1])]
    trace = one(write(tmp_path / "a.json", found))
    assert [(line, reason) for line, reason, _ in trace.rejects] == [
        (2, "not_an_event"), (3, "bad_time"), (4, "incomplete"), (6, "bad_time"),
        (7, "bad_time"), (8, "bad_time"), (9, "incomplete"),
    ]  # fmt: skip
    assert trace.num_read == 9 and len(trace.spans) == 1


def test_a_trace_reads_the_same_however_it_is_cut(tmp_path, monkeypatch):
    found = [kernel(i, 1, correlation=i, nested=[{"ph": 1}, {"a": 2}]) for i in range(300)]
    whole = one(write(tmp_path / "a.json", found, distributedInfo={"rank": 3, "world_size": 4}))
    for size in (400, 1000, 5000):
        monkeypatch.setattr(events, "PIECE_BYTES", size)
        monkeypatch.setattr("analytics.kineto.files.BLOCK_BYTES", 300)
        cut = one(tmp_path / "a.json")
        assert np.array_equal(cut.spans, whole.spans) and cut.num_read == 300
        assert (cut.rank, cut.world_size) == (3, 4)


def test_the_forms_of_a_trace_are_told_by_their_content(tmp_path):
    text = json.dumps({"traceEvents": [kernel(1, 2)], "distributedInfo": {"rank": 5}}).encode()
    (tmp_path / "gz.json").write_bytes(gzip.compress(text))
    (tmp_path / "list.json").write_text(json.dumps([kernel(1, 2)]))
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        for name in ("rank0.json", "rank1.json", "readme.txt"):
            info = tarfile.TarInfo(name)
            content = json.dumps({"traceEvents": [kernel(1, 2)]}).encode()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert one(tmp_path / "gz.json").rank == 5
    assert one(tmp_path / "list.json").spans.tolist() == [[1000, 3000]]
    assert [trace.rank for trace in read(tmp_path / "all.tar.gz")] == [0, 1]
    assert all(looks_like_trace(tmp_path / n) for n in ("gz.json", "list.json", "all.tar.gz"))


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    ("info", "why"),
    [
        *(({"rank": rank, "world_size": 4}, r"rank of distributedInfo.*whole number from 0")
          for rank in (1e30, 2**31, 0.5, 1.0, -1, True, False, "one", "", "-1", [1], {})),
        *(({"rank": 0, "world_size": size}, r"world_size of distributedInfo.*whole number from 1")
          for size in (1e30, 0, -1, 1.5, True, "many", [2])),
        ({"rank": 4, "world_size": 4}, r"rank of distributedInfo is '4'; expected less than"),
        ([0, 4], r"distributedInfo is .* expected an object"),
        ("rank 0", r"distributedInfo is .* expected an object"),
    ],
)  # fmt: skip
def test_a_rank_that_cannot_be_is_refused_and_not_taken_for_rank_0(tmp_path, info, why, alone):
    paths = [write(tmp_path / "rank-1.json", [kernel(1, 2)], distributedInfo=info)]
    if not alone:
        paths.append(write(tmp_path / "rank-0.json", [kernel(1, 2)]))
    with pytest.raises(InputError, match=why):
        analyze_files(paths)


@pytest.mark.parametrize("info", [None, {}, {"rank": None, "world_size": None}])
def test_a_rank_that_is_untold_is_that_of_the_files_name(tmp_path, info):
    found = analyze_files([write(tmp_path / "rank-3.json", [kernel(1, 2)], distributedInfo=info)])
    assert [one.rank for one in found.ranks] == [3]


@pytest.mark.parametrize("rank", [2, "2"])
def test_a_rank_is_a_whole_number_or_its_digits(tmp_path, rank):
    about = {"distributedInfo": {"rank": rank, "world_size": 4}}
    trace = one(write(tmp_path / "rank-0.json", [kernel(1, 2)], **about))
    assert (trace.rank, trace.world_size) == (2, 4)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"{", "not whole JSON"),
        (b'{"traceEvents": [{"ph": "X"', "breaks off"),
        (b'{"traceEvents": []}', "no event with a time"),
        (b'{"traceEvents": {}}', "no list 'traceEvents'"),
        (b'{"nodes": [], "schema": "1"}', "execution trace"),
        (b"[[1, 2], [3, 4]]", "entries are no events"),
        (b"\x1f\x8bbroken", "broken"),
        (b'{"traceEvents": [' + b"[" * 5000, "broken"),
        (b'{"a": ' + b"[" * 100_000, "not whole JSON"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_what_it_is(tmp_path, content, why):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=why):
        one(path)


def test_a_small_file_cannot_fill_a_machine(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 5_000_000))
    with pytest.raises(InputError, match="max-trace-gib"):
        list(read(path, max_bytes=1_000_000))


def test_two_traces_of_one_rank_are_refused(tmp_path):
    for name, length in (("rank0.a.json", 2), ("rank0.b.json", 3)):
        write(tmp_path / name, [kernel(1, length)])
    with pytest.raises(InputError, match="both of rank 0"):
        analyze_files([tmp_path])


SOUND = json.dumps(
    {"traceEvents": [launch(0), kernel(1, 2), kernel(5, 1, "ncclKernel_AllReduce", 2)],
     "distributedInfo": {"rank": 0, "world_size": 2}}
).encode()  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, len(SOUND)).map(lambda n: SOUND[:n]),
        st.tuples(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=6)).map(
            lambda cut: SOUND[: cut[0]] + cut[1] + SOUND[cut[0] + 1 :]
        ),
        st.recursive(
            st.none() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                st.sampled_from(["ph", "cat", "ts", "dur", "name", "args", "traceEvents"]), inner
            ),
            max_leaves=12,
        ).map(lambda value: json.dumps(value).encode()),
    )
)  # fmt: skip
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "rank0.json"
    path.write_bytes(content)
    looks_like_trace(path)
    try:
        json.dumps(as_mapping(analyze(list(read(path)))), allow_nan=False)
    except InputError as error:
        assert "rank0.json" in str(error)


def test_one_trace_under_two_names_is_not_two_ranks(tmp_path):
    for name in ("rank0.json", "rank1.json"):
        write(tmp_path / name, [kernel(0, 5)])
    with pytest.raises(InputError, match=r"rank0.json and .*rank1.json are the same to the byte"):
        analyze_files([tmp_path])


def test_traces_that_tell_different_numbers_of_ranks_are_not_one_job(tmp_path):
    for rank, world_size in ((0, 2), (1, 8)):
        about = {"distributedInfo": {"rank": rank, "world_size": world_size}}
        write(tmp_path / f"rank{rank}.json", [kernel(0, 5)], **about)
    with pytest.raises(InputError, match=r"2 ranks .*8 ranks .*not of one job"):
        analyze_files([tmp_path])


IMPOSSIBLE = {
    "a base of 2116": ({"baseTimeNanoseconds": 2**62 - 1}, [kernel(1, 2), kernel(5, 2)]),
    "kernels of 71 years": ({}, [kernel(i, 2**51) for i in range(3)]),
    "178 years between two": ({}, [kernel(-(2**51) - 2**50, 2), kernel(2**51 + 2**50, 2)]),
    "an end after 2112": ({"baseTimeNanoseconds": 2**61}, [kernel(2**51, 2**51)]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", list(IMPOSSIBLE))
@pytest.mark.parametrize("is_stored", [False, True])
def test_times_that_cannot_be_are_refused_and_nothing_is_landed(tmp_path, odd, is_stored):
    about, found = IMPOSSIBLE[odd]
    path = write(tmp_path / "rank0.json", found, **about)
    with pytest.raises(InputError, match=r"rank0.json: its events begin .* which cannot be"):
        import_traces([path], tmp_path / "runs") if is_stored else analyze_files([path])
    assert landed(tmp_path / "runs") == []


@pytest.mark.filterwarnings("error")
@given(
    st.integers(0, 2**62), st.lists(
        st.tuples(st.integers(-(2**52) + 1, 2**52 - 1), st.integers(0, 2**52 - 1)),
        min_size=1, max_size=4,
    ),
)  # fmt: skip
def test_no_time_overflows_a_sum(tmp_path_factory, base, times):
    path = tmp_path_factory.mktemp("trace") / "rank0.json"
    write(path, [kernel(*time) for time in times], baseTimeNanoseconds=base)
    try:
        (rank,) = as_mapping(analyze_files([path]))["ranks"]
    except InputError:
        return
    total_s = sum(row["total_s"] for row in rank["kernel_families"])
    assert total_s == pytest.approx(sum(dur for _, dur in times) / 1e6)
    assert rank["busy_s"] >= 0 and rank["window_s"] >= 0
