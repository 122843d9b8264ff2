"""Files become sequences: order, ids, times and counts are exact."""

import dataclasses
import json
import os
import textwrap
import zipfile
from pathlib import Path

import duckdb
import numpy as np
import pytest

from analytics import workplace
from analytics.errors import InputError
from analytics.interactions import PreparedData, dataset_records, prepare
from analytics.preparation import Preparation
from analytics.prepared import published_rows
from analytics.rules import HistoryRules
from analytics.sources.options import ReadingOptions
from analytics.store import SPLIT_NAMES, open_store


def shared(name: str) -> Path:
    folder = os.environ.get("SEQSCALE_TEST_DATA")
    if not folder:  # files of others, for research use: the project does not carry them
        pytest.skip("SEQSCALE_TEST_DATA is not set; it names the folder of shared test data")
    return Path(folder) / name


def prepared(
    path: Path,
    *,
    min_history: int = 1,
    max_history: int = 10_000,
    drop_unparsable_times: bool = False,
    **columns: str,
) -> PreparedData:
    return prepare(
        path,
        path.parent / "stores",
        reading=ReadingOptions(**columns),  # type: ignore[arg-type]
        preparation=Preparation(
            history=HistoryRules(min_history=min_history, max_history=max_history),
            drop_unparsable_times=drop_unparsable_times,
        ),
    )


def from_text(tmp_path: Path, text: str, name: str = "events.csv", **options: int) -> PreparedData:
    path = tmp_path / name
    path.write_bytes(textwrap.dedent(text).lstrip().encode())
    return prepared(path, **options)  # type: ignore[arg-type]


def histories(data: PreparedData) -> dict[str, list[tuple[str, int]]]:
    """{user: [(item, time in us), ...]} as it lies in the store."""
    store = open_store(Path(data.store_dir))
    folder = Path(data.store_dir).as_posix()
    users = dict(
        duckdb.sql(f"SELECT user_index, user_id FROM '{folder}/user_map.parquet'").fetchall()
    )
    items = dict(
        duckdb.sql(f"SELECT item_index, item_id FROM '{folder}/item_map.parquet'").fetchall()
    )
    return {
        users[u]: [
            (items[int(store.items[at])], int(store.times[at]))
            for at in range(store.offsets[u], store.offsets[u + 1])
        ]
        for u in range(store.header.num_users)
    }


def times(data: PreparedData, user: str = "a") -> list[int]:
    return [time for _, time in histories(data)[user]]


def rules(data: PreparedData) -> dict[str, object]:
    return open_store(Path(data.store_dir)).header.rules


# values


def test_events_are_ordered_by_time_and_equal_times_by_the_file(tmp_path: Path) -> None:
    data = from_text(
        tmp_path,
        """
        user_id,item_id,timestamp
        a,x,30
        b,x,5
        a,y,10
        a,z,30
        a,w,10
        b,y,4
        """,
    )
    # a: y and w at 10 in file order, then x and z at 30; four of six events have a twin
    assert [item for item, _ in histories(data)["a"]] == ["y", "w", "x", "z"]
    assert [item for item, _ in histories(data)["b"]] == ["y", "x"]
    assert data.tied_share == pytest.approx(4 / 6)
    assert (data.min_length, data.median_length, data.max_length) == (2, 3.0, 4)
    assert (data.first_event_utc, data.last_event_utc) == (
        "1970-01-01T00:00:04Z",
        "1970-01-01T00:00:30Z",
    )


