"""A store that grows day by day equals the one made from all days at once."""

import contextlib
import contextvars
import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import store_making
from analytics.erasure import StorePlace, erase_expired, erase_users
from analytics.errors import ConfigError, InputError, StoreError
from analytics.interactions import Naming, SplitFiles, prepare
from analytics.preparation import DAY_US, Preparation
from analytics.pseudonyms import PseudonymKey
from analytics.rules import HistoryRules
from analytics.sources.options import ReadingOptions
from analytics.splits import SplitRule
from analytics.store import open_store, read_header
from analytics.store_making import updating
from analytics.store_updates import append, expire, without_users

KEY = PseudonymKey(secret=b"a key for tests, 32 bytes long..", where="a test")
NAMED = Naming(dataset_name="grown")
Row = tuple[str, str, int, str, float | None]


def write(path: Path, rows: list[Row], *, side: bool = True) -> Path:
    lines = ["user,item,time" + (",action,rating" if side else "")]
    for user, item, time, action, rating in rows:
        more = f",{action},{'' if rating is None else rating}" if side else ""
        lines.append(f"{user},{item},{time}{more}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def grown(folder: Path, days: list[Path], wanted: Preparation, key: PseudonymKey | None) -> Path:
    """The store of the first day, with the other days appended."""
    store = folder / "grown"
    prepare(days[0], folder, preparation=wanted, key=key, naming=NAMED, out=store)
    for day in days[1:]:
        append(store, day, key=key)
    return store


def content(store: Path) -> dict[str, bytes]:
    """Everything of a store that is said by its data, file by file."""
    arrays = {path.name: path.read_bytes() for path in sorted(store.glob("*.npy"))}
    return arrays | {"content_sha256": read_header(store).content_sha256.encode()}


def test_an_appended_day_equals_the_whole_and_brings_back_whom_it_makes_long_enough(
    tmp_path: Path,
) -> None:
    days = tmp_path / "days"
    days.mkdir()
    first = [
        ("a", "x", 1, "view", 5.0), ("a", "y", 2, "buy", None), ("b", "y", 3, "view", 4.0),
        ("a", "z", 3, "view", 1.0), ("c", "x", 9, "view", 2.0), ("c", "q", 9, "cart", 3.0),
        ("e", "x", 1, "view", 2.0), ("e", "y", 1, "view", 2.0), ("e", "z", 1, "view", 2.0),
    ]  # fmt: skip
    second = [
        ("b", "x", 2, "view", 3.5), ("b", "z", 3, "sell", 4.0), ("a", "x", 2, "view", 2.5),
        ("d", "w", 1, "view", 1.0), ("c", "y", 9, "view", None),
    ]  # fmt: skip
    one, two = write(days / "1.csv", first), write(days / "2.csv", second)
    wanted = Preparation(history=HistoryRules(min_history=3))
    store = grown(tmp_path, [one, two], wanted, None)
    whole = tmp_path / "whole"
    prepare(days, tmp_path, preparation=wanted, naming=NAMED, out=whole)
    assert content(store) == content(whole)
    header = read_header(store)
    # b had one row on the first day and two on the second; d has one and stays aside
    assert (header.num_users, header.dropped_rows["user_too_short"]) == (4, 1)
    assert header.num_rows_read == 14 == header.num_events + 1
    assert header.actions == ["", "buy", "cart", "sell", "view"]
    assert [source["name"] for source in header.sources] == ["1.csv", "2.csv"]
    assert header.data_sheet["earlier_versions"] != []


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.data(),
    rules=st.builds(
        HistoryRules,
        min_history=st.integers(1, 3),
        max_history=st.integers(3, 6),
        core=st.integers(1, 2),
        repeats=st.sampled_from(["keep", "first", "last"]),
        drop_exact_duplicates=st.booleans(),
    ),
    split=st.sampled_from(
        [SplitRule(), SplitRule(kind="time", validation_from_us=4 * 10**6, test_from_us=7 * 10**6)]
    ),
    has_key=st.booleans(),
    sides=st.tuples(st.booleans(), st.booleans()),
)
def test_growing_day_by_day_equals_the_whole_under_any_rules(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    rules: HistoryRules,
    split: SplitRule,
    has_key: bool,
    sides: tuple[bool, bool],
) -> None:
    row = st.tuples(
        st.sampled_from(["ann", "bo", "çé", "東京", "007", "7"]), st.sampled_from("uvwxyz"),
        st.integers(1, 9), st.sampled_from(["", "buy", "view"]),
        st.sampled_from([None, 1.0, 2.5]),
    )  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("grow")
    days = tmp_path / "days"
    days.mkdir()
    wanted, key = Preparation(history=rules, split=split), KEY if has_key else None
    paths = [
        write(days / f"{n}.csv", data.draw(st.lists(row, min_size=12, max_size=25)), side=side)
        for n, side in enumerate(sides)
    ]
    whole = tmp_path / "whole"
    try:
        prepare(days, tmp_path, preparation=wanted, naming=NAMED, out=whole, key=key)
        store = grown(tmp_path, paths, wanted, key)
    except InputError:  # too little is left of the first day, or of all
        return
    assert content(store) == content(whole)


