"""Dumps of torch's flight recorder are read without running them, and joined over ranks."""

import json
import pickle
import sys
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import landing
from analytics.errors import InputError
from analytics.kineto.flight_recorder import import_dumps, looks_like_dump, read_dump
from tests.analytics.landed import loaded, query

NOW = 1_796_047_200_000_000_000


def entry(sequence: int, created_ns: int, **changes):
    values = {
        "record_id": sequence, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence,
        "profiling_name": "nccl:all_reduce", "time_created_ns": NOW + created_ns,
        "time_discovered_started_ns": NOW + created_ns + 100,
        "time_discovered_completed_ns": NOW + created_ns + 900, "duration_ms": 0.0005,
        "input_sizes": ((3, 4),), "input_dtypes": ["Float"], "state": "completed",
        "is_p2p": False, "frames": [],
    }  # fmt: skip
    return values | changes


def dump(*entries):
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": list(entries),
    }


def write(path: Path, content) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def collectives(runs: Path) -> list[tuple[object, ...]]:
    (folder,) = landing.landed(runs)
    return duckdb.sql(
        f"""SELECT rank, collective, kind, arrived_unix_ns, last_arrived_unix_ns, last_rank,
        began_unix_ns, duration_s, sent_bytes
        FROM '{folder}/fact_collective.parquet' ORDER BY collective, rank"""
    ).fetchall()


def test_a_collective_is_known_on_every_rank_by_group_and_sequence(tmp_path):
    a = write(tmp_path / "nccl_trace_rank_0", dump(entry(1, 0), entry(2, 5000)))
    b = write(tmp_path / "nccl_trace_rank_1", dump(entry(1, 300), entry(3, 9000)))
    about = import_dumps([a, b], tmp_path / "runs")
    assert (about.num_read, about.num_loaded, about.num_rejected) == (4, 4, 0)
    assert collectives(tmp_path / "runs") == [
        (0, 0, "all_reduce", NOW, NOW + 300, 1, NOW + 100, 5e-7, 48),
        (1, 0, "all_reduce", NOW + 300, NOW + 300, 1, NOW + 400, 5e-7, 48),
        (0, 1, "all_reduce", NOW + 5000, None, None, NOW + 5100, 5e-7, 48),
        (1, 2, "all_reduce", NOW + 9000, None, None, NOW + 9100, 5e-7, 48),
    ]
    assert import_dumps([b, a], tmp_path / "runs") == about


@pytest.mark.parametrize(
    ("ranks", "groups", "size"),
    [
        ("[0, 1]", [("0", "default_pg")], 2),
        ("[0, 1]", [("0", "default_pg"), ("1", "other")], None),  # which of the two is it?
        ("[2, 3]", [("0", "default_pg")], None),
        ("[0, 1]", [("7", "other")], None),
        ("[]", [("0", "default_pg")], None),
        (7, [()], None),
    ],
)
def test_a_group_without_a_name_is_the_default_one_where_it_can_be(tmp_path, ranks, groups, size):
    content = dump(*(entry(n, n, process_group=group) for n, group in enumerate(groups)))
    content["pg_config"] = {"": {"name": "", "desc": "", "ranks": ranks}}
    told = read_dump(write(tmp_path / "r0", content))
    assert told.group_sizes.get("0") == size and told.group_sizes.get("1") is None


def test_json_says_the_same_as_the_pickle(tmp_path):
    content = dump(entry(1, 0), entry(2, 10, duration_ms=None))
    told = read_dump(write(tmp_path / "trace_3", content))
    (tmp_path / "trace_3.json").write_text(json.dumps(content))
    as_json = read_dump(tmp_path / "trace_3.json")
    assert (told.rank, told.entries) == (3, as_json.entries)
    assert told.entries[1].duration_ns == 800
    assert looks_like_dump(tmp_path / "trace_3") and looks_like_dump(tmp_path / "trace_3.json")


HUNG = {
    "state": "scheduled", "duration_ms": None, "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
}  # fmt: skip


def test_what_is_no_whole_entry_is_kept_as_a_reject(tmp_path):
    told = read_dump(write(tmp_path / "r0", dump(5, {"a": [entry(1, 0)]}, entry(2, 1))))
    assert [(line, reason) for line, reason, _ in told.rejects] == [
        (1, "not_an_entry"), (2, "incomplete"),
    ]  # fmt: skip
    assert len(told.entries) == 1


