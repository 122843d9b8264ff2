"""A set is fetched once, checked and kept whole, or the cache stays as it was."""

import dataclasses
import gzip
import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from analytics import catalogue
from analytics.catalogue import CATALOGUE, DatasetEntry, default_cache_dir, download_note, fetch
from analytics.errors import InputError
from analytics.sources.options import ReadingOptions
from analytics.unpacking import unpack

MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
CONTENT = b"user_id:token\titem_id:token\ttimestamp:float\n1\t2\t3\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def local_wheel(folder: Path, *, name: str = "seqscale_sample", member: str = MEMBER) -> Path:
    """A wheel that pip accepts, with one data file inside."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, CONTENT)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def offer(monkeypatch: pytest.MonkeyPatch, **changes: object) -> DatasetEntry:
    entry = dataclasses.replace(CATALOGUE["ml-100k"], **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(CATALOGUE, "ml-100k", entry)
    return entry


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local wheel, and a pip that looks for wheels nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return local_wheel(folder)


def test_a_file_is_taken_out_of_a_wheel_by_pip_itself_and_only_once(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = offer(
        monkeypatch,
        url="pip:seqscale_sample==1.0",
        sha256=sha256(wheel.read_bytes()),
        file_sha256=sha256(CONTENT),
    )
    path = fetch("ml-100k", tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o600
    assert "was checked" in download_note(entry, path)
    wheel.unlink()  # the second time nothing is asked of pip
    assert fetch("ml-100k", tmp_path / "cache") == path
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["ml-100k.inter"]


def test_a_damaged_file_in_the_cache_is_fetched_again(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, url="pip:seqscale_sample==1.0", sha256=None, file_sha256=sha256(CONTENT))
    cached = tmp_path / "cache" / "ml-100k.inter"
    cached.parent.mkdir()
    cached.write_bytes(b"half of it")
    assert fetch("ml-100k", tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "the download from .* has sha256 .*, expected 0000"),
        ({"sha256": None, "file_sha256": "0" * 64}, "the file from .* expected 0000"),
        ({"sha256": None, "member": "not/there"}, "not the archive it should be.*not/there"),
    ],
)
def test_what_is_not_expected_is_not_kept(
    tmp_path: Path,
    wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    message: str,
) -> None:
    offer(monkeypatch, **{"url": "pip:seqscale_sample==1.0", **changes})
    with pytest.raises(InputError, match=message):
        fetch("ml-100k", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_wheel_that_pip_cannot_find_says_what_pip_said(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, url="pip:seqscale_sample==2.0")
    with pytest.raises(
        InputError, match=r"could not be fetched.*seqscale_sample==2.0.*--interactions"
    ):
        fetch("ml-100k", tmp_path / "cache")


def test_pip_that_hangs_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 600)

    monkeypatch.setattr(catalogue.subprocess, "run", hang)
    with pytest.raises(InputError, match="pip gave no answer in 600 s"):
        fetch("ml-100k", tmp_path / "cache")


def test_an_address_without_a_network_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a port on this host where nothing listens
    offer(monkeypatch, url="https://127.0.0.1:9/nothing.zip")
    with pytest.raises(InputError, match=r"127.0.0.1.*could not be fetched|could not be fetched"):
        fetch("ml-100k", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_download_larger_than_stated_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = tmp_path / "big.bin"
    big.write_bytes(b"x" * 5_000_000)
    entry = offer(
        monkeypatch, url="https://publisher.example/big.bin", size_bytes=1_000_000, sha256=None
    )
    monkeypatch.setattr(
        catalogue.urllib.request, "urlopen", lambda request, timeout: big.open("rb")
    )
    with pytest.raises(InputError, match="more than the 3,000,000 bytes allowed"):
        fetch(entry.name, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_only_https_addresses_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, url="file:///etc/hostname")
    with pytest.raises(InputError, match="is not an https address"):
        fetch("ml-100k", tmp_path / "cache")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data set 'ml-2m'; known are ml-100k, ml-1m"):
        fetch("ml-2m", tmp_path)


def test_every_entry_names_source_size_terms_and_columns() -> None:
    assert set(CATALOGUE) >= {"ml-100k", "ml-1m", "ml-20m", "ml-latest-small", "otto", "yambda"}
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.url.startswith(("https://", "pip:"))
        assert entry.size_bytes > 0
        assert len(entry.terms) > 10
        assert None not in (entry.reading.user, entry.reading.item, entry.reading.time)
        assert entry.sha256 is None or len(entry.sha256) == 64
    assert CATALOGUE["ml-100k"].reading == ReadingOptions(
        user="user_id", item="item_id", time="timestamp"
    )


def test_an_unknown_checksum_is_said_plainly(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    note = download_note(CATALOGUE["otto"], path)
    assert sha256(CONTENT) in note
    assert "none was checked" in note


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQSCALE_CACHE_DIR", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert default_cache_dir() == Path("/one")
    monkeypatch.delenv("SEQSCALE_CACHE_DIR")
    assert default_cache_dir() == Path("/two/seqscale")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "seqscale"


def test_every_publishers_form_becomes_one_readable_file(tmp_path: Path) -> None:
    archive, target = tmp_path / "archive", tmp_path / "target"
    archive.write_bytes(gzip.compress(b"user_id,item\n"))
    unpack(archive, target, kind="gzip", member="")
    assert target.read_bytes() == b"user_id,item\n"

    session = {"session": 7, "events": [{"aid": 1, "ts": 1659304800025, "type": "clicks"}]}
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("ratings.dat", "1::1193::5::978300760\n")
        opened.writestr("train.jsonl", json.dumps(session) + "\n")
        opened.writestr("torn.dat", "1::2\n")
    unpack(archive, target, kind="double_colon", member="ratings.dat")
    assert target.read_text() == "userId,movieId,rating,timestamp\n1,1193,5,978300760\n"
    unpack(archive, target, kind="otto", member="train.jsonl")
    assert target.read_text() == "session,aid,ts,type\n7,1,1659304800025,clicks\n"
    with pytest.raises(ValueError, match="has 2 cells, expected 4"):
        unpack(archive, target, kind="double_colon", member="torn.dat")
