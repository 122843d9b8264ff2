"""A file that cannot be used ends with what, where and how to mend, and leaves nothing behind."""

import gzip
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import duckdb
import pytest

from analytics.errors import ConfigError, InputError, StoreError
from analytics.interactions import PreparedData, prepare
from analytics.preparation import Preparation
from analytics.rules import HistoryRules
from analytics.sources.options import ReadingOptions
from analytics.splits import SplitRule

ROOT = Path(__file__).resolve().parents[2]


def ran(script: str, *arguments: object, timeout: float = 120) -> str:
    """What a script prints, in a process of its own that may limit itself."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def prepared(
    path: Path, *, min_history: int = 1, max_history: int = 10_000, **columns: str
) -> PreparedData:
    return prepare(
        path,
        path.parent / "stores",
        reading=ReadingOptions(**columns),  # type: ignore[arg-type]
        preparation=Preparation(
            history=HistoryRules(min_history=min_history, max_history=max_history)
        ),
    )


def from_text(tmp_path: Path, text: str, **options: int) -> PreparedData:
    path = tmp_path / "events.csv"
    path.write_text(text)
    return prepared(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf\n\n", "the file is empty"),
        (b"user,item,time\n", r"header \(user, item, time\) but no row"),
        (b"who,item,time\na,x,1\n", "usual names of a user.*are 'who', 'item', 'time'.*--user"),
        (b"user,item\na,x\n", "usual names of a time.*--time"),
        (b"user user item time\n", "2 columns could be the user"),
        (b"user,item,item,time\na,x,y,1\n", "2 columns could be the item"),
        (b"user,item,time\na,x,1\na,y,2\n", "only one user is left"),
        (b"user,item,time\na,x,1\nb,x,2\n", "only one item is left"),
        (b"user,item,time\n,x,1\na,,2\n", "none of the 2 rows.*missing_user 1, missing_item 1"),
        (b"user,item,time\na,x,1\na,y,soon\nb,x,late\nb,y,no\n", "3 of 4 values.*'soon' in line 3"),
        (b"user,item,time\na,x,\nb,y,\n", "2 of 2 values.*an empty cell in line 2"),
        (b"user,item,time\na,x,1\nb,y\n", "line 3 cannot be read .2 columns where there should"),
        (b"user,item,time\na,x,1\nb,\xff\xfe,2\n", "not UTF-8 text"),
        (b"\x00\x01\x02\x03binary", "zero bytes"),
        ("user,item,time\na,x,1\n".encode("utf-16"), "only one user is left"),
        (b"PK\x03\x04zip", "zip archive that is damaged or cut off"),
        (b"PAR1 and nothing else", "the Parquet data is damaged"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_why_and_leaves_nothing(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"(?s)bad.csv: .*{message}"):
        prepared(path)
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_byte_that_is_not_utf8_far_down_the_file_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    good = b"some-user,some-item,1700000000\n" * 60_000  # 1.9 MB, past the part that is sniffed
    path.write_bytes(b"user,item,time\n" + good + b"b,\xff,1700000000\n")
    with pytest.raises(InputError, match=r"line 60002 cannot be read \(not UTF-8 text\)"):
        prepared(path)


def test_all_rows_dropped_says_the_counts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"user_too_short 2.*--min-history \(5 rows\)"):
        from_text(tmp_path, "user,item,time\na,x,1\nb,y,2\n", min_history=5)


def test_a_misnamed_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("customer_no,sku,ts\na,x,1\n")
    with pytest.raises(InputError, match=r"no column 'customerno'.*Did you mean 'customer_no'"):
        prepared(path, user="customerno")
    with pytest.raises(InputError, match="three different columns"):
        prepared(path, user="sku")


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    duckdb.sql(f"COPY (SELECT range AS uid, range AS sku, range AS ts FROM range(999)) TO '{path}'")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="the Parquet data is damaged"):
        prepared(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        prepared(tmp_path / "none.csv")
    with pytest.raises(InputError, match="holds no file that could be interactions"):
        prepared(tmp_path)


def test_bounds_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="min_history is 5 and max_history is 4"):
        from_text(tmp_path, "user,item,time\n", min_history=5, max_history=4)


def test_a_stores_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("user,item,time\na,x,1\nb,y,2\n")
    (tmp_path / "stores").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"stores: .*could not be written.*--runs-dir"):
        prepared(path)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    # a limit on file size fails a write as a full disk does
    path = tmp_path / "events.csv"
    rows = (f"user{row % 1000},item{row},{row}\n" for row in range(200_000))
    path.write_text("user,item,time\n" + "".join(rows))
    script = """
        import resource, sys
        from pathlib import Path
        from analytics.errors import StoreError
        from analytics.interactions import prepare
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
        try:
            prepare(Path(sys.argv[1]), Path(sys.argv[2]))
        except StoreError as error:
            print("StoreError:", error)
    """
    said = ran(script, path, tmp_path / "stores")
    assert "StoreError:" in said and "could not be written" in said
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_full_disk_is_not_taken_for_a_damaged_store(tmp_path: Path) -> None:
    # the distinct ids do not fit into the memory given, and the disk takes nothing of them
    path = tmp_path / "events.csv"
    rows = (f"user{row % 60_000:040},item{row:040},{row}\n" for row in range(300_000))
    path.write_text("user,item,time\n" + "".join(rows))
    made = prepared(path)
    script = """
        import resource, sys
        from pathlib import Path
        from analytics.errors import StoreError
        from analytics.store import open_store
        from analytics.store_events import clean_events
        from analytics.store_making import at_work
        from analytics.workplace import connect
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        store = open_store(Path(sys.argv[1]))
        try:
            with at_work(store.path.parent) as folder:
                limited = connect(folder, num_source_bytes=0, memory_limit_gib=0.03)
                clean_events(limited, store)
        except StoreError as error:
            print(type(error.__cause__).__name__, error)
    """
    said = ran(script, made.store_dir)
    assert said.startswith("IOException"), said
    assert "could not be written (the disk could not be written)" in said
    assert "damaged" not in said and "user0" not in said


def test_what_eats_memory_or_is_cut_off_is_refused_within_bounds(tmp_path: Path) -> None:
    rows = "user,item,time\n" + "".join(f"u{n},i{n % 7},{n}\n" for n in range(20_000))
    (tmp_path / "line.csv").write_text("user,item,time\na,x,1\nb," + "y" * 10_000_000 + ",2\n")
    with (tmp_path / "zero.csv").open("wb") as file:
        file.truncate(64 * 2**20)  # all holes
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "deep.jsonl").write_text(f'{{"user":"a","item":{deep},"time":1}}\n')
    (tmp_path / "list.json").write_text(deep)
    plain = tmp_path / "rows.csv"
    plain.write_text(rows)
    whole = {"cut.csv.gz": gzip.compress(rows.encode())}
    for name, form in (("cut.csv.zst", "csv, COMPRESSION zstd"), ("cut.parquet", "parquet")):
        duckdb.sql(f"COPY (FROM '{plain}') TO '{tmp_path / name}' (FORMAT {form})")
        whole[name] = (tmp_path / name).read_bytes()
    with zipfile.ZipFile(tmp_path / "cut.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(plain, "rows.csv")
    whole["cut.zip"] = (tmp_path / "cut.zip").read_bytes()
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    plain.unlink()
    script = """
        import resource, sys
        from pathlib import Path
        from analytics.errors import InputError
        from analytics.interactions import prepare
        resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
        for path in sorted(Path(sys.argv[1]).iterdir()):
            if not path.is_file():
                continue
            try:
                prepare(path, path.parent / "stores", memory_limit_gib=0.5)
            except InputError as error:
                assert path.name in str(error) and len(str(error)) < 1_000
                print(path.name)
    """
    names = ["cut.csv.gz", "cut.csv.zst", "cut.parquet", "cut.zip", "deep.jsonl", "line.csv"]
    assert ran(script, tmp_path, timeout=60).split() == [*names, "list.json", "zero.csv"]


def test_nothing_left_is_told_before_a_split_by_time_is_tried(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("user,item,time\na,x,1\nb,y,2\n")
    shares = SplitRule(kind="time", validation_share=0.1, test_share=0.1)
    with pytest.raises(InputError, match=r"none of the 2 rows is left.*user_too_short 2"):
        prepare(path, tmp_path / "stores", preparation=Preparation(split=shares))


@pytest.mark.parametrize("rating", [float("nan"), float("inf"), -float("inf")])
def test_a_least_rating_is_a_number(rating: float) -> None:
    with pytest.raises(ConfigError, match=r"min_rating is .*finite"):
        Preparation(min_rating=rating)


def test_retention_is_bounded() -> None:
    assert Preparation(keep_days=36_500).oldest_us(0) == -36_500 * 86_400_000_000
    for days in (0, 36_501, 10**30):
        with pytest.raises(ConfigError, match=r"keep_days is \d+; it must be 1 to 36,500"):
            Preparation(keep_days=days)
