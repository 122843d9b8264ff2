"""A trace read by its lines says what the same trace says when it is parsed, or is parsed."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.errors import InputError
from analytics.kineto import events
from analytics.kineto.lines import scan
from analytics.kineto.reading import Trace, read

DATA = Path(os.environ.get("SEQSCALE_TEST_DATA", "")) / "traces"
OPEN = (
    "hta/amd_trace/*.gz", "hta/cpu_only/*.gz", "hta/critical_path/alexnet/*.gz",
    "hta/ns_resolution_trace/*.gz", "hta/triton_example/*.gz", "kineto_tb/gpu_metrics_input.json",
    "param/dlrm_kineto_8rank/worker[03]*.json", "tracelens/*bert*.json.gz",
)  # fmt: skip


def by_lines_and_parsed(path: Path) -> list[list[Trace] | InputError]:
    """The traces of a file as they are read, and with every event parsed."""
    found: list[list[Trace] | InputError] = []
    cut_by_lines = events._cut_by_lines
    for cut in (cut_by_lines, lambda text: None):
        events._cut_by_lines = cut
        try:
            found.append(list(read(path)))
        except InputError as error:
            found.append(error)
        finally:
            events._cut_by_lines = cut_by_lines
    return found


def numbered(ids: list[int]) -> list[int]:
    """Ids by their order: what number a thread gets does not matter."""
    order = {one: place for place, one in enumerate(dict.fromkeys(ids))}
    return [order[one] for one in ids]


def said(trace: Trace) -> dict[str, object]:
    """All that a trace says, in plain values."""
    found = {
        field.name: value.tolist() if isinstance(value, np.ndarray) else value
        for field in dataclasses.fields(trace)
        for value in [getattr(trace, field.name)]
    }
    threads = [*found["launch_thread"], *(mark.thread for mark in trace.marks)]
    found["launch_thread"] = numbered(threads)
    found["marks"] = [dataclasses.replace(mark, thread=0) for mark in trace.marks]
    return found


@pytest.mark.skipif(not DATA.is_dir(), reason="SEQSCALE_TEST_DATA names no folder with traces")
@pytest.mark.parametrize("pattern", OPEN)
def test_open_traces_say_the_same_by_their_lines(pattern):
    paths = list(DATA.glob(pattern))
    assert paths
    for path in paths:
        fast, slow = by_lines_and_parsed(path)
        assert [said(trace) for trace in fast] == [said(trace) for trace in slow]


def lines_of(event: dict, *, old: bool = False) -> str:
    """An event as Kineto writes it."""
    head = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("ph", "cat"))
    rest = ", ".join(f'"{key}": {json.dumps(event[key])}' for key in ("name", "pid", "tid"))
    between = ", \n    " if old else ", "
    times = f'"ts": {event["ts"]}, "dur": {event["dur"]}'
    args = ",\n      ".join(
        f"{json.dumps(key)}: {json.dumps(arg)}" for key, arg in event["args"].items()
    )
    return (
        f"  {{\n    {head}{between}{rest},\n    {times},\n"
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


FLOW = '  {\n    "ph": "f", "id": 7, "pid": 0, "tid": 7, "ts": 2,\n    "cat": "ac2g"\n  }'
META = (
    '  {\n    "name": "process_name", "ph": "M", "ts": 1, "pid": 0, "tid": 0,\n    "args": {}\n  }'
)


def text_of(found: list[str]) -> str:
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + ",\n".join(found) + "\n  ]\n}"


def is_by_lines(text: str) -> bool:
    inside = text.partition("[")[2].encode()
    end = inside.rfind(b"\n  },\n") + 4
    return scan(inside, end) is not None


NAMES = st.one_of(
    st.sampled_from(
        ["gemm", "ncclKernel_AllReduce", "ProfilerStep#3", "nccl:all_reduce", "cudaLaunchKernel",
         'odd", "ts": 5', "a\n  },\n  {\n", "enumerate(DataLoader)#x.__next__", "aten::mm"]
    ),
    st.text(max_size=12),
)  # fmt: skip
CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "cuda_sync",
    "user_annotation", "gpu_user_annotation", "python_function", "Kernel", "Operator", "x",
)  # fmt: skip
WHOLE = st.integers(0, 2**43).map(str)
POINTED = st.tuples(st.integers(0, 2**43), st.integers(0, 999)).map(lambda t: f"{t[0]}.{t[1]:03d}")
ARGS = st.dictionaries(
    st.sampled_from(
        ["stream", "device", "correlation", "blocks per SM", "est. achieved occupancy %", "Seq",
         "Collective name", 'a "correlation', "dtype"]
    ),
    st.one_of(
        st.integers(-5, 50), st.floats(0, 3), st.text(max_size=5), st.just("7"), st.just(2**70),
        st.just({"correlation": 9}), st.just(['{"correlation": 8}']), st.none(),
    ),
    max_size=5,
)  # fmt: skip


def an_event(times):
    return st.builds(
        lambda cat, name, pid, tid, ts, dur, args, old: lines_of(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
             "args": args}, old=old,
        ),
        st.sampled_from(CATEGORIES), NAMES, st.integers(0, 3), st.sampled_from([1, 2, "2", "s 7"]),
        times, times, ARGS, st.booleans(),
    )  # fmt: skip


A_TRACE = st.sampled_from([WHOLE, POINTED]).flatmap(
    lambda times: st.lists(
        st.one_of(an_event(times), an_event(times), st.just(FLOW), st.just(META)),
        min_size=2, max_size=12,
    )
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(A_TRACE)
def test_any_events_say_the_same_by_their_lines(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("trace") / "rank0.json"
    text = text_of(found)
    path.write_text(text)
    assert is_by_lines(text)
    fast, slow = by_lines_and_parsed(path)
    if isinstance(slow, InputError):  # nothing in it has a time
        assert isinstance(fast, InputError)
    else:
        assert [said(trace) for trace in fast] == [said(trace) for trace in slow]


@settings(max_examples=300, deadline=None)
@given(A_TRACE, st.data())
def test_broken_lines_are_read_or_refused(tmp_path_factory, found, data):
    content = bytearray(text_of(found).encode())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.mktemp("trace") / "rank0.json"
    path.write_bytes(content)
    fast, slow = by_lines_and_parsed(path)
    if isinstance(fast, InputError):
        assert "rank0.json" in str(fast)
        assert isinstance(slow, InputError)  # what can be parsed is never refused


GEMM = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2,
        "args": {"stream": 7, "correlation": 3}}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"ts": -1}, {"ts": "1.5"}, {"dur": "0.25"}, {"ts": '"1"'}, {"ts": 2**60}, {"ts": "1e3"},
        {"ts": "NaN"}, {"dur": 10**30},
    ],
)  # fmt: skip
def test_times_in_other_forms_are_left_to_the_parser(tmp_path, changed):
    text = text_of([lines_of(GEMM), lines_of(GEMM | changed), lines_of(GEMM)])
    assert not is_by_lines(text)
    (tmp_path / "rank0.json").write_text(text)
    fast, slow = by_lines_and_parsed(tmp_path / "rank0.json")
    assert [said(trace) for trace in fast] == [said(trace) for trace in slow]


def test_a_trace_by_lines_reads_the_same_however_it_is_cut(tmp_path, monkeypatch):
    found = [
        lines_of(GEMM | {"ts": i, "args": {"stream": 7, "correlation": i}}) for i in range(300)
    ]
    path = tmp_path / "rank0.json"
    path.write_text(text_of(found))
    whole = said(next(read(path)))
    assert len(whole["spans"]) == whole["num_read"] == 300
    monkeypatch.setattr("analytics.kineto.collecting._MOST_HEADS", 0)
    for size in (400, 1000, 5000):
        monkeypatch.setattr(events, "PIECE_BYTES", size)
        monkeypatch.setattr("analytics.kineto.files.BLOCK_BYTES", 300)
        assert said(next(read(path))) == whole


def test_json_that_is_broken_in_what_is_needed_is_refused(tmp_path):
    broken = lines_of(GEMM).replace('"stream": 7', '"stream": ,')
    (tmp_path / "rank0.json").write_text(text_of([lines_of(GEMM), broken, lines_of(GEMM)]))
    with pytest.raises(InputError, match=r"rank0.json: the JSON of an event soon after .* broken"):
        next(read(tmp_path / "rank0.json"))


def event_text(
    *, cat="kernel", names='"name": "gemm"', ids='"pid": 0, "tid": 7', times='"ts": 10, "dur": 5',
    args='"args": {\n      "device": 0\n    }',
) -> str:  # fmt: skip
    return f'  {{\n    "ph": "X", "cat": "{cat}", {names}, {ids},\n    {times},\n    {args}\n  }}'


ODD = {
    "ids behind the times": {
        "args": '"pid": 0, "tid": 9,\n    "args": {\n      "device": 0\n    }'
    },
    "ids behind the arguments": {"args": '"args": {\n      "device": 0\n    },\n    "tid": 9'},
    "times told again": {"args": '"ts": 50, "dur": 1,\n    "args": {\n      "device": 0\n    }'},
    "an escaped category": {"cat": "ker\\u006eel"},
    "no start": {"times": '"ts": , "dur": 5'},
    "two durations": {"times": '"ts": 10, "dur": 5, "dur": 6'},
    "a name told twice": {"names": '"name": "g", "name": 5'},
}


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("place", [0, 1])
def test_an_odd_event_is_parsed_or_refused_wherever_it_stands(tmp_path, odd, place):
    found = [event_text(), event_text(times='"ts": 100, "dur": 5')]
    found.insert(place, event_text(**ODD[odd]))
    path = tmp_path / "rank0.json"
    path.write_text('{\n  "traceEvents": [\n' + ",\n".join(found) + "\n  ]\n}\n")
    fast, slow = by_lines_and_parsed(path)
    if isinstance(fast, InputError):
        assert isinstance(slow, InputError) or odd == "a name told twice"
    else:
        assert [said(trace) for trace in fast] == [said(trace) for trace in slow]


BARE = (
    '  {\n    "ph": "X", "cat": "cpu_op", "name": "mm", "pid": 1, "tid": 8,\n'
    '    "ts": 7, "dur": 30\n  }'
)
SOUND = text_of([event_text(), BARE, event_text(times='"ts": 50, "dur": 9'), BARE, META])
ARGUMENTS = '"args": {\n      "device": 0\n    }'  # what nobody asks for is not looked at


def places_outside_of_arguments() -> list[int]:
    inside = SOUND.replace(ARGUMENTS, "\0" * len(ARGUMENTS))
    return [at for at, sign in enumerate(inside) if sign != "\0"]


def broken_everywhere():
    """The sound trace with one byte taken out, doubled, or replaced, at every place."""
    for at in places_outside_of_arguments():
        sign = SOUND[at]
        for new in ("", 2 * sign, *(set('0,"} \n;') - {sign})):
            yield SOUND[:at] + new + SOUND[at + 1 :]


def test_one_wrong_byte_anywhere_is_read_as_json_has_it_or_refused(tmp_path):
    assert is_by_lines(SOUND)
    path, passed = tmp_path / "rank0.json", []
    for text in broken_everywhere():
        path.write_text(text)
        fast, slow = by_lines_and_parsed(path)
        try:
            json.loads(text)
        except json.JSONDecodeError:
            if not isinstance(fast, InputError):
                passed.append(text)
            continue
        assert not isinstance(fast, InputError) or isinstance(slow, InputError), text
        if not isinstance(fast, InputError):
            assert [said(trace) for trace in fast] == [said(trace) for trace in slow], text
    assert passed == []
