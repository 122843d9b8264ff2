"""A person who is forgotten is gone from every file of the runs folder, and that is on record."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from analytics import store_making, traces
from analytics.errors import ConfigError, StoreError
from analytics.pseudonyms import KEY_VARIABLE
from analytics.store import read_header
from analytics.warehouse import open_published
from flows import forgetting
from flows.forgetting import forget, read_user_ids


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, shop) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv(KEY_VARIABLE, shop.SECRET)
    monkeypatch.delenv("SEQSCALE_PSEUDONYM_KEY_FILE", raising=False)


def holding(*roots: Path, needle: str) -> list[Path]:
    return traces.files_with(roots, [needle]).holding


def in_warehouse(runs: Path, needle: str) -> bool:
    """Whether any cell of any table holds it: DuckDB's own compression hides bytes."""
    with open_published(runs) as con:
        tables = con.execute("SELECT table_name FROM information_schema.tables").fetchall()
        return any(
            needle in str(con.execute(f'SELECT * FROM "{name}"').fetchall()) for (name,) in tables
        )


# laws


@pytest.mark.parametrize("is_pseudonymised", [True, False])
def test_no_byte_of_a_person_is_left(shop, is_pseudonymised, caplog):
    key = shop.KEY if is_pseudonymised else None
    people = [shop.ANNA, shop.BRIEF]  # of BRIEF there are only rows set aside
    shop.prepared(*shop.NAMES, shop.BRIEF, key=key)
    [store] = shop.store_dirs()
    for who, where in zip(people, ("user_map.parquet", "set_aside.parquet"), strict=True):
        name = key.pseudonym(who) if key else who
        assert store / where in holding(shop.runs, needle=name)  # it was there before
        assert key is None or holding(shop.runs, needle=who) == []  # the raw id never was
    caplog.set_level("DEBUG")
    report = forget(shop.runs, people)
    for needle in [*people, *map(shop.KEY.pseudonym, people)]:
        assert holding(shop.runs, needle=needle) == []
        assert not in_warehouse(shop.runs, needle)
        assert needle not in f"{report} {report.plain()} {report.lines()} {caplog.text}"
    assert (report.erasures[0].num_users, report.erasures[0].num_rows) == (2, 10)
    report.check()


def test_forgetting_twice_is_forgetting_once(shop):
    shop.prepared(*shop.NAMES)
    forget(shop.runs, [shop.ANNA])
    said = shop.content(shop.store_dirs()[0])
    again = forget(shop.runs, [shop.ANNA])
    assert again.erasures == [] and again.num_on_record == 1
    assert again.lines()[0].startswith(
        "the user (ids are compared letter by letter) is in no store"
    )
    assert str(shop.store_dirs()[0]) in again.lines()[0]
    assert shop.content(shop.store_dirs()[0]) == said


def test_every_store_that_holds_the_person_is_changed_and_no_other(shop):
    with_her = shop.prepared(*shop.NAMES, name="one.csv")
    without_her = shop.prepared(*shop.NAMES[1:], name="two.csv")
    outside = shop.folder / "mine" / "store"
    held_outside = shop.prepared(*shop.NAMES, name="three.csv", out=outside)
    report = forget(shop.runs, [shop.ANNA], stores=[outside])
    changed = {done.dataset_id for done in report.erasures}
    assert changed == {with_her.dataset_id, held_outside.dataset_id}
    assert without_her.dataset_id in {path.name for path in shop.store_dirs()}
    assert holding(shop.runs, outside.parent, needle=shop.KEY.pseudonym(shop.ANNA)) == []
    assert [path.name for path in outside.parent.iterdir()] == ["store"]
    assert read_header(outside).dataset_id != held_outside.dataset_id
    report.check()


# the record