@pytest.mark.parametrize(
    "end",
    [
        HUNG,
        {**HUNG, "state": "started", "time_discovered_started_ns": NOW + 7000},
        {**HUNG, "state": "completed", "retired": True},
        {"duration_ms": None, "time_discovered_completed_ns": NOW},  # before it began
        {"duration_ms": -1, "time_discovered_completed_ns": "x"},
        {"duration_ms": float("nan"), "time_discovered_completed_ns": True},
    ],
)
def test_an_arrival_whose_end_is_not_recorded_is_loaded_without_a_length(tmp_path, end):
    """The rank that a hang waits for is told by the arrivals of the others."""
    a = write(tmp_path / "r0", dump(entry(1, 0), entry(2, 5000, **end)))
    b = write(tmp_path / "r1", dump(entry(1, 300), entry(2, 6000, **end)))
    about = import_dumps([a, b], tmp_path / "runs")
    assert (about.num_read, about.num_loaded, about.num_rejected) == (4, 4, 0)
    told = [(row[0], row[3] - NOW, row[4] - NOW, row[5], row[7])
            for row in collectives(tmp_path / "runs")]  # fmt: skip
    assert told == [
        (0, 0, 300, 1, 5e-7), (1, 300, 300, 1, 5e-7), (0, 5000, 6000, 1, None),
        (1, 6000, 6000, 1, None),
    ]  # fmt: skip


def test_sums_skip_collectives_whose_end_is_not_recorded(tmp_path):
    timed = [entry(1, 0), entry(2, 2000, **HUNG)]
    never = [entry(n, n, profiling_name="nccl:broadcast", **HUNG) for n in (3, 4)]
    import_dumps([write(tmp_path / "r0", dump(*timed, *never))], tmp_path / "runs")
    loaded(tmp_path / "runs")
    rows = query(
        tmp_path / "runs",
        "SELECT kind, sum(num_rank_collectives), sum(num_timed), sum(collective_s), "
        "sum(exposed_s), sum(exposed_share) FROM collective_exposure GROUP BY kind ORDER BY kind",
    )
    assert rows == [("all_reduce", 2, 1, 5e-7, None, None), ("broadcast", 2, 0, None, None, None)]


def test_entries_of_one_sequence_are_all_kept(tmp_path):
    paths = []
    for rank in (0, 1):  # launched as one group: torch gives them one number
        (tmp_path / f"node{rank}").mkdir()
        content = dump(entry(1, rank), entry(1, 50 + rank), entry(2, 5000), 7) | {"rank": rank}
        paths.append(write(tmp_path / f"node{rank}" / f"dump_{rank}", content))
    about = import_dumps(paths, tmp_path / "runs")
    assert (about.num_read, about.num_loaded, about.num_rejected) == (8, 6, 2)
    rows = [(rank, place, arrived - NOW, last) for rank, place, _, arrived, _, last, *_
            in collectives(tmp_path / "runs")]  # fmt: skip
    assert rows == [(0, 0, 0, 1), (1, 0, 1, 1), (0, 1, 50, 1), (1, 1, 51, 1),
                    (0, 2, 5000, 0), (1, 2, 5000, 0)]  # fmt: skip


class Harmful:
    def __reduce__(self):
        return sys.exit, (77,)


@pytest.mark.parametrize("harmful", [Harmful(), sys.exit, Harmful, {1: {2, 3}}])
def test_a_pickle_that_is_more_than_values_is_refused_unrun(tmp_path, harmful):
    path = write(tmp_path / "r0", {"version": "2", "entries": [harmful]})
    with pytest.raises(InputError, match="plain values"):
        read_dump(path)


def test_a_pickle_that_asks_for_memory_it_cannot_fill_is_refused(tmp_path):
    (tmp_path / "r0").write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    with pytest.raises(InputError, match="more memory"):
        read_dump(tmp_path / "r0")


def test_a_pickle_that_holds_itself_is_read(tmp_path):
    content = dump(entry(1, 0))
    content["entries"] += [content, {"time_created_ns": content}]
    assert len(read_dump(write(tmp_path / "r0", content)).rejects) == 2


SOUND = pickle.dumps(dump(entry(1, 0)), protocol=2)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.integers(0, len(SOUND)).map(lambda n: SOUND[:n]),
        st.tuples(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=3)).map(
            lambda cut: SOUND[: cut[0]] + cut[1] + SOUND[cut[0] + 1 :]
        ),
    )
)
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "trace_0"
    path.write_bytes(content)
    looks_like_dump(path)
    try:
        read_dump(path)
    except InputError as error:
        assert "trace_0" in str(error)
