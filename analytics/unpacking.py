"""Makes one readable interactions file out of what a publisher hands out.

Before: catalogue.py's download.   After: catalogue.py checks and keeps the file.
Price: one pass, streamed; standard library only.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol


class _Readable(Protocol):
    """A zip member or a gzip stream."""

    def read(self, size: int = -1, /) -> bytes: ...


_LARGEST_BYTES = 20 << 30  # the largest set of the catalogue unpacks to 12 GiB


def unpack(archive: Path, target: Path, *, kind: str, member: str) -> None:
    """Write the interactions inside `archive` to `target`.

    kind: as_is, gzip, zip (one member), double_colon (MovieLens 1M's `::`) or otto (JSON lines).
    Raises KeyError for a missing member, ValueError for anything else that is not as expected.
    """
    if kind == "as_is":
        archive.replace(target)
    elif kind == "gzip":
        with gzip.open(archive, "rb") as packed, target.open("wb") as file:
            _copy(packed, file)
    else:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as packed:
            _MEMBER_KINDS[kind](packed, target)


def _plain(packed: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        _copy(packed, file)


def _double_colon(packed: IO[bytes], target: Path) -> None:
    """`user::item::rating::time` without a header becomes CSV with one."""
    with target.open("wb") as file:
        file.write(b"userId,movieId,rating,timestamp\n")
        for line in packed:
            cells = line.rstrip(b"\r\n").split(b"::")
            if len(cells) != 4:
                raise ValueError(f"{line[:60]!r} has {len(cells)} cells, expected 4")
            file.write(b",".join(cells) + b"\n")


def _otto(packed: IO[bytes], target: Path) -> None:
    """One session a line, its events inside, becomes one event a row."""
    with target.open("w", encoding="utf-8") as file:
        file.write("session,aid,ts,type\n")
        for line in packed:
            record = json.loads(line)
            session = record["session"]
            file.writelines(
                f"{session},{event['aid']},{event['ts']},{event['type']}\n"
                for event in record["events"]
            )


_MEMBER_KINDS: dict[str, Callable[[IO[bytes], Path], None]] = {
    "zip": _plain,
    "double_colon": _double_colon,
    "otto": _otto,
}


def _copy(source: _Readable, target: IO[bytes]) -> None:
    """Copy in pieces, with an end to what a small archive may grow into."""
    num_bytes = 0
    while chunk := source.read(1 << 20):
        num_bytes += len(chunk)
        if num_bytes > _LARGEST_BYTES:
            raise ValueError(f"unpacks to more than {_LARGEST_BYTES:,} bytes")
        target.write(chunk)
