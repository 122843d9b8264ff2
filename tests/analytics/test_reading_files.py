"""Real files of other people are read as their authors counted, or refused with what mends them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from analytics.errors import InputError
from analytics.interactions import prepare
from analytics.preparation import Preparation
from analytics.rules import HistoryRules
from analytics.sources.scan import ReadingOptions, Scan
from tests.analytics.reading_scans import Opener

COUNTS = (
    "count(*), count(DISTINCT user_id), count(DISTINCT item_id), count(event_time_us), "
    "count(action), count(rating)"
)


def shared(name: str) -> Path:
    folder = os.environ.get("SEQSCALE_TEST_DATA")
    if not folder:
        pytest.skip("SEQSCALE_TEST_DATA is not set; it names the folder of shared test data")
    return Path(folder) / "interactions" / name


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


@pytest.fixture
def connection(opener: Opener) -> duckdb.DuckDBPyConnection:
    return opener.connection


@pytest.fixture
def scans(opener: Opener) -> Callable[..., list[Scan]]:
    return opener.all


def counted(connection: duckdb.DuckDBPyConnection, scan: Scan) -> tuple[int, ...]:
    row = connection.execute(f"SELECT {COUNTS} FROM ({scan.select})", scan.parameters).fetchone()
    assert row is not None
    return row


# rows, users, items as the manifest has them; then times, actions, ratings that can be read
FILES: list[tuple[str, dict[str, str], tuple[int, ...]]] = [
    ("s3rec/Beauty.txt", {}, (198_502, 22_363, 12_101, 198_502, 0, 0)),
    ("s3rec/Toys_and_Games.txt", {}, (167_597, 19_412, 11_924, 167_597, 0, 0)),
    ("s3rec/LastFM.txt", {}, (52_551, 1_090, 3_646, 52_551, 0, 0)),
    ("s3rec/LastFM_sample.txt", {}, (107_910, 1_090, 3_646, 107_910, 0, 0)),
    ("bert4rec/beauty.txt", {"time": "none"}, (353_962, 40_226, 54_542, 353_962, 0, 0)),
    (
        "movielens_latest_small/ml-latest-small.zip",
        {},
        (100_836, 610, 9_724, 100_836, 0, 100_836),
    ),
    (
        "librec/sample_movielens_rating_100k.dat",
        {},
        (100_000, 5_958, 3_312, 100_000, 0, 100_000),
    ),
    ("librec/sample_movielens_merged.csv", {}, (19_999, 4_710, 2_692, 19_999, 0, 19_999)),
    ("recbole/ml-100k.inter", {}, (100_000, 943, 1_682, 100_000, 0, 100_000)),
    ("recbole/tests/filter_nan_user_or_item.inter", {}, (4, 1, 1, 4, 0, 0)),
    ("recbole/tests/remove_duplication.inter", {}, (3, 1, 1, 3, 0, 0)),
    ("recbole/tests/seq_dataset.inter", {}, (18, 4, 8, 18, 0, 0)),
    # 7 rows and their lists of 1, 2, 3, 1, 1, 2, 1
    ("recbole/tests/seq_benchmark.train.inter", {}, (18, 4, 6, 18, 0, 0)),
    # 3 rows and their lists of 4, 5, 3
    ("recbole/tests/seq_benchmark.valid.inter", {}, (15, 2, 7, 15, 0, 0)),
    (
        "sessionrec/yoochoose-clicks-100k_train_full.txt",
        {},
        (70_278, 17_794, 2_933, 70_278, 0, 0),
    ),
    (
        "sessionrec/yoochoose-clicks-100k_train_tr.txt",
        {},
        (53_254, 13_629, 2_873, 53_254, 0, 0),
    ),
    (
        "sessionrec/yoochoose-clicks-100k_train_valid.txt",
        {},
        (16_539, 4_084, 2_029, 16_539, 0, 0),
    ),
    ("srgnn/sample_train-item-views.csv", {}, (12_391, 2_986, 7_139, 12_391, 0, 0)),
    ("rechub/yidian_news_sampled.csv", {}, (1_000, 2, 979, 1_000, 0, 0)),
    ("coldstart/Musical_Instruments.zip", {}, (10_261, 1_429, 900, 10_261, 0, 10_261)),
    ("deepmatch/movielens_sample.txt", {}, (233, 3, 208, 233, 0, 233)),
    ("misc/motondi_ratings.csv", {"time": "none"}, (100_836, 610, 9_724, 100_836, 0, 100_836)),
    ("splits/yoochoose_iso_first250.dat", {}, (250, 61, 161, 250, 0, 0)),
    ("splits/otto_first10.jsonl", {}, (839, 10, 507, 839, 839, 0)),
]


@pytest.mark.parametrize(("name", "options", "expected"), FILES)
def test_real_files_have_their_published_counts(
    scans: Callable[..., list[Scan]],
    connection: duckdb.DuckDBPyConnection,
    name: str,
    options: dict[str, str],
    expected: tuple[int, ...],
) -> None:
    (scan,) = scans(shared(name), **options)
    assert counted(connection, scan) == expected
    assert scan.num_source_bytes == shared(name).stat().st_size


@pytest.mark.parametrize(("name", "options", "expected"), FILES)
def test_real_files_become_stores_of_the_same_counts(
    tmp_path: Path, name: str, options: dict[str, str], expected: tuple[int, ...]
) -> None:
    num_rows, num_users, num_items, *_ = expected
    every = Preparation(history=HistoryRules(min_history=1))
    reading = ReadingOptions(**options)  # type: ignore[arg-type]
    if num_users == 1:
        with pytest.raises(InputError, match="only one user is left"):
            prepare(shared(name), tmp_path, reading=reading, preparation=every)
        return
    made = prepare(shared(name), tmp_path, reading=reading, preparation=every)
    assert (made.num_rows_read, made.num_users, made.num_items) == (num_rows, num_users, num_items)
    repeats = made.dropped_rows["exact_duplicate"]
    assert made.num_rows_kept == num_rows - repeats
    assert (repeats > 0) == ("seq_benchmark" in name)  # whose rows are growing prefixes


def test_session_rows_are_a_history_and_the_next_item(
    scans: Callable[..., list[Scan]], connection: duckdb.DuckDBPyConnection
) -> None:
    path = shared("sslrec/sports_seq_train.tsv")
    (scan,) = scans(path)
    lines = path.read_text().splitlines()[1:]
    expected = [
        (session, item)
        for session, history, last in (line.split("\t") for line in lines)
        for item in [*history.split(" "), last]
    ]
    rows = connection.execute(f"SELECT user_id, item_id FROM ({scan.select})", scan.parameters)
    assert rows.fetchall() == expected
    assert counted(connection, scan)[1] == 85_226
    assert not scan.has_time and not scan.deduplicate


def test_otto_sessions_are_the_events_of_their_lines(
    scans: Callable[..., list[Scan]], connection: duckdb.DuckDBPyConnection
) -> None:
    path = shared("splits/otto_first10.jsonl")
    expected = [
        (str(record["session"]), str(event["aid"]), event["ts"] * 1000, event["type"])
        for record in map(json.loads, path.read_text().splitlines())
        for event in record["events"]
    ]
    (scan,) = scans(path)
    rows = connection.execute(scan.select, scan.parameters).fetchall()
    assert [row[:4] for row in rows] == expected


def test_diginetica_counts_milliseconds_into_the_day(
    scans: Callable[..., list[Scan]], connection: duckdb.DuckDBPyConnection
) -> None:
    (scan,) = scans(shared("srgnn/sample_train-item-views.csv"))
    first = connection.execute(scan.select, scan.parameters).fetchone()
    # 1;NA;81766;526309;2016-05-09: midnight is 1,462,752,000 s, and 526,309 ms later
    assert first == ("1", "81766", 1_462_752_526_309_000, None, None)
    assert "mostly empty or NA" in scan.decision["user"]
    assert "timeframe" in scan.decision["time"]


def test_prefix_rows_say_that_their_repeats_are_to_be_dropped(
    scans: Callable[..., list[Scan]], connection: duckdb.DuckDBPyConnection
) -> None:
    (scan,) = scans(shared("recbole/tests/seq_benchmark.train.inter"))
    assert scan.deduplicate
    rows = connection.execute(
        f"SELECT DISTINCT user_id, item_id, event_time_us FROM ({scan.select}) "
        "WHERE user_id = '1' ORDER BY event_time_us",
        scan.parameters,
    ).fetchall()
    assert rows == [("1", str(n), n * 1_000_000) for n in (1, 2, 3, 4)]


def test_sampled_negatives_are_warned_of(scans: Callable[..., list[Scan]]) -> None:
    (sampled,) = scans(shared("s3rec/LastFM_sample.txt"))
    assert any("sampled negatives" in warning for warning in sampled.warnings)
    (real,) = scans(shared("s3rec/LastFM.txt"))
    assert real.warnings == ()


@pytest.mark.parametrize("name", ["bert4rec/beauty.txt", "misc/motondi_ratings.csv"])
def test_files_without_times_are_refused_until_told(
    scans: Callable[..., list[Scan]], name: str
) -> None:
    with pytest.raises(InputError, match=r"no time column was found.*--time none"):
        scans(shared(name))


def test_of_an_archive_the_ratings_are_taken_and_the_tags_can_be(
    scans: Callable[..., list[Scan]], connection: duckdb.DuckDBPyConnection
) -> None:
    archive = shared("movielens_latest_small/ml-latest-small.zip")
    (scan,) = scans(archive)
    assert scan.label.endswith("ml-latest-small.zip:ml-latest-small/ratings.csv")
    assert "tags.csv" in scan.warnings[0]
    (tags,) = scans(f"{archive}:ml-latest-small/tags.csv")
    assert counted(connection, tags)[:3] == (3_683, 58, 1_572)


def test_a_pattern_is_one_scan_a_file_and_all_go_into_one_statement(
    scans: Callable[..., list[Scan]], connection: duckdb.DuckDBPyConnection
) -> None:
    found = scans(shared("sessionrec") / "*_tr*.txt")
    assert [scan.label.rsplit("_", 1)[1] for scan in found] == ["full.txt", "tr.txt", "valid.txt"]
    both = " UNION ALL ".join(f"SELECT * FROM ({scan.select})" for scan in found)
    parameters = {key: value for scan in found for key, value in scan.parameters.items()}
    row = connection.execute(f"SELECT count(*) FROM ({both})", parameters).fetchone()
    assert row == (70_278 + 53_254 + 16_539,)
