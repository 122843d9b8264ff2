"""Folders, patterns and archives: what is read, what is left out, what is never guessed."""

import hashlib
import zipfile
from pathlib import Path

import duckdb
import pytest

from analytics.errors import InputError
from analytics.sources.scan import source_sha256
from tests.analytics.reading_scans import Opener

T = 1_700_000_000  # 14 November 2023


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def test_a_folder_of_parts_is_read_in_order_and_says_what_it_left_out(opener: Opener) -> None:
    folder = opener.folder / "parts"
    folder.mkdir()
    for name, user in (("part-1.csv", "b"), ("part-0.csv", "a")):
        (folder / name).write_text(f"user,item,time\n{user},x,{T}\n")
    for name in ("README.md", ".hidden", "_SUCCESS", "movies.csv"):
        (folder / name).write_text("movieId,title\n1,Heat\n")
    found = opener.all(folder)
    assert [opener.run(scan, "user_id") for scan in found] == [[("a",)], [("b",)]]
    for name in ("README.md", ".hidden", "_SUCCESS", "movies.csv"):
        assert name in found[0].warnings[0]
    (folder / "tags.csv").write_text(f"user,movie_id,date\na,x,{T}\n")
    with pytest.raises(InputError, match=r"2 different kinds.*pattern"):
        opener.all(folder)


def test_an_archive_with_two_candidates_says_how_to_choose(opener: Opener) -> None:
    path = opener.folder / "two.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", f"user,item,time\na,x,{T}\n")
        archive.writestr("../../b.csv", f"user,item,time\nb,x,{T}\n")
    with pytest.raises(InputError, match=r"2 of its files.*two.zip:MEMBER"):
        opener.one(path)
    scan = opener.one(f"{path}:../../b.csv")
    assert opener.run(scan, "user_id") == [("b",)]
    assert not (opener.folder.parent / "b.csv").exists()
    with pytest.raises(InputError, match=r"no member 'c.csv'. Its members are a.csv"):
        opener.one(f"{path}:c.csv")


def test_zstd_keeps_every_line_and_sees_a_cut(opener: Opener) -> None:
    packed = opener.folder / "z.csv.zst"
    lines = [f"u{row % 7},\x01{row},{T + row}" for row in range(50_000)]
    text = "user,item,time\n\n" + "\n".join(lines)
    duckdb.execute(
        "COPY (SELECT nullif(unnest(string_split($text, chr(10))), '')) "
        f"TO '{packed}' (FORMAT csv, COMPRESSION zstd, HEADER false, QUOTE '', DELIMITER '\x02')",
        {"text": text},
    )
    scan = opener.one(packed)
    assert opener.run(scan, "item_id") == [(f"\x01{row}",) for row in range(50_000)]
    assert scan.locate(0) == "line 3"
    for cut in (10, 4, 1000):
        packed.write_bytes(packed.read_bytes()[:-cut])
        with pytest.raises(InputError, match="zstd data is damaged or cut off"):
            opener.one(packed)


def test_the_hash_of_a_source_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("b")
    (tmp_path / "a.csv").write_text("a")
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"a", b"b"))
    assert source_sha256(tmp_path / "a.csv") == one
    expected = hashlib.sha256(f"a.csv {one}\nb.csv {two}\n".encode()).hexdigest()
    assert source_sha256(tmp_path) == expected == source_sha256(tmp_path / "*.csv")
