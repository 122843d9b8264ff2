"""A file that cannot be used ends in an InputError that mends it and repeats none of its rows."""

import bz2
import gzip
import io
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics.errors import InputError
from analytics.sources import streams
from analytics.sources.faults import explain, is_storage_failure
from tests.analytics.reading_scans import Opener

T = 1_700_000_000
GOOD = "user,item,time\n" + "".join(f"u{n % 7},i{n % 5},{T + n}\n" for n in range(50))
OBJECT = f'{{"user":"a","item":"x","ts":{T}}}\n'
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def zipped(**members: bytes | str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return packed.getvalue()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf\n\n", "the file is empty"),
        (b"user,item,time\n", r"header \(user, item, time\) but no row"),
        (b"who,item,time\na,x,1\n", "usual names of a user.*'who', 'item', 'time'.*--user"),
        (b"user,item\na,x\n", "no time column.*usual names of a time.*--time none"),
        (b"user,item,item,time\na,x,y,1\n", "2 columns could be the item.*--item"),
        (b"user,item,time\na,x,soon\nb,x,late\nb,y,1\n", "2 of 3 values.*'soon' in line 2"),
        (b"user,item,time\na,x,\nb,y,\n", "2 of 2 values.*an empty cell in line 2"),
        (b"user,item,time\na,x,1\nSECRET,y\n", r"line 3 .*2 columns where there should be 3"),
        (b"SECRET1,x2,1700000000\nb1,y2\nc1,z2,1700000001\nd1,z2,1700000001\n", "line 2 .*columns"),
        ((GOOD * 3).encode() + b'"SECRET" b,x,1\n', "line 154 .*a quote that is not closed"),
        (b"user,item,time\na,x,1\nb,\xff\xfe,2\n", "line 3 is not UTF-8.*--encoding"),
        (GOOD.encode() + b"u,\0SECRET,1\n", "line 52 holds zero bytes"),
        (GOOD.encode("utf-16-le"), "line 1 holds zero bytes.*--encoding"),
        (b"hello SECRET\nworld\n", "neither columns nor lists"),
        (b"1 2\n1 3\n2 3\n", "no header and there are only two columns.*--time none"),
        (b"1700000000,5,1700000001\n", "columns 1, 3 could all be the time.*--user 1"),
        (b"a,b,c,d,e,1700000000,f\n" * 3, "7 columns.*--user 1 --item 2 --time 4"),
        (b"PAR1 and nothing else", "Parquet data is damaged"),
        (b"\x80\x04\x95SECRET", "a Python pickle.*never opened"),
        (b"SQLite format 3\0", "a SQLite database"),
        (b"user,item,time\nu," + b"x" * 10_000_000 + b",1\n", "line 2 .*longer than a row"),
        (b"x" * 10_000_000, "neither columns nor lists"),
        (OBJECT.encode() + b'{"user":"SECRET","it', "line 2 .*JSON ends too early"),
        (OBJECT.encode() + b'{"user":SECRET}\n', "line 2 .*not JSON"),
        (b'{"user":1.5,"item":2,"ts":3}', "'user' holds fractions"),
        (b'[1, 2, 3]', "no JSON object"),
        (b'{"user":"a","item":"x","ts":1,"more":' + DEEP.encode() + b"}", "nested too deep"),
        (DEEP.encode(), "no JSON object|cannot be read|nested"),
        (b'{"events":' * 100_000, "cannot be read|nested"),
        (gzip.compress(GOOD.encode())[:-20], "gzip data is damaged or cut off"),
        (gzip.compress(b"\0" * 10_000_000, 1), "line 1 holds zero bytes"),
        (b"\x28\xb5\x2f\xfd" + b"SECRET" * 99, "zstd data is damaged"),
        (b"BZh9" + b"SECRET" * 9, "bzip2 data is damaged"),
        (zipped(a_csv=GOOD)[:-30], "zip archive that is damaged"),
        (zipped(), "empty zip archive"),
        (zipped(README_md="x"), "no file that could be interactions"),
        (zipped(a_csv="hello\n", b_csv="world\n"), "none of its 2 files can be used"),
    ],
)  # fmt: skip
def test_a_bad_file_says_what_where_and_how_and_none_of_its_rows(
    opener: Opener, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=rf"(?s)bad.csv.*{message}") as caught:
        opener.run(opener.text(content, "bad.csv"))
    assert "SECRET" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_bomb_is_stopped_before_it_fills_the_disk(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_RATIO_FROM_BYTES", 1_000_000)
    rows = b"user,item,time\n" + b"1,2,1700000000\n" * 300_000
    for packed in (gzip.compress(rows), zipped(a_csv=rows), bz2.compress(rows)):
        with pytest.raises(InputError, match=r"unpacks to more than [\d,]+ bytes out of"):
            opener.text(packed, "bomb.bin")
        written = sum(file.stat().st_size for file in opener.scratch.rglob("*") if file.is_file())
        assert written < len(rows)
        for file in opener.scratch.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"SECRET,\xff,1700000000\n", r"line 90002 .*not UTF-8"),
        (b"SECRET,1700000000\n", r"line 90002 .*2 columns where there should be 3"),
    ],
)
def test_what_is_wrong_far_down_is_named_by_its_line(
    opener: Opener, tail: bytes, message: str
) -> None:
    good = b"some-user,some-item,1700000000\n" * 90_000  # 2.8 MB, past the head
    scan = opener.text(b"user,item,time\n" + good, "late.csv")
    with (opener.folder / "late.csv").open("ab") as file:
        file.write(tail)
    with pytest.raises(InputError, match=message) as caught:
        opener.run(scan)
    assert "SECRET" not in str(caught.value)