def test_the_erasure_is_on_record_without_the_person(shop):
    before = shop.prepared(*shop.NAMES)
    report = forget(shop.runs, [shop.ANNA])
    with open_published(shop.runs) as con:
        rows = con.execute(
            "SELECT reason, dataset_id, new_dataset_id, num_rows, num_users FROM fact_erasure"
        ).fetchall()
    new = report.erasures[0].new_dataset_id
    # her 8 rows are the length of one person's history, so not told
    assert rows == [("forgotten", before.dataset_id, new, None, 1)]
    assert report.lines()[0] == (
        f"{before.dataset_id}: rows of 1 user forgotten; the version after it is {new}"
    )
    assert report.plain()["erasures"][0]["num_rows"] is None
    assert (shop.runs / "erasures").stat().st_mode & 0o777 == 0o700


def test_of_a_store_with_too_little_left_it_is_said_that_it_is_deleted(shop):
    before = shop.prepared(*shop.NAMES[:2])
    report = forget(shop.runs, [shop.ANNA])
    assert shop.store_dirs() == []
    assert report.lines()[0] == (
        f"{before.dataset_id}: rows of 2 users, all it had, forgotten: too little was left, the "
        "store is deleted"
    )


def test_the_runs_that_were_trained_on_it_are_named(shop, paper):
    before = shop.prepared(*shop.NAMES)
    assert paper.runs_dir == shop.runs
    paper.pipeline()
    for arm in ("baseline", "balanced"):
        mine = paper.run(arm, pipeline_id="hers", dataset_id=before.dataset_id)
        paper.write([mine], writer=f"{arm}-hers", pipeline_id="hers")
    report = forget(shop.runs, [shop.ANNA])
    assert report.run_ids == ["hers-balanced", "hers-baseline"]
    text = "\n".join(report.lines())
    assert "runs trained on such a version: hers-balanced, hers-baseline" in text
    assert "their parameters are not changed by this" in text
    with open_published(shop.runs) as con:  # a first load takes everything, not this alone
        assert con.execute("SELECT count(*) FROM dim_run").fetchall() == [(4,)]


def derived(runs: Path, gone: str, kept: str) -> dict[str, Path]:
    """Plans, cached answers and stored results of a version that goes and of one that stays."""
    work = runs / ".work"
    paths = {
        "plan of hers": work / "plans" / "aaaa" / "plan.json",
        "plan of nobody": work / "plans" / "bbbb" / "plan.json",
        "plan of others": work / "plans" / "cccc" / "plan.json",
        "prepared hers": work / "prepared" / "1.json",
        "prepared others": work / "prepared" / "2.json",
        "result": work / "prefect" / "storage" / "3",
    }
    texts = {"prepared hers": gone, "prepared others": kept}
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"dataset_id": texts.get(name, "")}))
    for name, version, plan in (("p1", gone, "aaaa"), ("p2", kept, "cccc")):
        folder = runs / name / "attempt-0"
        folder.mkdir(parents=True)
        job = {"dataset_id": version, "plan_dir": str(work / "plans" / plan)}
        (folder / "job.json").write_text(json.dumps(job))
    opened = runs / "p1" / "attempt-0" / "journal" / "fact_step" / "rank-0-000000.jsonl.open"
    opened.parent.mkdir(parents=True)
    opened.write_text("")
    return paths


def test_what_was_derived_from_it_goes_and_the_rest_stays(shop):
    gone = shop.prepared(*shop.NAMES, name="one.csv").dataset_id
    kept = shop.prepared(*shop.NAMES[1:], name="two.csv").dataset_id
    paths = derived(shop.runs, gone, kept)
    report = forget(shop.runs, [shop.ANNA])
    left = {name for name, path in paths.items() if path.exists()}
    assert left == {"plan of others", "prepared others"}
    assert report.num_derived_removed == 4
    assert report.training_now == ["p1"]
    assert "p1 is training on it now and reads the old files until it ends" in report.lines()
    paths["plan of nobody"].parent.mkdir()  # made after the erasure, so from what was left
    forget(shop.runs, [shop.ANNA])
    assert paths["plan of nobody"].parent.exists()