def test_a_file_is_not_appended_twice(tmp_path: Path) -> None:
    rows = [(user, item, 1, "view", 1.0) for user in "ab" for item in "xyzuv"]
    day = write(tmp_path / "day.csv", rows)
    store = grown(tmp_path, [day], Preparation(), None)
    before = content(store)
    with pytest.raises(InputError, match=r"day.csv: its very content is in .*grown already"):
        append(store, day)
    assert content(store) == before


def test_a_store_takes_only_its_own_key(tmp_path: Path) -> None:
    rows = [(user, item, 1, "view", 1.0) for user in "ab" for item in "xyzuv"]
    first = write(tmp_path / "1.csv", rows)
    second = write(tmp_path / "2.csv", [("a", "q", 2, "view", 1.0)])
    store = grown(tmp_path, [first], Preparation(), KEY)
    other = PseudonymKey(secret=b"another key", where="SOME_VARIABLE")
    with pytest.raises(ConfigError, match=f"{KEY.key_id}, but that of SOME_VARIABLE is another"):
        append(store, second, key=other)
    with pytest.raises(ConfigError, match="but no key was given"):
        append(store, second)
    plain = grown(tmp_path / "plain", [first], Preparation(), None)
    with pytest.raises(ConfigError, match=r"holds user ids as they came.*--keep-user-ids"):
        append(plain, second, key=KEY)


def test_a_given_split_cannot_be_appended_to(tmp_path: Path) -> None:
    def part(name: str, time: int) -> str:
        rows = [(u, i, time, "view", 1.0) for u in "ab" for i in "xyz"]
        return str(write(tmp_path / name, rows))

    store = tmp_path / "store"
    files = SplitFiles(validation=part("v.csv", 2), test=part("t.csv", 3))
    made = prepare(
        part("train.csv", 1),
        tmp_path,
        preparation=Preparation(split=SplitRule(kind="given")),
        split_files=files,
        out=store,
    )
    assert made.num_in_split == {"train": 6, "validation": 6, "test": 6, "unused": 0}
    opened = open_store(store)
    assert opened.training_lengths().tolist() == [3, 3]
    np.testing.assert_array_equal(opened.target_positions(2), opened.offsets[:-1] + 6)
    with pytest.raises(StoreError, match=r"its split was given by files.*--validation and --test"):
        append(store, tmp_path / "t.csv")


