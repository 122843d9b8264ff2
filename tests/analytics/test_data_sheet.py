"""The data sheet says what a store holds, names nobody, and keeps what a person has stated."""

from pathlib import Path

import pytest

from analytics.data_sheet import data_sheet
from analytics.errors import InputError
from analytics.interactions import Naming, PreparedData, prepare
from analytics.preparation import Preparation
from analytics.pseudonyms import PseudonymKey
from analytics.rules import HistoryRules
from analytics.store import read_header
from analytics.store_updates import append, expire, without_users

DAY_S = 86_400
KEY = PseudonymKey(secret=b"0123456789abcdef", where="here")
RULES = HistoryRules(min_history=3)
STATED = Naming(purpose="tests of | this", lawful_basis="contract (Art. 6(1)(b))")


def events(path: Path, *users: str, days: int = 4, first_day: int = 100) -> Path:
    """Every user has one event a day, from the first day on."""
    lines = [
        f"{user},sku-{day % 3}-{user},{day * DAY_S}"
        for user in users
        for day in range(first_day, first_day + days)
    ]
    path.write_text("user_id,item_id,timestamp\n" + "\n".join(lines) + "\n")
    return path


def made(tmp_path: Path, *, naming: Naming = STATED, keep_days: int | None = None) -> PreparedData:
    return prepare(
        events(tmp_path / "shop.csv", "anna", "bert", "cleo"),
        tmp_path / "stores",
        key=KEY,
        naming=naming,
        preparation=Preparation(history=RULES, keep_days=keep_days),
        now_us=110 * DAY_S * 1_000_000,
    )


def sheet_of(prepared: PreparedData) -> str:
    return (Path(prepared.store_dir) / "data_sheet.md").read_text()


def test_it_says_what_the_store_holds(tmp_path: Path) -> None:
    prepared = made(tmp_path, keep_days=30)
    sheet = sheet_of(prepared)
    header = read_header(Path(prepared.store_dir))
    for line in [
        "# Data sheet of shop.csv",
        f"| version | {prepared.dataset_id} |",
        f"shop.csv | {header.sources[0]['sha256']} | 12 |",
        "| user | user_id",
        "| any other column | not read |",
        "| rows read | 12 |",
        "| events kept | 12 (train 6, validation 3, test 3, unused 0) |",
        "| first and last event | 1970-04-11 to 1970-04-14 |",  # days 100 and 103
        f"| key | fingerprint {KEY.key_id}; the key itself is not kept here |",
        "| purpose | tests of \\| this |",
        "| lawful basis | contract (Art. 6(1)(b)) |",
        "the first kept event expires on 1970-05-11, the last on 1970-05-14",
    ]:
        assert line in sheet


def test_it_names_no_user_and_no_item(tmp_path: Path) -> None:
    sheet = sheet_of(made(tmp_path))
    for name in ("anna", "bert", "cleo", "sku-"):
        assert name not in sheet
        assert KEY.pseudonym(name) not in sheet


def test_without_a_key_it_says_that_ids_are_in_the_clear(tmp_path: Path) -> None:
    path = events(tmp_path / "shop.csv", "anna", "bert")
    prepared = prepare(path, tmp_path / "stores", preparation=Preparation(history=RULES))
    assert "personal data in the clear" in sheet_of(prepared)
    assert "| purpose | to be filled in |" in sheet_of(prepared)
    assert "not limited" in sheet_of(prepared)


def test_what_a_person_stated_outlives_every_update(tmp_path: Path) -> None:
    prepared = made(tmp_path, keep_days=9)
    folder, versions = Path(prepared.store_dir), [prepared.dataset_id]
    day_us = DAY_S * 1_000_000
    more = events(tmp_path / "day.csv", "anna", "bert", days=3, first_day=108)
    for update in (
        lambda: append(folder, more, key=KEY, now_us=111 * day_us),  # older than day 102: expired
        lambda: without_users(folder, [KEY.pseudonym("cleo")]),
        lambda: expire(folder, now_us=112 * day_us),  # older than day 103
    ):
        updated = update()
        assert updated is not None
        sheet = sheet_of(updated)
        assert "| purpose | tests of \\| this |" in sheet
        assert "| lawful basis | contract (Art. 6(1)(b)) |" in sheet
        assert f"| versions before this one | {', '.join(versions)} |" in sheet
        assert "| last updated | never |" not in sheet
        versions.append(updated.dataset_id)
    assert "day.csv" in sheet


def test_stating_it_later_reaches_the_store_that_is_there(tmp_path: Path) -> None:
    first = made(tmp_path, naming=Naming())
    second = made(tmp_path, naming=STATED)
    assert second.dataset_id == first.dataset_id
    assert "| purpose | tests of \\| this |" in sheet_of(first)
    made(tmp_path, naming=Naming())  # left out, it is not taken back
    assert "| purpose | tests of \\| this |" in sheet_of(first)
    assert [path.name for path in (tmp_path / "stores").iterdir()] == [first.dataset_id]


def test_retention_without_times_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from analytics import interactions

    opened = interactions.open_scans
    monkeypatch.setattr(
        interactions,
        "open_scans",
        lambda *args, **more: [
            dataclasses.replace(scan, has_time=False) for scan in opened(*args, **more)
        ],
    )
    with pytest.raises(InputError, match=r"shop\.csv: has no times, so nothing can expire"):
        made(tmp_path, keep_days=30)


def test_times_that_no_calendar_has_are_said_in_words(tmp_path: Path) -> None:
    header = read_header(Path(made(tmp_path, keep_days=36_500).store_dir))
    far = 150_000 * 365 * DAY_S * 1_000_000
    sheet = data_sheet(header, first_us=-far, last_us=far)
    assert "| first and last event | before the year 1 to beyond the year 9999 |" in sheet
    assert "expires on before the year 1, the last on beyond the year 9999" in sheet
    long_ago = data_sheet(header, first_us=-62_135_596_800_000_000, last_us=0)
    assert "| first and last event | 0001-01-01 to 1970-01-01 |" in long_ago