# a crash; those within one store's erasure are in tests/analytics/test_erasure.py


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the version takes its place": lambda m: m.setattr(store_making, "put_in_place", _stop),
    "before the plans go": lambda m: m.setattr(forgetting, "remove_derived", _stop),
    "before the load": lambda m: m.setattr(forgetting, "load", _stop),
    "before the publication": lambda m: m.setattr(forgetting, "publish", _stop),
}


def final_state(shop) -> dict[str, object]:  # type: ignore[no-untyped-def]
    with open_published(shop.runs) as con:
        rows = con.execute(
            "SELECT erasure_id, reason, dataset_id, new_dataset_id, num_rows FROM fact_erasure"
        ).fetchall()
    files = {
        path.relative_to(shop.runs).as_posix()
        for path in shop.runs.rglob("*")
        if path.is_file() and "fact_erasure" not in path.parts
    }
    return {"rows": rows, "files": files, "stores": [*map(shop.content, shop.store_dirs())]}


@pytest.mark.full
def test_a_call_that_was_cut_short_anywhere_is_finished_by_the_next(shop):
    derived(shop.runs, shop.prepared(*shop.NAMES).dataset_id, "other")
    shutil.copytree(shop.runs, shop.folder / "start")
    report = forget(shop.runs, [shop.ANNA])
    expected = final_state(shop)
    for step, break_at in STEPS.items():
        shutil.rmtree(shop.runs)
        shutil.copytree(shop.folder / "start", shop.runs)
        with pytest.MonkeyPatch.context() as patch:
            break_at(patch)
            with pytest.raises(KeyboardInterrupt):
                forget(shop.runs, [shop.ANNA])
        again = forget(shop.runs, [shop.ANNA])
        assert final_state(shop) == expected, step
        assert again.erasures == report.erasures, step  # it names what the first call began
        assert holding(shop.runs, needle=shop.KEY.pseudonym(shop.ANNA)) == [], step


def test_what_a_killed_removal_left_goes_with_the_next_call(shop):
    shop.prepared(*shop.NAMES[1:])
    [store] = shop.store_dirs()
    left = store.parent / ".making-killed"
    shutil.copytree(store, left / "old")
    (left / "lock").touch()  # nobody holds it
    forget(shop.runs, [shop.ANNA])
    assert not left.exists()


# what cannot be searched, or is left


def test_a_store_with_another_key_is_named_after_the_others_are_done(shop):
    shop.prepared(*shop.NAMES, name="one.csv")
    other = shop.prepared(*shop.NAMES, name="two.csv", key=shop.OTHER_KEY)
    broken = shop.stores / "broken"
    broken.mkdir()
    (broken / "user_map.parquet").write_bytes(b"torn")
    report = forget(shop.runs, [shop.ANNA])
    assert len(report.erasures) == 1
    assert holding(shop.runs, needle=shop.KEY.pseudonym(shop.ANNA)) == []
    needed = f"{other.dataset_id}.*key {shop.OTHER_KEY.key_id}"
    with pytest.raises(StoreError, match=needed) as raised:
        report.check()
    assert "the others are done" in str(raised.value)
    assert str(broken) in str(raised.value)
    assert shop.SECRET not in str(raised.value)


def test_without_any_key_no_pseudonym_is_searched_and_no_key_is_made(shop, monkeypatch):
    shop.prepared(*shop.NAMES)
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(shop.folder / "conf"))
    report = forget(shop.runs, [shop.ANNA])
    with pytest.raises(StoreError, match="no key was found"):
        report.check()
    assert not (shop.folder / "conf").exists()