def test_file_order_is_kept_over_many_chunks_of_a_large_file(tmp_path: Path) -> None:
    # 150,000 rows are several row groups and, at 4 MB, several reading buffers; all times are
    # equal, so the order of the file is the only order there is
    num_rows, num_users = 150_000, 7
    path = tmp_path / "large.csv"
    lines = (f"user{row % num_users},item-number-{row},1000\n" for row in range(num_rows))
    path.write_text("user,item,time\n" + "".join(lines))
    data = prepared(path, max_history=num_rows)
    store = open_store(Path(data.store_dir))
    ids = dict(
        duckdb.sql(
            f"SELECT item_index, item_id FROM '{data.store_dir}/item_map.parquet'"
        ).fetchall()
    )
    rows = np.array([int(ids[i].removeprefix("item-number-")) for i in store.items.tolist()])
    for start, stop in zip(store.offsets[:-1], store.offsets[1:], strict=True):
        user = rows[start] % num_users
        np.testing.assert_array_equal(rows[start:stop], np.arange(user, num_rows, num_users))


def test_ids_stay_text_beyond_floats_and_beyond_ascii(tmp_path: Path) -> None:
    # 2^53 + 1 is the first whole number that a double cannot hold
    rows = [
        "user_id,item_id,timestamp",
        "9007199254740993,007,1",
        "9007199254740992,7,1",
        '"naïve, ""quoted"" ",ключ-🎵,1',
        "6f1c2a5e-8d5b-4b8e-9d57-0c7f6f6a4e11,7.0,1",
    ]
    data = from_text(tmp_path, "\n".join(rows))
    assert set(histories(data)) == {
        "9007199254740993",
        "9007199254740992",
        'naïve, "quoted" ',
        "6f1c2a5e-8d5b-4b8e-9d57-0c7f6f6a4e11",
    }
    assert {item for events in histories(data).values() for item, _ in events} == {
        "007",
        "7",
        "7.0",
        "ключ-🎵",
    }


@pytest.mark.parametrize(
    ("name", "head", "delimiter", "line_end", "mark"),
    [
        ("events.csv", "userId,movieId,rating,timestamp", ",", "\r\n", "\ufeff"),
        ("events.tsv", "uid\tsku\tprice\tts", "\t", "\n", "\ufeff"),
        ("events.dat", "SessionId;ItemId;x;Time", ";", "\r\n", ""),
        ("events.txt", "user|item|x|date", "|", "\r", ""),
        ("events.inter", "user_id:token\titem_id:token\tx:float\ttimestamp:float", "\t", "\n", ""),
    ],
)
def test_usual_headers_delimiters_and_line_ends_are_understood(
    tmp_path: Path, name: str, head: str, delimiter: str, line_end: str, mark: str
) -> None:
    rows = [delimiter.join(cells) for cells in (("a", "x", "4.5", "1"), ("b", "y", "", "2"))]
    path = tmp_path / name
    path.write_bytes((mark + line_end.join([head, *rows])).encode())
    assert histories(prepared(path)) == {"a": [("x", 1_000_000)], "b": [("y", 2_000_000)]}


