"""Every form of interactions yields the events that stand in it: ids as they came, times exact."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics.errors import ConfigError, InputError
from analytics.sources import times
from analytics.sources.columns import MISSING
from analytics.sources.scan import ReadingOptions
from tests.analytics.reading_scans import Opener

T = 1_700_000_000  # 14 November 2023
EVENTS = [("a", "x", T * 1_000_000), ("b", "y", (T + 1) * 1_000_000)]


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def events(opener: Opener, content: str | bytes, **options: Any) -> list[tuple[Any, ...]]:
    return opener.run(opener.text(content, **options), "user_id, item_id, event_time_us")


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (f"user,item,time\na,x,{T}\nb,y,{T + 1}\n", {}),
        (f"user,item,time\r\na,x,{T}\r\nb,y,{T + 1}", {}),
        (f"user,item,time\ra,x,{T}\rb,y,{T + 1}\r", {}),
        (f"user,item,time\r\na,x,{T}\nb,y,{T + 1}\r", {}),
        (f"\ufeffuserId\tmovieId\tts\na\tx\t{T}\nb\ty\t{T + 1}\n", {}),
        (f"\n  \n\nuser;item;title;time\na;x;\"k, l; m\";{T}\nb;y;n;{T + 1}\n", {}),
        (f"user item time\na x {T}\nb y {T + 1}\n", {}),
        (f"user::item::time\na::x::{T}\nb::y::{T + 1}\n", {}),
        (f"user|item|time\na|x|{T}\nb|y|{T + 1}\n", {}),
        (f"user%%item%%time\na%%x%%{T}\nb%%y%%{T + 1}\n", {"delimiter": "%%"}),
        (f"user\titem\ttitle\ttime\na\tx\t\"Best\" of\t{T}\nb\ty\t7\" disc\t{T + 1}\n", {}),
        (f"user_id:token\titem_id:token\ttimestamp:float\na\tx\t{T}\nb\ty\t{T + 1}\n", {}),
        (f"a,x,{T}\nb,y,{T + 1}\n", {}),
        (f"a::x::5::{T}\nb::y::1::{T + 1}\n", {}),
        ("a,2023-11-14T22:13:20.000Z,x\nb,2023-11-14T23:13:21+01:00,y\n", {}),
        (f"{T},a,x\n{T + 1},b,y\n", {}),
        (f"q,a,r,x,{T}\nq,b,r,y,{T + 1}\n", {"user": "2", "item": "4", "time": "5"}),
        (f"a,x,{T}\nb,y,{T + 1}\n".encode("utf-16"), {}),
        (f"user,item,time\na,x,{T}\nb,y,{T + 1}\n".encode("utf-16-be"), {"encoding": "utf-16-be"}),
        (b"\xfe\xff" + f"user,item,time\na,x,{T}\nb,y,{T + 1}\n".encode("utf-16-be"), {}),
        (gzip.compress(f"user,item,time\na,x,{T}\nb,y,{T + 1}\n".encode()), {}),
        (bz2.compress(f"user,item,time\na,x,{T}\nb,y,{T + 1}\n".encode()), {}),
        (lzma.compress(f"user,item,time\na,x,{T}\nb,y,{T + 1}\n".encode()), {}),
        (f'{{"user":"a","item":"x","ts":{T}}}\n{{"user":"b","ts":"{T + 1}","item":"y"}}\n', {}),
        (f'[{{"user":"a","item":"x","ts":{T}}},\n{{"user":"b","ts":{T + 1}.0,"item":"y"}}]', {}),
        (f'{{"user":"a",\n"item":"x","ts":{T}}}\n{{"user":"b","ts":{T + 1},"item":"y"}}\n', {}),
        (
            f'{{"session":"a","events":[{{"aid":"x","ts":{T}000}}]}}\n'
            '{"session":"n","events":[]}\n'
            f'{{"session":"b","events":[{{"aid":"y","ts":{T + 1}000}}]}}',
            {},
        ),
        (
            "user_id:token\titem_id_list:token_seq\ttimestamp_list:float_seq\n"
            f"a\tx\t{T}\nb\ty\t{T + 1}\n",
            {},
        ),
    ],
)  # fmt: skip
def test_the_same_events_in_every_form(
    opener: Opener, content: str | bytes, options: dict[str, str]
) -> None:
    assert events(opener, content, **options) == EVENTS


@pytest.mark.parametrize(
    "content",
    [
        "1 2 3\n\n4 5\n6 7 8\n9\n",
        "1,2,3\n4,5\n6,7,8\n",
        "1\t2 3\n4\t5\n6\t7 8\n",
        "1: 2, 3\n4: 5\n6: 7, 8\n",
        " 1  2\t3 \r\n4 5\r\n6 7 8\r\n",
    ],
)
def test_one_user_a_line_is_read_in_the_order_of_the_line(opener: Opener, content: str) -> None:
    scan = opener.text(content, "lists.txt")
    expected = [("1", "2"), ("1", "3"), ("4", "5"), ("6", "7"), ("6", "8")]
    assert opener.run(scan, "user_id, item_id") == expected
    assert not scan.has_time
    assert opener.run(scan, "DISTINCT event_time_us, typeof(event_time_us)") == [(0, "BIGINT")]
    assert scan.locate(1) == "line 1, event 2"
    assert scan.locate(4) == ("line 4, event 2" if "\n\n" in content else "line 3, event 2")


def test_sides_are_found_and_can_be_switched_off(opener: Opener) -> None:
    content = f"user,item,rating,event_type,time\na,x,4.5,buy,{T}\nb,y,,view,{T}\nc,z,good,,{T}\n"
    scan = opener.text(content)
    assert opener.run(scan, "rating, action") == [(4.5, "buy"), (None, "view"), (None, None)]
    # a cast of the caller must not reach into read_csv, where the first odd cell would end the scan
    assert opener.run(scan, "TRY_CAST(action AS INTEGER)") == [(None,)] * 3
    scan = opener.text(content, rating="none", action="none")
    assert opener.run(scan, "DISTINCT rating, action") == [(None, None)]
    assert (scan.decision["rating"], scan.decision["action"]) == ("none", "none")


def test_a_headerless_file_of_actions_is_understood(opener: Opener) -> None:
    lines = [f"{n % 9},{100 + n},{n % 4},{('pv', 'buy')[n % 2]},{T + n}" for n in range(40)]
    scan = opener.text("\n".join(lines))
    assert opener.run(scan)[1] == ("1", "101", (T + 1) * 1_000_000, "buy", None)
    assert scan.decision["time"] == "column 5 (by content)"


def test_words_for_a_missing_id_count_as_missing(opener: Opener) -> None:
    cells = ["NA", "NaN", "nan", "NULL", "null", "None", "\\N", '""', '"NA"', "", "NAN", "Nano"]
    content = "user,item,time\n" + "".join(f"{cell},x,{T}\n" for cell in cells)
    users = [user for (user,) in opener.run(opener.text(content), "user_id")]
    assert users == [None] * 10 + ["NAN", "Nano"]


@pytest.mark.parametrize(
    ("cells", "expected", "words"),
    [
        ([str(T)], [T * 10**6], "seconds"),
        ([f"{T}123"], [T * 10**6 + 123_000], "milliseconds"),
        ([f"{T}123456"], [T * 10**6 + 123_456], "microseconds"),
        ([f"{T}123456789"], [T * 10**6 + 123_456], "nanoseconds"),
        # a double of this size is good to 0.24 us
        (
            ["1396861869.277001", "1396861869.277002"],
            [1_396_861_869_277_001, 1_396_861_869_277_002],
            "seconds",
        ),
        (["8.81250949E8", "881250950.0"], [881_250_949_000_000, 881_250_950_000_000], "seconds"),
        (
            ["2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00Z", "2024/01/01 00:00:00.25"],
            [1_704_060_000_000_000, 1_704_067_200_000_000, 1_704_067_200_250_000],
            "ISO 8601",
        ),
        (["20240101", "20240102"], [1_704_067_200_000_000, 1_704_153_600_000_000], "days written"),
        (["-2", "-1"], [-2_000_000, -1_000_000], "seconds"),
        # the median decides, and what does not fit the unit cannot be read
        (["5", "6", "1_000", "0x5f", "inf", "9e18", "7"],
         [5_000_000, 6_000_000, None, None, None, None, 7_000_000], "seconds"),
        (["2024-01-01", "2024-01-02", "2024-01-03", "2024-13-01", "epoch", "1700000000"],
         [1_704_067_200_000_000, 1_704_153_600_000_000, 1_704_240_000_000_000, None, None, None],
         "ISO 8601"),
    ],
)  # fmt: skip
def test_times_are_exact_in_every_form(
    opener: Opener, cells: list[str], expected: list[int | None], words: str
) -> None:
    scan = opener.text("user,item,time\n" + "".join(f"a,x,{cell}\n" for cell in cells))
    assert [time for (time,) in opener.run(scan, "event_time_us")] == expected
    assert scan.decision["time_unit"].startswith(words)


def test_the_unit_can_be_told(opener: Opener) -> None:
    content = "user,item,time\na,x,5\na,y,20240131\n"
    assert events(opener, content, time_unit="ms")[0][2] == 5_000
    assert events(opener, content, time_unit="yyyymmdd")[1][2] == 1_706_659_200_000_000


def test_an_unreadable_time_is_named_with_its_line(opener: Opener) -> None:
    text = f'user,item,time\na,"line\nbreak",{T}\n\nb,y,soon\nc,z,\nd,w,{T}\ne,v,{T}\n'
    scan = opener.text(text)
    assert scan.time_cell(opener.connection, 1) == "'soon' in line 5"
    assert scan.time_cell(opener.connection, 2) == "an empty cell in line 6"


def test_file_order_is_kept_over_many_chunks(opener: Opener) -> None:
    num = 300_000
    scan = opener.text("user,item,time\n" + "".join(f"u,{row},{T}\n" for row in range(num)))
    opener.connection.execute(f"CREATE TABLE kept AS {scan.select}", scan.parameters)
    bad = opener.connection.execute(
        "SELECT count(*) FROM kept WHERE rowid <> CAST(item_id AS BIGINT)"
    ).fetchone()
    assert bad == (0,)


# token_seq rows


def test_of_rows_that_grow_without_times_the_longest_stands(opener: Opener) -> None:
    head = "user_id:token\titem_id_list:token_seq\titem_id:token\n"
    scan = opener.text(head + "u\t1\t2\nv\t8\t9\nu\t1 2\t3\n", "seq.inter")
    expected = [("v", "8"), ("v", "9"), ("u", "1"), ("u", "2"), ("u", "3")]
    assert opener.run(scan, "user_id, item_id") == expected
    with pytest.raises(InputError, match=r"the one in line 2 is not the start of the next"):
        opener.text(head + "u\t1\t2\nv\t8\t9\nu\t1 7\t3\n", "seq.inter")


# Parquet


def parquet(opener: Opener, query: str) -> Path:
    path = opener.folder / "events.parquet"
    opener.connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 9007199254740993 AS user_id, 'NA' AS item_id, 1700000000 AS ts",
         (9007199254740993, None, T * 10**6, None, None)),
        ("SELECT 1.0::DOUBLE AS user_id, 'x' AS item_id, 1396437466.94::DOUBLE AS ts, 5 AS rating",
         (1, "x", 1_396_437_466_940_000, None, 5.0)),
        ("SELECT 'u' AS user_id, 5::UBIGINT AS item_id, DATE '2024-01-31' AS ts",
         ("u", 5, 1_706_659_200_000_000, None, None)),
        ("SELECT 'u' AS user_id, 5 AS item_id, TIMESTAMP_NS '2024-01-31' AS ts",
         ("u", 5, 1_706_659_200_000_000, None, None)),
        ("SELECT 'u' AS user_id, 5 AS item_id, TIMESTAMPTZ '2024-01-31 02:00:00+02' AS ts",
         ("u", 5, 1_706_659_200_000_000, None, None)),
        ("SELECT 'u' AS user_id, [7] AS item_ids, [1700000000] AS timestamps",
         ("u", 7, T * 10**6, None, None)),
        ("SELECT 'u' AS user_id, [7] AS items", ("u", 7, 0, None, None)),
        ("SELECT 's' AS session, [{'aid': 7, 'ts': 1700000000000, 'type': 'buy'}] AS events",
         ("s", 7, T * 10**6, "buy", None)),
    ],
)  # fmt: skip
def test_parquet_keeps_types_instants_and_lists(
    opener: Opener, query: str, expected: tuple[Any, ...]
) -> None:
    assert opener.run(opener.one(parquet(opener, query))) == [expected]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1.5::DOUBLE AS user_id, 1 AS item_id, 1 AS ts", "1 values of column 'user_id'"),
        ("SELECT 9007199254740993::DOUBLE AS user_id, 1 AS item_id, 1 AS ts", "rounded already"),
        ("SELECT 1 AS user_id, {'a': 1} AS item_id, 1 AS ts", r"'item_id' holds STRUCT.*Unnest"),
        ("SELECT [1] AS user_id, 1 AS item_id, 1 AS ts", r"'user_id' holds INTEGER\[\]"),
        ("SELECT 1 AS user_id, 1 AS item_id, TIME '10:00:00' AS ts", "TIME, which is no instant"),
        ("SELECT 1 AS user_id, 1 AS item_id, 1 AS ts WHERE false", "holds no row"),
    ],
)
def test_parquet_that_cannot_be_used_says_why(opener: Opener, query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        opener.one(parquet(opener, query))


def test_columns_that_differ_in_case_only_can_each_be_named(opener: Opener) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = opener.folder / "case.parquet"
    columns = {"User": ["no"], "user": ["u"], "item": ["x"], "ts": [T]}
    pq.write_table(pa.table(columns), path)
    assert opener.run(opener.one(path, user="user"), "user_id") == [("u",)]
    assert opener.run(opener.one(path, user="User"), "user_id") == [("no",)]
    with pytest.raises(InputError, match="2 columns could be the user"):
        opener.one(path)


def test_names_that_look_like_sql_are_only_names(opener: Opener) -> None:
    odd = "'; DROP TABLE x; --"
    path = parquet(opener, f"""SELECT 'u' AS "us""er", 1 AS "{odd}", 1700000000 AS ts""")
    scan = opener.one(path, user='us"er', item=odd)
    assert opener.run(scan, "user_id, item_id") == [("u", 1)]
    line = json.dumps({odd: "u", "a/b~c": "x", "ts": T})
    scan = opener.text(line, "odd.jsonl", user=odd, item="a/b~c")
    assert opener.run(scan, "user_id, item_id") == [("u", "x")]


@pytest.mark.parametrize(
    "options",
    [{"format": "xml"}, {"time_unit": "h"}, {"delimiter": ""}, {"delimiter": "12345"},
     {"delimiter": '"'}, {"delimiter": "\n"}, {"encoding": "klingon"}, {"encoding": "hex"}],
)  # fmt: skip
def test_options_out_of_their_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--"):
        ReadingOptions(**options)


# laws

IDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=12
).filter(lambda text: text not in MISSING and not text.startswith("\ufeff"))
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=20))
def test_ids_of_any_script_come_back_as_they_were(
    opener: Opener, pairs: list[tuple[str, str]]
) -> None:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    csv = "user,item,time\n" + "".join(f"{cell(u)},{cell(i)},{T}\n" for u, i in pairs)
    assert opener.run(opener.text(csv), "user_id, item_id") == pairs
    lines = "".join(json.dumps({"user": u, "item": i, "ts": T}) + "\n" for u, i in pairs)
    assert opener.run(opener.text(lines, "e.jsonl"), "user_id, item_id") == pairs


@SETTINGS
@given(st.lists(st.integers(-(2**63), 2**64), min_size=1, max_size=10))
def test_whole_numbers_of_json_and_csv_are_never_rounded(opener: Opener, ids: list[int]) -> None:
    lines = "".join(json.dumps({"user": n, "item": n, "ts": T}) + "\n" for n in ids)
    found = opener.run(opener.text(lines, "n.jsonl"), "user_id, item_id")
    assert found == [(str(n), str(n)) for n in ids]
    csv = "user,item,time\n" + "".join(f"{n},{n},{T}\n" for n in ids)
    assert opener.run(opener.text(csv), "user_id, item_id") == found


def test_nothing_is_loaded_from_the_network(opener: Opener) -> None:
    before = duckdb.connect().execute("SELECT count(*) FROM duckdb_extensions() WHERE loaded")
    opener.run(opener.text(f"user,item,time\nü,x,{T}\n".encode("latin-1"), encoding="latin-1"))
    after = opener.connection.execute("SELECT count(*) FROM duckdb_extensions() WHERE loaded")
    assert before.fetchone() == after.fetchone()


def test_a_large_file_is_judged_by_its_head_and_by_more_when_that_is_unclear(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "_WHOLE_BYTES", 10)
    monkeypatch.setattr(times, "_SAMPLES", (3, 8))
    cells = ["soon", "later", str(T), *[str(T)] * 4, "1.5", "20240131", "1700000000123"]
    content = "user,item,time\n" + "".join(f"a,x,{cell}\n" for cell in cells)
    found = [time for (_, _, time) in events(opener, content)]
    # what the head did not show is still read exactly, in the unit of the head
    assert found[:8] == [None, None, *[T * 10**6] * 5, 1_500_000]
    assert found[8:] == [20_240_131 * 10**6, 1_700_000_000_123 * 10**6]
    with pytest.raises(InputError, match=r"8 of the first 8 values of column 'time'"):
        events(opener, "user,item,time\n" + "a,x,soon\n" * 9)
