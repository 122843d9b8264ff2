"""Opens traces: a file, a gzip file, a tar of files, or the folder that holds one a rank.

What a file is, is told by its first bytes and not by its name. What comes out of a compressed file
is counted and bounded, so that a small file cannot fill a machine.

Before: a person names a path.   After: events.py cuts the bytes into events.
Price: the operating system's read and zlib; a block of memory.
"""

from __future__ import annotations

import collections
import dataclasses
import filecmp
import gzip
import io
import itertools
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from analytics.errors import InputError

MAX_BYTES = 8 << 30  # after decompression, of one file
BLOCK_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"
_NAMES = (".json", ".json.gz", ".tar.gz", ".tgz", ".tar")


Readable = IO[bytes] | io.RawIOBase | io.BufferedIOBase


@dataclasses.dataclass(frozen=True)
class Source:
    """One trace: its name, and its bytes, decompressed."""

    name: str
    blocks: Iterator[bytes]


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files that these paths name: themselves, or those of a folder whose name may be a trace.

    Raises InputError when one is missing, a folder holds none, or two are the same to the byte.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(_NAMES))
            if not inside:
                raise InputError(
                    f"{path}: the folder holds no trace, a file that ends in .json, .json.gz or "
                    ".tar.gz. Name the folder that tensorboard_trace_handler wrote to."
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"{path}: this is no file and no folder. Name one that exists.")
    _check_differ(found)
    return found


def not_looked_at(paths: Sequence[Path]) -> list[str]:
    """What lies in the folders among these paths and is taken for no trace, by its name."""
    return sorted(
        str(one)
        for path in paths
        if path.is_dir()
        for one in path.iterdir()
        if not (one.is_file() and one.name.endswith(_NAMES))
    )


def _check_differ(paths: Sequence[Path]) -> None:
    """One rank's trace under two names would count as two ranks that never wait for each other."""
    by_size: dict[int, list[Path]] = {}
    for path in paths:
        by_size.setdefault(path.stat().st_size, []).append(path)
    for alike in by_size.values():
        for one, other in itertools.combinations(alike, 2):
            if filecmp.cmp(one, other, shallow=False):
                raise InputError(
                    f"{one} and {other} are the same to the byte: one rank's trace under two "
                    "names. Leave one out."
                )


def sources(path: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[Source]:
    """The traces in a file: one, or each JSON file of a tar. Each is to be read before the next.

    Raises InputError when it cannot be read, is broken, or grows beyond max_bytes.
    """
    with guarded(path.name), path.open("rb") as raw:
        opened: Readable = raw
        if raw.peek(2)[:2] == _GZIP:
            opened = gzip.GzipFile(fileobj=raw)
        bounded = _Bounded(opened, path.name, max_bytes)
        start = bounded.read(512)
        if start[257:262] != b"ustar":
            yield Source(path.name, _blocks(start, bounded, path.name))
            return
        # a stream can only go forward: the start is read again
        raw.seek(0)
        opened = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP else raw
        with tarfile.open(fileobj=_Bounded(opened, path.name, max_bytes), mode="r|") as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(".json"):
                    inside = tar.extractfile(member)
                    assert inside is not None, "a file of a tar has content"
                    name = f"{path.name}:{member.name}"
                    yield Source(name, _blocks(b"", inside, name))


def distinct_names(names: Mapping[int, str]) -> dict[int, str]:
    """What each rank's file is called among rejects: files of two folders may be named alike."""
    uses = collections.Counter(names.values())
    return {
        rank: name if uses[name] == 1 else f"{name} of rank {rank}" for rank, name in names.items()
    }


class guarded:  # noqa: N801 - a context manager reads as a verb
    """Turns what a broken file raises into an InputError that names it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, EOFError | gzip.BadGzipFile | zlib.error | tarfile.TarError):
            raise InputError(
                f"{self.name}: the compressed file is broken or ends early ({error}). "
                "Copy it again."
            ) from error
        if isinstance(error, OSError):
            raise InputError(
                f"{self.name}: the file cannot be read ({error}). See that it is a file of yours."
            ) from error


class _Bounded(io.RawIOBase):
    """A file that refuses to give more than so many bytes."""

    def __init__(self, inside: Readable, name: str, max_bytes: int) -> None:
        self._inside, self._name, self._left, self._max = inside, name, max_bytes, max_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._inside.read(size if size >= 0 else BLOCK_BYTES) or b""
        self._left -= len(block)
        if self._left < 0:
            raise InputError(
                f"{self._name}: it holds more than {self._max / 2**30:.3g} GiB when decompressed. "
                "If it is a trace all the same, allow more with --max-trace-gib."
            )
        return block


def _blocks(start: bytes, opened: Readable, name: str) -> Iterator[bytes]:
    if start:
        yield start
    while True:
        with guarded(name):
            block = opened.read(BLOCK_BYTES)
        if not block:
            return
        yield block
