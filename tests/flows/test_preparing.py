"""`seqscale prepare`: a folder of the user's choice becomes a store, or the one there grows.

On paper: six users with six events each, one a day from 2023-11-15 on, over six items of six events
each; u0 has a seventh event with an item of its own, u1 one with its first item again; `brief` has
four events, one too few. 42 rows; by default 38 are kept and 4 dropped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analytics.pseudonyms import KEY_VARIABLE, PseudonymKey, find_key
from analytics.sources.options import ReadingOptions
from analytics.store import read_header
from flows.cli import main
from flows.options import RuleFlags
from flows.preparing import append_to

START_S, DAY_S = 1_700_006_400, 86_400  # 2023-11-15T00:00:00Z
USERS = [f"paper-user-{number}" for number in range(6)]
SECRET = "0123456789abcdef-prepare"
Event = tuple[str, str, int, int]
Cli = Callable[..., str]


def events() -> list[Event]:
    """(user, item, day, rating); the rating is the day, or 5."""
    made = [(user, f"i{(u + e) % 6}", e, e) for u, user in enumerate(USERS) for e in range(6)]
    made += [(USERS[0], "rare", 6, 5), (USERS[1], "i1", 6, 5)]
    return made + [("brief", f"i{e}", e, 5) for e in range(4)]


def write(path: Path, rows: list[Event], *, header: bool = True, delimiter: str = ",") -> Path:
    lines = [["user", "item", "time", "rating"]] if header else []
    lines += [[u, i, str(START_S + day * DAY_S), str(rating)] for u, i, day, rating in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "shop.csv", events())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `seqscale ...`; what it says: standard output, or of code 2 the one message."""

    def run(*arguments: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["seqscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert int(ended.value.code or 0) == code, err
        if code == 0:
            return out
        assert out == ""
        assert err.count("Error: ") == 1
        return err

    return run


@pytest.fixture
def prepared(cli: Cli, file: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The answer to `seqscale prepare shop.csv --out store --json` with further options."""

    def run(*options: object, source: Path = file) -> dict[str, Any]:
        said = cli("prepare", source, "--out", tmp_path / "store", "--json", *options)
        answer: dict[str, Any] = json.loads(said)
        return answer

    return run


def arrays(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.glob("*.npy"))}


def user_keys(store: Path) -> set[str]:
    return {
        key for (key,) in duckdb.sql(f"SELECT user_id FROM '{store}/user_map.parquet'").fetchall()
    }


def test_a_file_becomes_a_store_and_every_row_is_accounted_for(
    prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    answer = prepared()
    assert answer["store_dir"] == str(tmp_path / "store")
    assert (answer["num_users"], answer["num_items"]) == (6, 7)
    header = read_header(tmp_path / "store")
    assert (header.dataset_id, header.num_events) == (answer["dataset_id"], 38)
    assert header.num_rows_read == 42 == 38 + header.dropped_rows["user_too_short"]
    # what may be published tells nothing of the one user who was too short
    assert answer["num_rows_read"] == answer["num_rows_kept"] == 38
    assert "user_too_short" not in answer["dropped_rows"]
    assert set(answer["dropped_rows"].values()) == {0}


def test_what_is_printed_adds_up(cli: Cli, file: Path, tmp_path: Path) -> None:
    said = cli("prepare", file, "--out", tmp_path / "store")
    assert "rows: 42 read = 38 kept + 4 dropped (4 user_too_short)" in said
    assert "6 users, 7 items; events: 26 train, 6 validation, 6 test" in said
    assert "user ids: pseudonyms" in said


# options -> what is kept, dropped for which reason, and the events of train, validation and test
RULES: dict[str, tuple[list[str], int, dict[str, int], tuple[int, int, int]]] = {
    # `brief` stays: 7 users with one event of validation and of test each
    "min-history": (["--min-history", "4"], 42, {}, (28, 7, 7)),
    # the rare item and the four events of `brief`
    "core": (["--core", "2"], 37, {"outside_core": 5}, (25, 6, 6)),
    # the day 0 of six users
    "min-rating": (
        ["--rating", "rating", "--min-rating", "1"],
        32, {"below_min_rating": 6, "user_too_short": 4}, (20, 6, 6),
    ),
    "repeats": (["--repeats", "first"], 37, {"repeated_pair": 1, "user_too_short": 4}, (25, 6, 6)),
    # days 0-3 train, day 4 validation, days 5 and 6 test
    "split by time": (
        ["--split", "time", "--validation-from", "2023-11-19", "--test-from", "2023-11-20"],
        38, {"user_too_short": 4}, (24, 6, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_rule_arrives(name: str, prepared: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    options, num_kept, dropped, splits = RULES[name]
    answer = prepared(*options)
    assert answer["num_rows_kept"] == num_kept
    counted = read_header(tmp_path / "store").dropped_rows
    assert {reason: n for reason, n in counted.items() if n} == dropped
    names = ("train", "validation", "test")
    assert tuple(answer["num_in_split"][split] for split in names) == splits


def given_split(tmp_path: Path) -> list[str]:
    """One more event of each of the six users for validation and for test."""
    validation = write(tmp_path / "given" / "v.csv", [(user, "i0", 8, 5) for user in USERS])
    test = write(tmp_path / "given" / "t.csv", [(user, "i1", 9, 5) for user in USERS])
    return ["--validation", str(validation), "--test", str(test)]


def test_a_given_split_arrives(prepared: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    answer = prepared(*given_split(tmp_path))
    assert (read_header(tmp_path / "store").num_rows_read, answer["num_rows_kept"]) == (54, 50)
    splits = answer["num_in_split"]
    assert (splits["train"], splits["validation"], splits["test"]) == (38, 6, 6)


def test_a_given_split_is_profiled_as_it_is_prepared(cli: Cli, file: Path, tmp_path: Path) -> None:
    split = given_split(tmp_path)
    told = json.loads(cli("profile", file, "--json", *split))["dataset"]
    splits = told["num_in_split"]
    assert (splits["train"], splits["validation"], splits["test"]) == (38, 6, 6)
    assert "--test FILE" in cli("profile", file, *split[:2], code=2)


def test_columns_by_position_and_a_delimiter_arrive(
    prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    source = write(tmp_path / "bare.txt", events(), header=False, delimiter="|")
    options = ["--no-header", "--delimiter", "|", "--user", "1", "--item", "2", "--time", "3"]
    answer = prepared(*options, "--format", "csv", source=source)
    assert (read_header(tmp_path / "store").num_rows_read, answer["num_rows_kept"]) == (42, 38)
    assert answer["first_event_utc"] == "2023-11-15"


def test_an_appended_file_gives_the_store_of_both(cli: Cli, tmp_path: Path) -> None:
    # `brief` has too few events on the first days, and enough with the later ones
    later = [(user, f"i{u}", 10 + e, 5) for u, user in enumerate(USERS) for e in range(3)]
    later += [("brief", f"i{e}", 10 + e, 5) for e in range(2)]
    days = tmp_path / "days"
    first, second = write(days / "1.csv", events()), write(days / "2.csv", later)
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    cli("prepare", days, "--out", whole, "--name", "paper")
    cli("prepare", first, "--out", grown, "--name", "paper")
    answer = json.loads(cli("prepare", second, "--out", grown, "--append", "--json"))
    assert (answer["num_rows_read"], answer["num_rows_kept"]) == (62, 62)
    assert arrays(grown) == arrays(whole)
    assert user_keys(grown) == user_keys(whole)
    assert answer["dataset_id"] == read_header(whole).dataset_id


def test_users_are_pseudonyms_unless_their_ids_are_to_be_kept(
    prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    assert prepared()["is_pseudonymised"]
    key = find_key()  # it was made if there was none
    assert key is not None
    assert user_keys(tmp_path / "store") == {key.pseudonym(user) for user in USERS}
    assert not prepared("--keep-user-ids", "--replace")["is_pseudonymised"]
    assert user_keys(tmp_path / "store") == set(USERS)


def test_a_store_of_something_else_is_replaced_only_when_asked(
    cli: Cli, prepared: Callable[..., dict[str, Any]], file: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = prepared()["dataset_id"]
    assert prepared()["dataset_id"] == first  # the very same is no loss
    other = write(tmp_path / "other.csv", events()[:36])
    told = cli("prepare", other, "--out", store, code=2)
    assert "holds the store of 'shop.csv'" in told
    assert "--replace" in told
    assert read_header(store).dataset_id == first
    told = cli("prepare", file, "--out", store, "--min-history", "4", code=2)
    assert "--replace" in told
    second = prepared("--replace", source=other)["dataset_id"]
    assert second != first
    assert read_header(store).dataset_id == second
    assert not list(tmp_path.glob(".making-*"))


def test_a_folder_that_is_no_store_is_left_alone(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for options in ((), ("--replace",)):
        told = cli("prepare", file, "--out", tmp_path / "mine", *options, code=2)
        assert f"{tmp_path / 'mine'}: is there and holds no sequence store" in told
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert "holds no sequence store" in cli("prepare", file, "--out", file, code=2)


def test_an_empty_folder_becomes_the_store_once_the_file_is_read(
    cli: Cli, prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    told = cli("prepare", tmp_path / "nowhere.csv", "--out", store, code=2)
    assert "nowhere.csv" in told
    assert list(store.iterdir()) == []
    prepared()
    assert read_header(store).num_events == 38
    assert store.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.glob(".making-*"))


SETTLED = {
    "a rule": ["--keep-days", "30"],
    "a rule's default": ["--core", "1"],
    "a switch": ["--drop-duplicates"],
    "a split": ["--split", "last"],
    "a file": ["--test", "t.csv"],
    "a name": ["--name", "x"],
    "terms": ["--terms", "x"],
    "a purpose": ["--purpose", "x"],
    "a basis": ["--lawful-basis", "x"],
    "a replacement": ["--replace"],
}


@pytest.mark.parametrize("name", SETTLED)
def test_what_a_store_has_settled_cannot_be_given_to_append(
    name: str, cli: Cli, prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    prepared()
    before = arrays(tmp_path / "store")
    later = write(tmp_path / "later.csv", [(user, "i0", 10, 5) for user in USERS])
    given = ["--append", *SETTLED[name], "--time", "time"]
    told = cli("prepare", later, "--out", tmp_path / "store", *given, code=2)
    assert told.startswith(f"ConfigError: {SETTLED[name][0]}: --append")
    assert "store.json" in told
    assert arrays(tmp_path / "store") == before


def test_what_a_store_has_settled_cannot_be_given_to_profile(
    cli: Cli, prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    prepared()
    told = cli("profile", tmp_path / "store", "--min-history", "9", "--no-header", code=2)
    assert told.startswith("ConfigError: --no-header, --min-history: ")
    assert f"{tmp_path / 'store'} is a sequence store" in told
    assert json.loads(cli("profile", tmp_path / "store", "--json"))["dataset"]["num_users"] == 6


def test_without_its_key_a_store_cannot_grow_and_no_key_is_made(
    cli: Cli, prepared: Callable[..., dict[str, Any]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    prepared()
    key_id = PseudonymKey(secret=SECRET.encode(), where="").key_id
    later = write(tmp_path / "later.csv", [(user, "i0", 10, 5) for user in USERS])
    append = ["prepare", later, "--out", tmp_path / "store", "--append"]
    told = cli(*append, "--keep-user-ids", code=2)
    assert "Leave --keep-user-ids out" in told
    monkeypatch.delenv(KEY_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    told = cli(*append, code=2)
    assert f"made with the key {key_id}" in told
    assert "SEQSCALE_PSEUDONYM_KEY_FILE" in told
    assert "SEQSCALE_PSEUDONYM_KEY." in told
    assert not (tmp_path / "config").exists()
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    assert "rows: 48 read" in cli(*append)


def test_a_store_with_ids_as_they_came_grows_without_a_key(
    prepared: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    prepared("--keep-user-ids")
    later = write(tmp_path / "later.csv", [("new", f"i{e}", 10 + e, 5) for e in range(5)])
    append_to(tmp_path / "store", str(later), reading=ReadingOptions(), keep_user_ids=False)
    assert user_keys(tmp_path / "store") == {*USERS, "new"}
    assert not (tmp_path / "config").exists()


def test_a_place_that_cannot_be_written_names_its_own_option(
    cli: Cli, file: Path, tmp_path: Path
) -> None:
    # a file stands where the folder should be: refused to root as well, unlike a mode
    told = cli("prepare", file, "--out", tmp_path / "shop.csv" / "store", code=2)
    assert "--out" in told


def test_help_lists_the_options_of_every_group_at_once() -> None:
    code = (
        "import sys\n"
        "from flows.cli import main\n"
        "for words in (['prepare', '--help'], ['--help']):\n"
        "    sys.argv = ['seqscale', *words]\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "print([name for name in ('duckdb', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    options = ["--append", "--replace", "--no-header", "--delimiter", "--keep-days", "--core"]
    options += ["--validation-from", "--test-share", "--name", "--lawful-basis", "--keep-user-ids"]
    assert [option for option in options if option not in done.stdout] == []
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_rules_of_a_command_without_options_are_those_of_the_record() -> None:
    rules = RuleFlags().preparation(min_history=5, max_history=100)
    assert (rules.history.min_history, rules.history.max_history) == (5, 100)
    assert (rules.split.kind, rules.keep_days, rules.min_rating) == ("last", None, None)


def test_a_store_made_anew_says_that_people_were_erased_from_the_one_before(
    cli: Cli, prepared: Callable[..., dict[str, Any]], file: Path, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    store = tmp_path / "store"
    prepared()
    cli("prepare", file, "--out", store)
    assert "people were erased" not in caplog.text
    cli("forget", "--user", USERS[0], "--store", store, "--runs-dir", tmp_path / "runs")
    cli("prepare", file, "--out", store, "--replace")
    assert "people were erased from the store that lies here" in caplog.text
