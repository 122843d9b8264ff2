"""A file that cannot be used ends with what, where and how to mend, and leaves nothing behind."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pytest

from analytics.errors import ConfigError, InputError, StoreError
from analytics.interactions import PreparedData, prepare
from analytics.preparation import Preparation
from analytics.rules import HistoryRules
from analytics.sources.options import ReadingOptions

ROOT = Path(__file__).resolve().parents[2]


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
    with pytest.raises(InputError, match=r"user_too_short 2.*shortest history \(5 rows\)"):
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path), str(tmp_path / "stores")],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "StoreError:" in done.stdout, done.stdout + done.stderr
    assert "could not be written" in done.stdout
    assert list((tmp_path / "stores").iterdir()) == []
