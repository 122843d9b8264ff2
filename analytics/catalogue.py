"""Public interaction sets by name: where they lie, what they weigh, on which terms.

`ml-100k` comes out of a published wheel (pip's own way to the package index; the wheel is unpacked,
never installed or run), the others from their publishers' addresses. Everything is streamed into a
`.part` file, bounded in size, checked and then renamed, so the cache holds whole files only.

Before: `seqscale fetch NAME`.   After: interactions.py reads the file.
Price: the download; standard library only.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

from analytics.errors import InputError
from analytics.sources.options import ReadingOptions
from analytics.unpacking import unpack

_TIMEOUT_S = 120  # of a silent connection, and of pip per retry
_PIP_TIMEOUT_S = 600
_CHUNK_BYTES = 1 << 20
_BAD_ARCHIVE = (
    KeyError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
)
_SLACK = 1.1  # how much larger than stated a download may be

_GROUPLENS = (
    "GroupLens MovieLens terms: research use, cite Harper and Konstan 2015, no commercial use "
    "without permission, no redistribution without it (https://grouplens.org/datasets/movielens)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """One public set of interactions."""

    name: str
    title: str
    url: str  # an address, or `pip:NAME==VERSION` for a file inside a wheel
    size_bytes: int  # of the download, about
    sha256: str | None  # of the download; None: not known to us, the computed one is shown
    terms: str
    file_name: str  # the file that interactions.py reads, as it is called in the cache
    member: str = ""  # path inside the archive or wheel
    unpacking: str = "as_is"  # as_is, gzip, zip, double_colon or otto
    file_sha256: str | None = None  # of the file, where known
    reading: ReadingOptions


def _movielens(name: str, title: str, size_bytes: int, sha256: str) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        title=title,
        url=f"https://files.grouplens.org/datasets/movielens/{name}.zip",
        size_bytes=size_bytes,
        sha256=sha256,
        terms=_GROUPLENS,
        file_name=f"{name}.csv",
        member=f"{name}/ratings.csv",
        unpacking="zip",
        reading=ReadingOptions(user="userId", item="movieId", time="timestamp"),
    )


_ENTRIES = (
    DatasetEntry(
        name="ml-100k",
        title="MovieLens 100K: 943 users, 1,682 items, 100,000 ratings",
        url="pip:recbole==1.2.1",
        size_bytes=2_130_151,
        sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
        terms=_GROUPLENS,
        file_name="ml-100k.inter",
        member="recbole/dataset_example/ml-100k/ml-100k.inter",
        unpacking="zip",
        file_sha256="4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
        reading=ReadingOptions(user="user_id", item="item_id", time="timestamp"),
    ),
    dataclasses.replace(
        _movielens(
            "ml-1m",
            "MovieLens 1M: 6,040 users, 3,706 items, 1,000,209 ratings",
            5_917_549,
            "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        ),
        member="ml-1m/ratings.dat",
        unpacking="double_colon",
    ),
    _movielens(
        "ml-20m",
        "MovieLens 20M: 138,493 users, 26,744 items, 20,000,263 ratings",
        198_702_078,
        "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
    ),
    _movielens(
        "ml-latest-small",
        "MovieLens latest small: 610 users, 9,724 items, 100,836 ratings",
        978_202,
        "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
    ),
    DatasetEntry(
        name="amazon-musical-instruments",
        title="Amazon Reviews 2023, Musical Instruments, 5-core ratings",
        url="https://mcauleylab.ucsd.edu/public_datasets/data/amazon_2023/benchmark/5core/"
        "rating_only/Musical_Instruments.csv.gz",
        size_bytes=30_000_000,
        sha256=None,
        terms="Amazon Reviews 2023, McAuley Lab: no licence is stated; cite Hou et al. 2024 "
        "(https://amazon-reviews-2023.github.io)",
        file_name="amazon-musical-instruments.csv",
        unpacking="gzip",
        reading=ReadingOptions(user="user_id", item="parent_asin", time="timestamp"),
    ),
    DatasetEntry(
        name="otto",
        title="OTTO sessions: 12.9 million sessions, 1.86 million items, 216.7 million events",
        url="https://www.kaggle.com/api/v1/datasets/download/otto/recsys-dataset"
        "?datasetVersionNumber=1",
        size_bytes=3_000_000_000,
        sha256=None,
        terms="CC BY 4.0, OTTO GmbH & Co KG (https://github.com/otto-de/recsys-dataset)",
        file_name="otto.csv",
        member="otto-recsys-train.jsonl",
        unpacking="otto",
        reading=ReadingOptions(user="session", item="aid", time="ts"),
    ),
    DatasetEntry(
        name="yambda",
        title="Yambda 50M, music listens: 10,000 users",
        url="https://huggingface.co/datasets/yandex/yambda/resolve/main/flat/50m/listens.parquet",
        size_bytes=369_110_332,
        sha256="eed9cbd094af1e189507d2f8132a0dc9653b90e65480125c7cdccd601e0592d1",
        terms="Apache-2.0, Yandex (https://huggingface.co/datasets/yandex/yambda)",
        file_name="yambda.parquet",
        reading=ReadingOptions(user="uid", item="item_id", time="timestamp"),
    ),
)
CATALOGUE: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}


def default_cache_dir() -> Path:
    """SEQSCALE_CACHE_DIR, else seqscale in XDG_CACHE_HOME, else ~/.cache/seqscale."""
    if chosen := os.environ.get("SEQSCALE_CACHE_DIR"):
        return Path(chosen)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "seqscale"
    return Path.home() / ".cache" / "seqscale"


def fetch(name: str, cache_dir: Path) -> Path:
    """The interactions file of a set: downloaded once and checked, later found in the cache.

    Raises InputError when the name is unknown, its source cannot be reached, or a checksum differs.
    """
    if name not in CATALOGUE:
        raise InputError(
            f"There is no data set '{name}'; known are {', '.join(CATALOGUE)}. For a file of your "
            "own use 'seqscale run --interactions FILE'."
        )
    entry = CATALOGUE[name]
    final = cache_dir / entry.file_name
    if final.is_file() and _is_expected(final, entry.file_sha256):
        return final
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache_dir) as folder:
            return _fetch_into(entry, Path(folder), final)
    except OSError as error:
        raise InputError(
            f"{cache_dir}: '{name}' could not be stored ({error}). Free disk space, check that the "
            "folder is writable, or name another in SEQSCALE_CACHE_DIR."
        ) from error


def _fetch_into(entry: DatasetEntry, folder: Path, final: Path) -> Path:
    archive = folder / "download.part"
    if entry.url.startswith("pip:"):
        _pip_download(entry, folder, archive)
    else:
        _download(entry, archive)
    _check(entry, archive, entry.sha256, "download")
    ready = folder / "ready.part"
    try:
        unpack(archive, ready, kind=entry.unpacking, member=entry.member)
    except _BAD_ARCHIVE as error:
        raise InputError(
            f"{entry.name}: what came from {entry.url} is not the archive it should be ({error}). "
            "The publisher may have changed it; give a file of your own with --interactions."
        ) from error
    _check(entry, ready, entry.file_sha256, "file")
    ready.chmod(0o600)
    ready.replace(final)
    return final


def _pip_download(entry: DatasetEntry, folder: Path, archive: Path) -> None:
    """Let pip bring the wheel, by whatever index or mirror it is configured with."""
    requirement = entry.url.removeprefix("pip:")
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(wheels), requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(_no_way(entry, f"pip gave no answer in {_PIP_TIMEOUT_S} s")) from error
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if done.returncode != 0 or not found:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((x for x in lines if x.startswith("ERROR")), lines[-1] if lines else "")
        raise InputError(_no_way(entry, f"pip download {requirement}: {reason[:200] or 'nothing'}"))
    shutil.move(found[0], archive)


def _download(entry: DatasetEntry, archive: Path) -> None:
    limit = int(entry.size_bytes * _SLACK) if entry.sha256 else entry.size_bytes * 3
    if not entry.url.startswith("https://"):
        raise InputError(f"{entry.name}: {entry.url} is not an https address.")
    request = urllib.request.Request(entry.url, headers={"User-Agent": "seqscale"})  # noqa: S310
    try:
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,  # noqa: S310
            archive.open("wb") as file,
        ):
            while chunk := answer.read(_CHUNK_BYTES):
                file.write(chunk)
                if file.tell() > limit:
                    raise InputError(
                        f"{entry.name}: {entry.url} sends more than the {limit:,} bytes allowed "
                        f"for it. The publisher may have changed the set; nothing was kept."
                    )
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise InputError(_no_way(entry, str(error))) from error


def _check(entry: DatasetEntry, path: Path, expected: str | None, what: str) -> None:
    if not _is_expected(path, expected):
        raise InputError(
            f"{entry.name}: the {what} from {entry.url} has sha256 {_sha256(path)}, expected "
            f"{expected}. It is damaged or was changed; nothing was kept. Try again, or give a "
            "file of your own with --interactions."
        )


def download_note(entry: DatasetEntry, path: Path) -> str:
    """One line on how far a fetched file can be trusted: checked, or its computed sha256."""
    if entry.sha256 or entry.file_sha256:
        return f"sha256 {_sha256(path)}, from a download whose checksum is known and was checked"
    return f"sha256 {_sha256(path)}; no checksum is known for this set, so none was checked"


def _is_expected(path: Path, expected: str | None) -> bool:
    return expected is None or _sha256(path) == expected


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_way(entry: DatasetEntry, reason: str) -> str:
    return (
        f"{entry.name}: could not be fetched from {entry.url} ({reason}). Without a way to it, "
        "give a file of your own: 'seqscale run --interactions FILE'."
    )