def test_retention_drops_at_preparation_append_and_expiry(tmp_path: Path) -> None:
    # days 1 to 8 of both users; at the end of day 8, four days are kept: 5, 6, 7 and 8
    rows = [(u, f"i{day}", day * 86_400, "view", 1.0) for u in "ab" for day in range(1, 9)]
    wanted = Preparation(history=HistoryRules(min_history=1), keep_days=4)
    first = write(tmp_path / "1.csv", rows)
    store = tmp_path / "store"
    made = prepare(first, tmp_path, preparation=wanted, out=store, now_us=9 * DAY_US - 1)
    assert (made.num_rows_kept, made.dropped_rows["beyond_retention"]) == (8, 8)
    # two days later a row of day 10 comes: 7, 8 and 10 stay of a, 7 and 8 of b
    second = write(tmp_path / "2.csv", [("a", "new", 10 * 86_400, "view", 1.0)])
    made = append(store, second, now_us=11 * DAY_US - 1)
    assert (made.num_rows_kept, made.dropped_rows["beyond_retention"]) == (5, 12)
    assert expire(store, now_us=11 * DAY_US - 1) is None
    expired = expire(store, now_us=12 * DAY_US - 1)  # 8 and 10 of a, 8 of b
    assert expired is not None
    assert (expired.num_rows_kept, expired.dropped_rows["beyond_retention"]) == (3, 14)
    assert expired.num_rows_read == 17


def test_a_store_without_times_takes_no_file_with_times(tmp_path: Path) -> None:
    rows = [(user, item, 1, "view", 1.0) for user in "ab" for item in "xyzuv"]
    first = write(tmp_path / "1.csv", rows)
    store = tmp_path / "store"
    prepare(first, tmp_path, reading=ReadingOptions(time="none"), out=store)
    second = write(tmp_path / "2.csv", [("a", "q", 2, "view", 1.0)])
    with pytest.raises(InputError, match=r"has no times and this file has some.*--time none"):
        append(store, second, reading=ReadingOptions(time="time"))
    # what was said of the first file holds for the next: no times, so q comes last
    made = append(store, second)
    assert (made.num_rows_read, made.has_times) == (11, False)


APPEND = """
import sys
from pathlib import Path
from analytics import store_updates

clean_events = store_updates.clean_events

def waiting(*given):  # has opened the store, and reads it when told to
    print("read", flush=True)
    sys.stdin.readline()
    return clean_events(*given)

store_updates.clean_events = waiting
store_updates.append(Path(sys.argv[1]), sys.argv[2])
"""


def test_of_two_appends_at_once_both_days_are_in(tmp_path: Path) -> None:
    rows = [(user, item, 1, "view", 1.0) for user in "ab" for item in "xyzuv"]
    store = grown(tmp_path, [write(tmp_path / "1.csv", rows)], Preparation(), None)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    lock = store.with_name(f".{store.name}.lock")
    with contextlib.ExitStack() as stack:
        processes = {}
        for number in (2, 3):
            day = write(tmp_path / f"{number}.csv", [("a", f"q{number}", number, "view", 1.0)])
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", APPEND, str(store), str(day)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
                )
            )  # fmt: skip
            processes[process.stdout] = process
        [first, *others], _, _ = select.select(list(processes), [], [], 60)
        assert others == []
        assert lock.stat().st_mode & 0o777 == 0o600
        [second] = set(processes) - {first}
        assert select.select([second], [], [], 1.5)[0] == []  # it waits for the first
        for output in (first, second):
            processes[output].communicate("go\n", timeout=60)
            assert processes[output].returncode == 0
    header = read_header(store)
    assert header.num_events == 12
    assert sorted(source["name"] for source in header.sources) == ["1.csv", "2.csv", "3.csv"]
    assert not lock.exists()


