"""A store without a person is the one that would have been made without that person's rows."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from analytics import erasure, store_making, traces, workplace
from analytics.erasure import Erasure, StorePlace, erase_expired, erase_users, stores_under
from analytics.errors import StoreError
from analytics.interactions import PreparedData, SplitFiles, dataset_records, prepare
from analytics.preparation import Preparation
from analytics.prepared import prepared_of, published
from analytics.profile import _dataset as profile_of
from analytics.splits import SplitRule
from analytics.store import open_store, read_header
from analytics.store_updates import append
from analytics.warehouse import open_published


def erase(data: PreparedData, *users: str, key, in_place: bool = False) -> Erasure | None:  # type: ignore[no-untyped-def]
    place = StorePlace(path=Path(data.store_dir), is_named_by_id=not in_place)
    return erase_users(place, users, key, lambda _: None)


def holding(folder: Path, needle: str) -> list[str]:
    return [path.name for path in traces.files_with([folder], [needle]).holding]


# forgetting


@pytest.mark.parametrize("is_pseudonymised", [True, False])
@pytest.mark.parametrize("is_brief", [False, True])
def test_it_equals_a_preparation_without_the_person(shop, is_pseudonymised, is_brief):
    key = shop.KEY if is_pseudonymised else None
    who, num_rows = (shop.BRIEF, 2) if is_brief else (shop.ANNA, 8)
    before = shop.prepared(*shop.NAMES, shop.BRIEF, key=key)
    needle = key.pseudonym(who) if key else who
    where = "set_aside.parquet" if is_brief else "user_map.parquet"
    assert where in holding(shop.stores, needle)
    done = erase(before, who, key=key)
    assert (done.num_rows, done.num_users) == (num_rows, 1)
    [after] = shop.store_dirs()
    assert after.name == done.new_dataset_id == read_header(after).dataset_id
    assert read_header(after).dropped_rows["forgotten"] == num_rows
    assert holding(shop.stores, needle) == []
    path = shop.file("shop.csv", *[n for n in (*shop.NAMES, shop.BRIEF) if n != who])
    preparation = Preparation(history=shop.RULES)
    without = prepare(path, shop.folder, key=key, preparation=preparation, now_us=shop.NOW_US)
    assert shop.content(after) == shop.content(Path(without.store_dir))


def test_the_others_keep_their_histories(shop):
    def histories(folder: Path) -> dict[str, list[tuple[str, int]]]:
        store, items = open_store(folder), dict(row[:2] for row in shop.rows(folder, "item_map"))
        return {
            user: [
                (items[int(store.items[at])], int(store.times[at]))
                for at in range(store.offsets[index], store.offsets[index + 1])
            ]
            for index, user, _ in shop.rows(folder, "user_map")
        }

    data = shop.prepared(*shop.NAMES)
    before = histories(Path(data.store_dir))
    erase(data, shop.ANNA, key=shop.KEY)
    assert before.pop(shop.KEY.pseudonym(shop.ANNA))
    assert histories(shop.store_dirs()[0]) == before


def test_an_appended_store_forgets_what_came_with_either_file(shop):
    first = shop.prepared(*shop.NAMES)
    more = shop.file("more.csv", shop.ANNA, shop.BRIEF, shop.NAMES[1], first_day=120)
    appended = append(Path(first.store_dir), more, key=shop.KEY, now_us=shop.NOW_US)
    assert Path(appended.store_dir).name == first.dataset_id  # it lies under an older version's id
    done = erase(appended, shop.ANNA, shop.BRIEF, key=shop.KEY)
    assert done.earlier_versions == [first.dataset_id]
    assert (done.num_users, done.num_rows) == (2, 8 + 8 + 2)
    [after] = shop.store_dirs()
    assert after.name == done.new_dataset_id
    for who in (shop.ANNA, shop.BRIEF):
        assert holding(shop.stores, shop.KEY.pseudonym(who)) == []


def test_with_given_splits_a_history_of_targets_alone_stays_as_it_is(shop):
    first, *others = shop.NAMES
    files = SplitFiles(
        validation=shop.file("valid.csv", *shop.NAMES, first_day=120, days=2),
        test=shop.file("test.csv", *shop.NAMES, first_day=130, days=2),
    )
    preparation = Preparation(history=shop.RULES, split=SplitRule(kind="given"))

    def made(*trained: str) -> PreparedData:
        return prepare(
            shop.file("train.csv", *trained),
            shop.stores,
            key=shop.KEY,
            preparation=preparation,
            split_files=files,
            now_us=shop.NOW_US,
        )

    data = made(first, *others[1:])  # others[0] has targets alone, the first of them unused
    before = shop.content(Path(data.store_dir))
    assert data.num_in_split["unused"] == 1
    erase(data, others[1], key=shop.KEY)
    [after] = shop.store_dirs()
    header = read_header(after)
    assert header.num_in_split["unused"] == 1
    assert header.dropped_rows["target_before_history"] == 0
    gone = shop.KEY.pseudonym(others[1])
    kept = [row[1:] for row in before["user_map"] if row[1] != gone]
    assert [row[1:] for row in shop.rows(after, "user_map")] == kept


def test_erasing_twice_is_erasing_once(shop):
    erase(shop.prepared(*shop.NAMES), shop.ANNA, key=shop.KEY)
    [after] = shop.store_dirs()
    said = shop.content(after)
    place = StorePlace(path=after, is_named_by_id=True)
    assert erase_users(place, [shop.ANNA], shop.KEY, pytest.fail) is None
    assert shop.content(after) == said


def test_of_a_store_with_too_little_left_nothing_is_left(shop):
    done = erase(shop.prepared(*shop.NAMES[:2]), shop.ANNA, key=shop.KEY)
    assert (done.new_dataset_id, done.num_rows, done.num_users) == (None, 16, 2)
    assert shop.store_dirs() == []


def test_a_reader_keeps_the_version_it_has_open(shop):
    data = shop.prepared(*shop.NAMES)
    store = open_store(Path(data.store_dir))
    items = store.items.tolist()
    erase(data, shop.ANNA, key=shop.KEY)
    assert not store.path.exists()
    assert store.items.tolist() == items


# a crash


class Killed(BaseException):
    pass


def killed(*_: object, **__: object) -> None:
    raise Killed


Break = Callable[[pytest.MonkeyPatch], None]
STEPS: dict[str, Break] = {
    "before the record": lambda m: None,  # the record itself raises
    "after the record": lambda m: m.setattr(store_making, "put_in_place", killed),
    "in place, before the answer": lambda m: m.setattr(store_making, "prepared_of", killed),
    "before the old one goes": lambda m: m.setattr(erasure, "remove_store", killed),
    "while it goes": lambda m: m.setattr(Path, "rename", renamed_and_killed),
}
_RENAME = Path.rename


def renamed_and_killed(self: Path, target: Path) -> Path:
    moved = _RENAME(self, target)
    if target.name == "old":
        raise Killed
    return moved


@pytest.mark.parametrize(
    ("in_place", "num_users"),
    [(False, 4), (True, 4), (False, 2)],  # of two users too little is left
)
def test_what_was_cut_short_anywhere_is_finished_by_the_next(shop, in_place, num_users):
    begun = shop.prepared(*shop.NAMES[:num_users])
    place = StorePlace(path=Path(begun.store_dir), is_named_by_id=not in_place)
    shutil.copytree(shop.stores, shop.folder / "start")
    expected = erase_users(place, [shop.ANNA], shop.KEY, lambda _: None)
    left = {path.name: shop.content(path) for path in shop.store_dirs()}
    num_cut = 0
    for step, break_at in STEPS.items():
        shutil.rmtree(shop.stores)
        shutil.copytree(shop.folder / "start", shop.stores)
        on_record: list[Erasure] = []
        with pytest.MonkeyPatch.context() as patch:
            break_at(patch)
            patch.setattr(workplace, "_empty", lambda _: None)  # nobody cleans up after kill -9
            patch.setattr(workplace.shutil, "rmtree", lambda *_, **__: None)
            record = killed if step == "before the record" else on_record.append
            try:
                with contextlib.suppress(StoreError):  # of what could not be removed
                    erase_users(place, [shop.ANNA], shop.KEY, record)
            except Killed:
                num_cut += 1
        for path in stores_under(shop.stores):
            again = StorePlace(path=path, is_named_by_id=not in_place)
            erase_users(again, [shop.ANNA], shop.KEY, on_record.append)
        assert workplace.remove_dead(shop.stores) == []
        assert {path.name: shop.content(path) for path in shop.store_dirs()} == left, step
        assert set(map(repr, on_record)) == {repr(expected)}, step
        assert holding(shop.folder / "runs", shop.KEY.pseudonym(shop.ANNA)) == [], step
    assert num_cut == (3 if in_place or num_users == 2 else 5)  # the other steps are not taken


# stores that cannot be searched


def test_a_store_of_another_key_names_the_key_that_is_needed(shop):
    data = shop.prepared(*shop.NAMES, key=shop.OTHER_KEY)
    with pytest.raises(StoreError, match=f"key {shop.OTHER_KEY.key_id}, and here holds"):
        erase(data, shop.ANNA, key=shop.KEY)
    with pytest.raises(StoreError, match="no key was found"):
        erase(data, shop.ANNA, key=None)


def test_a_damaged_store_is_found_and_named(shop):
    shop.prepared(*shop.NAMES)
    [store] = shop.store_dirs()
    (store / "set_aside.parquet").write_bytes(b"torn")
    with pytest.raises(StoreError, match="cannot be searched"):
        erase_users(StorePlace(path=store, is_named_by_id=True), [shop.ANNA], shop.KEY, pytest.fail)
    (store / "store.json").unlink()
    assert stores_under(shop.stores) == [store]
    assert stores_under(shop.folder / "nothing") == []


# retention


def test_events_older_than_the_days_kept_are_dropped(shop):
    data = shop.prepared(*shop.NAMES, keep_days=33, now_us=136 * shop.DAY_US)
    store = open_store(Path(data.store_dir))
    assert data.dropped_rows["beyond_retention"] == 4 * 3  # days 100 to 102 of four users
    # anna's of day 103 is exactly 33 days old and stays; the others' are seconds younger
    assert store.times.min() == 103 * shop.DAY_US
    assert data.num_rows_kept == 4 * 5


def test_expiring_later_equals_preparing_later(shop):
    then_us, later_us = 110 * shop.DAY_US, 133 * shop.DAY_US
    data = shop.prepared(*shop.NAMES, shop.BRIEF, keep_days=30, now_us=then_us)
    place = StorePlace(path=Path(data.store_dir), is_named_by_id=True)
    assert erase_expired(place, pytest.fail, now_us=130 * shop.DAY_US) is None
    on_record: list[Erasure] = []
    done = erase_expired(place, on_record.append, now_us=later_us)  # before day 103 begins
    assert on_record == [done]
    assert (done.reason, done.num_rows, done.num_users) == ("expired", 4 * 3 + 2, 1)  # and BRIEF
    [after] = shop.store_dirs()
    assert read_header(after).dropped_rows["beyond_retention"] == 14
    assert holding(shop.stores, shop.KEY.pseudonym(shop.BRIEF)) == []
    shutil.rmtree(after)
    made = shop.prepared(*shop.NAMES, shop.BRIEF, keep_days=30, now_us=later_us)
    assert made.dataset_id == done.new_dataset_id
    emptied = erase_expired(
        StorePlace(path=Path(made.store_dir), is_named_by_id=True),
        on_record.append,
        now_us=150 * shop.DAY_US,
    )
    assert (emptied.new_dataset_id, emptied.num_rows, emptied.num_users) == (None, 20, 4)
    assert shop.store_dirs() == []


def test_appending_a_day_drops_what_is_too_old_by_then(shop):
    data = shop.prepared(*shop.NAMES, keep_days=30, now_us=110 * shop.DAY_US)
    more = shop.file("more.csv", *shop.NAMES, first_day=130, days=3)
    updated = append(Path(data.store_dir), more, key=shop.KEY, now_us=135 * shop.DAY_US)
    # days 105 to 107 and 130 to 132 are left of each: six, no more than max_history
    assert updated.dropped_rows["beyond_retention"] == 4 * 5
    assert updated.dropped_rows["beyond_max_history"] == 0
    assert updated.num_rows_kept == 4 * 6
    assert updated.num_rows_read == 4 * 11


# what is published


def test_what_is_published_adds_up_and_tells_nothing_of_the_forgotten(shop):
    before = shop.prepared(*shop.NAMES, shop.BRIEF)
    erase(before, shop.ANNA, key=shop.KEY)
    [after] = shop.store_dirs()
    store = open_store(after)
    assert (store.header.num_rows_read, store.header.dropped_rows["forgotten"]) == (34, 8)
    data = prepared_of(store)
    dataset, *dropped = dataset_records(data, min_group_users=1)
    told = {record.reason: record.num_rows for record in dropped}
    assert dataset.num_rows_read == 26 == dataset.num_rows_kept + sum(told.values())
    assert "forgotten" not in told
    # as if she had never been in the files
    path = shop.file("without.csv", *[n for n in (*shop.NAMES, shop.BRIEF) if n != shop.ANNA])
    preparation = Preparation(history=shop.RULES)
    never = prepare(path, shop.folder, key=shop.KEY, preparation=preparation, now_us=shop.NOW_US)
    other, *others = dataset_records(never, min_group_users=1)
    assert told == {record.reason: record.num_rows for record in others}
    assert dataset.num_rows_read == other.num_rows_read
    for said in (published(data, 1), profile_of(store, 1)):
        assert (said["num_rows_read"], said["dropped_rows"]) == (26, told)


def test_every_set_in_the_warehouse_adds_up(shop, paper):
    before = shop.prepared(*shop.NAMES, shop.BRIEF, keep_days=95)
    records = dataset_records(before)
    erase(before, shop.ANNA, key=shop.KEY)
    records += dataset_records(prepared_of(open_store(shop.store_dirs()[0])))
    paper.write(records, writer="flow", attempt=None)
    paper.publish()
    with open_published(paper.runs_dir) as con:
        rows = con.execute(
            "SELECT num_rows_read, num_rows_kept, sum(num_rows) FROM dim_dataset "
            "JOIN fact_dropped_rows USING (dataset_id) "
            "GROUP BY dataset_id, num_rows_read, num_rows_kept"
        ).fetchall()
        reasons = con.execute("SELECT DISTINCT reason FROM fact_dropped_rows").fetchall()
    assert len(rows) == 2
    assert all(read == kept + dropped for read, kept, dropped in rows)
    assert ("forgotten",) not in reasons


@pytest.mark.parametrize(("num_users", "told"), [(1, None), (9, None), (10, 80)])
def test_the_number_of_rows_of_few_is_not_put_on_record(num_users, told):
    done = Erasure(
        reason="forgotten", store_dir="/s", dataset_id="a", earlier_versions=[],
        new_dataset_id="b", num_rows=80, num_users=num_users,
    )  # fmt: skip
    assert (done.record().num_rows, done.record().num_users) == (told, num_users)


def test_too_little_memory_is_not_taken_for_a_damaged_store(shop, monkeypatch):
    data = shop.prepared(*shop.NAMES)

    def full(*_: object, **__: object) -> None:
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to offload 'anna'")

    monkeypatch.setattr(erasure.duckdb, "connect", full)
    with pytest.raises(StoreError, match="the memory did not suffice") as raised:
        erase(data, shop.ANNA, key=shop.KEY)
    assert "damaged" not in str(raised.value) and "anna" not in str(raised.value)