def test_named_columns_win_over_usual_names(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("user_id,item_id,timestamp,who,what,when:float\nu,i,1,a,x,7\nu,i,1,b,y,8\n")
    data = prepared(path, user="who", item="what", time="when")
    assert histories(data) == {"a": [("x", 7_000_000)], "b": [("y", 8_000_000)]}


def test_a_name_with_wildcards_is_one_file(tmp_path: Path) -> None:
    data = from_text(tmp_path, "user,item,time\na,x,1\nb,y,2\n", name="own[1]*.csv")
    assert data.num_rows_read == 2


def test_every_dropped_row_has_one_reason(tmp_path: Path) -> None:
    data = from_text(
        tmp_path,
        """
        user_id,item_id,timestamp
        a,old,1
        ,x,2
        a,,3
        ,,bad
        a,x,soon

        a,y,4
        a,z,5
        a,gone,
        b,x,6
        b,y,7
        short,x,9
        """,
        min_history=2,
        max_history=2,
        drop_unparsable_times=True,
    )
    # line 8 of the text counts the blank line, so 'soon' stands in line 6
    assert data.num_rows_read == 11
    assert {reason: n for reason, n in data.dropped_rows.items() if n} == {
        "missing_user": 2,
        "missing_item": 1,
        "unparsable_time": 2,
        "user_too_short": 1,
        "beyond_max_history": 1,  # a's oldest
    }
    assert data.num_rows_kept == 4 == 11 - sum(data.dropped_rows.values())
    assert histories(data) == {
        "a": [("y", 4_000_000), ("z", 5_000_000)],
        "b": [("x", 6_000_000), ("y", 7_000_000)],
    }
    assert data.num_items == 3  # 'old' is gone, and its number with it
    assert sorted(set(open_store(Path(data.store_dir)).items.tolist())) == [0, 1, 2]


@pytest.mark.parametrize(
    "kind", ["TIMESTAMPTZ", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMP_S", "DATE"]
)
def test_typed_times_of_a_parquet_file_keep_their_instant(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "events.parquet"
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.execute(
        f"COPY (SELECT u, i, ('2024-01-31 00:00:00'::TIMESTAMP + INTERVAL (i) DAY)::{kind} AS time "
        f"FROM range(2) AS users(u), range(3) AS items(i)) TO '{path}' (FORMAT parquet)"
    )
    data = prepared(path, user="u", item="i", time="time")
    first = 1_706_659_200_000_000  # 31 January 2024, midnight UTC
    assert [time for _, time in histories(data)["0"]] == [
        first + d * 86_400_000_000 for d in range(3)
    ]


def test_nanoseconds_with_a_zone_keep_their_instant(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "events.parquet"
    ns = [1_706_659_200_000_000_000 + n for n in (0, 1_000, 2_000)] * 2
    times = pa.array(ns, type=pa.timestamp("ns", tz="Europe/Madrid"))
    parquet.write_table(pa.table({"user": [*"aaabbb"], "item": [*"xyzxyz"], "time": times}), path)
    assert [time for _, time in histories(prepared(path))["a"]] == [
        1_706_659_200_000_000 + n for n in range(3)
    ]


def test_a_file_with_an_unparsable_time_is_refused_unless_told_to_drop_it(tmp_path: Path) -> None:
    lines = [f"{user},{item},{item}" for user in "ab" for item in range(1, 6)]
    text = "\n".join(["user,item,time", *lines[:4], "a,6,soon", *lines[4:], "b,7,", ""])
    # header 1, four rows 2-5, so the first of the two bad ones is line 6
    with pytest.raises(InputError, match=r"2 of 12 values .* the first is 'soon' in line 6"):
        from_text(tmp_path, text)
    data = from_text(tmp_path, text, drop_unparsable_times=True)
    assert (data.num_rows_read, data.num_rows_kept) == (12, 10)
    assert data.dropped_rows["unparsable_time"] == 2


def test_records_of_a_set_say_what_was_read_kept_and_dropped(tmp_path: Path) -> None:
    data = from_text(tmp_path, "user,item,time\na,x,1\nb,y,2\n,z,3\n")
    dataset, *dropped = dataset_records(data, min_group_users=1)
    assert (dataset.num_rows_read, dataset.num_rows_kept, dataset.num_users) == (3, 2, 2)
    told = {record.reason: record.num_rows for record in dropped}
    assert told | {"forgotten": 0} == data.dropped_rows
    # nothing is told of a reason that fewer than the minimum group may stand behind, nor by a sum
    dataset, *dropped = dataset_records(data, min_group_users=2)
    assert (dataset.num_rows_read, dataset.num_rows_kept) == (2, 2)
    assert {record.reason: record.num_rows for record in dropped} == {
        reason: 0 for reason in told if reason != "missing_user"
    }
    assert json.loads(json.dumps(data.dropped_rows)) == data.dropped_rows


def test_rows_of_too_short_users_are_told_when_as_many_users_as_the_group_must_have_them(
    tmp_path: Path,
) -> None:
    data = from_text(tmp_path, "user,item,time\na,x,1\nb,y,2\n,z,3\n")
    header = open_store(Path(data.store_dir)).header
    rules = {**header.rules, "history": {**header.rules["history"], "min_history": 5}}
    # a user of fewer than 5 events has 4 at most: 36 rows may be 9 users', 37 are of 10
    for rows, is_told in ((1, False), (36, False), (37, True)):
        dropped = header.dropped_rows | {"user_too_short": rows, "forgotten": 99}
        num_read, told = published_rows(
            dataclasses.replace(header, rules=rules, dropped_rows=dropped)
        )
        assert ("user_too_short" in told) == is_told
        assert num_read == header.num_events + is_told * rows
        assert "missing_user" not in told and "forgotten" not in told


def test_parquet_gives_the_same_sequences_as_text(tmp_path: Path) -> None:
    rows = "(9007199254740993, 'x', 3), (5, 'ü', 1), (9007199254740993, 'y', 2)"
    path = tmp_path / "events.parquet"
    duckdb.sql(
        f"COPY (SELECT u AS user_id, i AS item_id, make_timestamp(t * 1000001) AS ts "
        f"FROM (VALUES {rows}) AS v(u, i, t)) TO '{path}' (FORMAT parquet)"
    )
    assert histories(prepared(path)) == {
        "9007199254740993": [("y", 2_000_002), ("x", 3_000_003)],
        "5": [("ü", 1_000_001)],
    }


def test_parquet_of_many_row_groups_keeps_file_order(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    duckdb.sql(
        "COPY (SELECT range % 3 AS user_id, range AS item_id, 1.5 AS timestamp FROM range(120000)) "
        f"TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 20000)"
    )
    data = prepared(path, max_history=120_000)
    found = [int(item) for item, _ in histories(data)["1"]]
    assert found == list(range(1, 120_000, 3))
    assert times(data, "1")[0] == 1_500_000


def test_preparing_twice_is_preparing_once(tmp_path: Path) -> None:
    text = "user,item,time\na,x,1\nb,y,2\n"
    first, second = from_text(tmp_path, text), from_text(tmp_path, text)
    assert first == second
    stores = list((tmp_path / "stores").iterdir())
    assert stores == [Path(first.store_dir)]
    assert {oct(p.stat().st_mode & 0o777) for p in stores[0].iterdir()} == {"0o600"}
    assert stores[0].stat().st_mode & 0o777 == 0o700


def test_other_content_gets_another_id(tmp_path: Path) -> None:
    ids = {
        from_text(tmp_path, f"user,item,time\na,x,1\nb,{item},{time}\n").dataset_id
        for item, time in (("y", 2), ("z", 2), ("y", 3))
    }
    assert len(ids) == 3


def test_a_damaged_store_is_rebuilt(tmp_path: Path) -> None:
    text = "user,item,time\na,x,1\nb,y,2\n"
    store = Path(from_text(tmp_path, text).store_dir)
    (store / "items.npy").write_bytes(b"torn")
    assert histories(from_text(tmp_path, text))["a"] == [("x", 1_000_000)]


@pytest.mark.parametrize("name", ["user_map.parquet", "actions.npy", "data_sheet.md"])
def test_any_damaged_part_is_mended_by_preparing_again(tmp_path: Path, name: str) -> None:
    text = "user,item,time,action\na,x,1,buy\nb,y,2,view\n"
    store = Path(from_text(tmp_path, text).store_dir)
    whole = (store / name).read_bytes()
    for damage in (whole[:-3], None):
        if damage is None:
            (store / name).unlink()
        else:
            (store / name).write_bytes(damage)
        from_text(tmp_path, text)
        assert len((store / name).read_bytes()) == len(whole)


def test_a_working_folder_left_by_a_killed_run_is_removed(tmp_path: Path) -> None:
    old = tmp_path / "stores" / ".making-old"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    from_text(tmp_path, "user,item,time\na,x,1\nb,y,2\n")
    assert not old.exists()


def test_side_columns_and_splits_lie_beside_the_events(tmp_path: Path) -> None:
    data = from_text(
        tmp_path,
        """
        user,item,time,event_type,rating
        a,x,3,buy,5
        a,y,1,view,
        a,z,2,,3.5
        b,x,1,view,1
        """,
    )
    store = open_store(Path(data.store_dir))
    actions, ratings = store.actions(), store.ratings()
    assert actions is not None and ratings is not None
    by_user = {}
    for user, (start, stop) in enumerate(zip(store.offsets[:-1], store.offsets[1:], strict=True)):
        by_user[user] = [
            (store.header.actions[actions[at]], float(ratings[at]), SPLIT_NAMES[store.splits[at]])
            for at in range(start, stop)
        ]
    long, short = sorted(by_user.values(), key=len, reverse=True)
    assert [(action, split) for action, _, split in long] == [
        ("view", "train"),
        ("", "validation"),
        ("buy", "test"),
    ]
    assert [rating for _, rating, _ in long[1:]] == [3.5, 5.0]
    assert np.isnan(long[0][1])
    assert short == [("view", 1.0, "train")]


def test_little_memory_spills_within_bounds_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    draw = np.random.default_rng(5)
    users, items = draw.integers(0, 40_000, 400_000), draw.integers(0, 90_000, 400_000)
    lines = (
        f"user-{u},item-{i},{at}\n" for at, (u, i) in enumerate(zip(users, items, strict=True))
    )
    path.write_text("user,item,time\n" + "".join(lines))
    stores = tmp_path / "stores"
    with workplace.working_folder(stores) as folder:
        size = path.stat().st_size
        con = workplace.connect(folder, num_source_bytes=size, memory_limit_gib=0.06)
        limits = con.execute(
            "SELECT current_setting('memory_limit'), current_setting('max_temp_directory_size')"
        ).fetchone()
        con.close()
    assert limits == ("61.0 MiB", "4.0 GiB")  # 0.06 GiB; 4 GiB and twenty times 11 MB, rounded
    small = prepare(path, stores, memory_limit_gib=0.06)
    assert [p.name for p in stores.iterdir()] == [small.dataset_id]
    assert prepare(path, tmp_path / "other").dataset_id == small.dataset_id


# real files


def test_movielens_100k_has_its_published_shape(tmp_path: Path) -> None:
    data = prepare(
        shared("interactions/recbole/ml-100k.inter"),
        tmp_path / "stores",
    )
    assert (data.num_users, data.num_items, data.num_rows_kept) == (943, 1682, 100_000)
    assert (data.min_length, data.max_length) == (20, 737)
    assert data.tied_share == 0.75772  # 75,772 of 100,000 rows share (user, time)
    assert data.first_event_utc == "1997-09-20T03:05:10Z"  # 874724710 s


def test_movielens_latest_small_has_its_published_shape(tmp_path: Path) -> None:
    archive = shared("interactions/movielens_latest_small/ml-latest-small.zip")
    with zipfile.ZipFile(archive) as opened:
        member = next(name for name in opened.namelist() if name.endswith("ratings.csv"))
        (tmp_path / "ratings.csv").write_bytes(opened.read(member))
    data = prepared(tmp_path / "ratings.csv", min_history=5)
    assert (data.num_users, data.num_items, data.num_rows_kept) == (610, 9724, 100_836)
    assert data.max_length == 2698
    assert data.tied_share == pytest.approx(23_228 / 100_836)


def test_other_peoples_files_are_read_as_their_authors_counted(tmp_path: Path) -> None:
    yoochoose = shared("interactions/sessionrec/yoochoose-clicks-100k_train_full.txt")
    every = Preparation(history=HistoryRules(min_history=1))
    data = prepare(yoochoose, tmp_path / "stores", preparation=every)
    assert (data.num_rows_kept, data.num_users, data.num_items) == (70_278, 17_794, 2_933)
    diginetica = prepare(
        shared("interactions/srgnn/sample_train-item-views.csv"),
        tmp_path / "stores",
        reading=ReadingOptions(user="session_id", time="eventdate"),
        preparation=every,
    )
    assert (diginetica.num_users, diginetica.num_items) == (2_986, 7_139)