def test_a_full_disk_is_not_taken_for_too_little_left(shop, monkeypatch):
    shop.prepared(*shop.NAMES)
    monkeypatch.setattr(store_making, "write_files", _full)
    report = forget(shop.runs, [shop.ANNA])
    assert len(shop.store_dirs()) == 1
    with pytest.raises(StoreError, match="could not be written"):
        report.check()


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_bytes_left_in_another_file_are_told(shop):
    shop.prepared(*shop.NAMES)
    (shop.runs / "note.txt").write_text(f"looked into {shop.KEY.pseudonym(shop.ANNA)}")
    with pytest.raises(StoreError, match=r"still in .*note\.txt"):
        forget(shop.runs, [shop.ANNA]).check()


def test_a_preparation_at_work_is_told(shop):
    shop.prepared(*shop.NAMES[1:])
    living = shop.stores / ".making-living"
    living.mkdir()
    with (living / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        report = forget(shop.runs, [shop.ANNA])
    assert report.at_work == [str(living)]
    assert living.exists()


# retention


def test_expired_rows_go_and_that_is_on_record(shop):
    shop.prepared(*shop.NAMES, keep_days=30, now_us=110 * shop.DAY_US)
    nothing = forget(shop.runs, None, expired=True, now_us=130 * shop.DAY_US)
    assert nothing.erasures == []
    assert nothing.lines()[0].startswith("nothing is past its retention: ")
    report = forget(shop.runs, None, expired=True, now_us=133 * shop.DAY_US)
    [done] = report.erasures  # days 100 to 102 of four users
    assert (done.reason, done.num_rows, done.num_users) == ("expired", 4 * 3, 0)
    [store] = shop.store_dirs()
    assert store.name == done.new_dataset_id
    with open_published(shop.runs) as con:
        rows = con.execute("SELECT reason, num_rows, num_users FROM fact_erasure").fetchall()
    assert rows == [("expired", None, 0)]  # 12 rows, perhaps of one person


# what is asked


def test_ids_come_from_options_or_lines():
    assert read_user_ids(["a", "b", "a"], []) == ["a", "b"]
    assert read_user_ids(["-"], ["x y\n", "\n", " z\r\n"]) == ["x y", " z"]
    with pytest.raises(ConfigError, match="No user id was given"):
        read_user_ids(["-"], [])


def test_what_cannot_be_asked_is_told_without_the_id(shop):
    with pytest.raises(ConfigError, match="either --user ID"):
        forget(shop.runs, None)
    with pytest.raises(ConfigError, match="either --user ID"):
        forget(shop.runs, ["a"], expired=True)
    with pytest.raises(ConfigError, match="User id 2 is not UTF-8") as raised:
        forget(shop.runs, ["a", "secret\udcff"])
    assert raised.value.__cause__ is None and raised.value.__suppress_context__
    with pytest.raises(StoreError, match="no sequence store is here"):
        forget(shop.runs, ["a"], stores=[shop.folder / "nothing"])


def test_a_folder_that_never_had_a_store_is_no_error(shop):
    report = forget(shop.runs, ["somebody-unknown"])
    assert report.erasures == [] and report.num_on_record == 0
    report.check()
    assert json.loads(json.dumps(report.plain()))["erasures"] == []
    assert not (shop.runs / "erasures").exists()


def test_a_file_that_could_not_be_searched_is_told(shop):
    shop.prepared(*shop.NAMES)
    (shop.runs / "torn.parquet").write_bytes(b"PAR1 torn")
    report = forget(shop.runs, [shop.ANNA])
    assert len(report.erasures) == 1
    with pytest.raises(StoreError, match=r"could not be read: .*torn\.parquet\. The erasure"):
        report.check()


def test_ids_too_short_to_be_searched_for_are_told(shop):
    shop.prepared(*shop.NAMES)
    report = forget(shop.runs, ["1234567", "ann", shop.ANNA])
    assert report.num_short_ids == 2
    assert any(line.startswith("2 ids shorter than 8 bytes: no file") for line in report.lines())
    assert not any("shorter" in line for line in forget(shop.runs, [shop.ANNA]).lines())