def test_a_misnamed_column_is_answered_with_the_nearest(opener: Opener) -> None:
    content = f"customer_no,sku,ts\na,x,{T}\n"
    with pytest.raises(InputError, match=r"no column 'customerno'.*Did you mean 'customer_no'"):
        opener.text(content, user="customerno")
    with pytest.raises(InputError, match="three different columns"):
        opener.text(content, user="sku")
    with pytest.raises(InputError, match=r"--user is 'who'.*position from 1 to 3"):
        opener.text(f"a,x,{T}\nb,y,{T}\n", item="2", time="3", header=False, user="who")


@pytest.mark.timeout(30)
def test_what_is_no_regular_file_is_refused(opener: Opener) -> None:
    folder = opener.folder
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "empty").mkdir()
    for path, message in (
        (folder / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (folder / "loop", "symbolic links"),
        (folder / "empty", "no file that could be interactions"),
        (folder / "none.csv", "no such file"),
        (folder / "none" / "*.csv", "no such file|no file"),
        (f"{folder}/\0", "zero byte"),
        ("", "the path is empty"),
    ):
        with pytest.raises(InputError, match=message):
            opener.all(path)


def test_a_file_name_that_is_not_utf8_is_read_and_shown(opener: Opener) -> None:
    path = Path(os.fsdecode(os.fsencode(opener.folder) + b"/n\xff\n.csv"))
    path.write_text(GOOD)
    scan = opener.one(path)
    assert len(opener.run(scan)) == 50
    assert scan.label.endswith("/n\\xff\\n.csv")


def test_a_name_with_wildcards_is_one_file(opener: Opener) -> None:
    assert len(opener.run(opener.text(GOOD, "own[1]*.csv"))) == 50


def test_our_faults_and_a_full_disk_are_not_blamed_on_the_file() -> None:
    connection = duckdb.connect()
    for statement, parameters in (("SELECT nothing", {}), ("SELECT $a", {"b": 1})):
        with pytest.raises(duckdb.Error) as caught:
            connection.execute(statement, parameters)
        assert explain("x.csv", caught.value) is None
    full = duckdb.IOException("IO Error: Could not write all bytes to file: No space left")
    assert is_storage_failure(full) and explain("x.csv", full) is None
    quoting = duckdb.InvalidInputException(
        "CSV Error on Line: 3\nOriginal Line: no space, could not write\nExpected Number of "
        "Columns: 3 Found: 2"
    )
    answer = explain("x.csv", quoting)
    assert answer is not None and "line 3 cannot be read (2 columns" in str(answer)


# laws


def rows_or_refusal(opener: Opener, content: bytes, name: str, **options: Any) -> None:
    try:
        scan = opener.text(content, name, **options)
        for row in opener.run(scan)[:1]:
            assert len(row) == 5
        scan.locate(0)
    except InputError as error:
        assert str(error)


SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.timeout(60)
@SETTINGS
@given(st.binary(max_size=400))
def test_random_bytes_give_rows_or_a_refusal(opener: Opener, content: bytes) -> None:
    rows_or_refusal(opener, content, "random.csv")


@pytest.mark.timeout(60)
@SETTINGS
@given(
    st.sampled_from([GOOD, OBJECT * 3, "1 2 3\n4 5\n6 7 8\n", "a::x::5::1700000000\n" * 3]),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from('\0\n\r",;:{}[]\t \ufeffx1é')), max_size=4),
)
def test_damaged_text_gives_rows_or_a_refusal(
    opener: Opener, text: str, changes: list[tuple[float, str]]
) -> None:
    for place, mark in changes:
        at = int(place * len(text))
        text = text[:at] + mark + text[at + 1 :]
    rows_or_refusal(opener, text.encode(), "damaged.csv")


@pytest.mark.timeout(60)
def test_damaged_packed_files_give_rows_or_a_refusal(opener: Opener) -> None:
    path = opener.folder / "whole.parquet"
    opener.connection.execute(
        "COPY (SELECT range AS user_id, range AS item_id, range AS ts FROM range(5000)) "
        f"TO '{path}' (FORMAT parquet)"
    )
    chance = random.Random(7)
    for whole in (path.read_bytes(), zipped(a_csv=GOOD), gzip.compress(GOOD.encode())):
        for _ in range(25):
            damaged = bytearray(whole)
            for _ in range(3):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            rows_or_refusal(opener, bytes(damaged), "damaged.bin")
            rows_or_refusal(opener, whole[: chance.randrange(len(whole))], "cut.bin")


def test_parquet_whose_column_names_are_no_text_is_refused(opener: Opener) -> None:
    path = opener.folder / "names.parquet"
    opener.connection.execute(f"COPY (SELECT 1 AS user_id, 2 AS item_id, 3 AS ts) TO '{path}'")
    with pytest.raises(InputError, match="name of a column is not UTF-8"):
        opener.text(path.read_bytes().replace(b"item_id", b"item\xffid"), "names.parquet")