def test_an_update_gives_up_while_another_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(user, item, 1, "view", 1.0) for user in "abc" for item in "xyzuv"]
    store = grown(tmp_path, [write(tmp_path / "1.csv", rows)], Preparation(), None)
    day = write(tmp_path / "2.csv", [("a", "q", 2, "view", 1.0)])
    monkeypatch.setattr(store_making, "UPDATE_TIMEOUT_S", 0.1)
    said: list[str] = []

    def update() -> None:
        for one in (
            lambda: append(store, day),
            lambda: without_users(store, ["a"]),
            lambda: erase_users(StorePlace(path=store, is_named_by_id=False), ["a"], None, print),
        ):
            try:
                one()
            except StoreError as error:
                said.append(str(error))

    with updating(store):
        other = threading.Thread(target=contextvars.Context().run, args=(update,))
        other.start()
        other.join(timeout=60)
    assert len(said) == 3 and all("another update of this store" in one for one in said)
    assert read_header(store).num_events == 15
    assert append(store, day).num_rows_kept == 16


def test_a_file_that_repeats_rows_is_appended_without_the_repeats(tmp_path: Path) -> None:
    # each row of the second file is a prefix of the next, so its events come several times
    head = "user_id:token\titem_id:token\ttimestamp:float"
    lines = [f"{user}\t{item}\t{item}" for user in "ab" for item in (1, 2, 3, 3)]
    first, second = tmp_path / "1.inter", tmp_path / "2.inter"
    first.write_text("\n".join([head, *lines, ""]))
    second.write_text(
        "user_id:token\titem_id_list:token_seq\titem_id:token\t"
        "timestamp_list:float_seq\ttimestamp:float\n"
        "a\t4\t5\t4\t5\na\t4 5\t6\t4 5\t6\na\t4 5 6\t7\t4 5 6\t7\n"
    )
    store = grown(tmp_path, [first], Preparation(history=HistoryRules(min_history=1)), None)
    made = append(store, second)
    assert any("exact duplicates are dropped from now on" in said for said in made.warnings)
    header = read_header(store)
    # one of each user in the first file; of 2 + 3 + 4 events of the second, 4 are distinct
    assert header.dropped_rows["exact_duplicate"] == 2 + 5
    assert header.rules["history"]["drop_exact_duplicates"] is True
    # the same as of one plain file in which every event stands once
    plain = tmp_path / "plain.inter"
    more = [f"a\t{item}\t{item}" for item in (4, 5, 6, 7)]
    plain.write_text("\n".join([head, *dict.fromkeys([*lines, *more]), ""]))
    once = tmp_path / "once"
    prepare(plain, tmp_path, preparation=Preparation(history=HistoryRules(min_history=1)), out=once)
    arrays = [{k: v for k, v in content(path).items() if ".npy" in k} for path in (store, once)]
    assert arrays[0] == arrays[1]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("rules", "keep_days"), ("rules", "history"), ("rules", "split_kind"),
        ("data_sheet", "earlier_versions"), ("data_sheet", "purpose"),
        ("dropped_rows", "forgotten"), ("dropped_rows", "beyond_retention"),
        ("sources", "sha256"),
    ],
)  # fmt: skip
def test_a_header_that_lacks_an_entry_is_damaged(tmp_path: Path, part: str, name: str) -> None:
    rows = [(user, item, 1, "view", 1.0) for user in "ab" for item in "xyzuv"]
    store = grown(tmp_path, [write(tmp_path / "1.csv", rows)], Preparation(), None)
    path = store / "store.json"
    raw = json.loads(path.read_text())
    del (raw[part][0] if part == "sources" else raw[part])[name]
    path.write_text(json.dumps(raw))
    day = write(tmp_path / "2.csv", [("a", "q", 2, "view", 1.0)])
    place = StorePlace(path=store, is_named_by_id=False)
    for update in (
        lambda: append(store, day),
        lambda: without_users(store, ["a"]),
        lambda: expire(store),
        lambda: erase_users(place, ["a"], None, pytest.fail),
        lambda: erase_expired(place, pytest.fail),
    ):
        with pytest.raises(StoreError, match=f"{name}.*damaged"):
            update()
