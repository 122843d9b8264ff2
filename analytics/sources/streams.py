"""Reads the bytes of a file, packed or not, in pieces and within bounds; writes them to scratch.

A damaged or cut off file ends in an InputError, a bomb too; a full disk stays an OSError.

Before: unpacked.py knows the packing.   After: it looks through the pieces.
Price: one pass; 50 to 300 MB/s for what is packed.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import duckdb

from analytics.errors import InputError
from analytics.sources.faults import blaming
from analytics.sources.zstd_frames import most_bytes as most_bytes_of_zstd

_CHUNK = 1 << 20
_LARGEST_BYTES = 20 << 30  # what a packed file may grow into
_LARGEST_RATIO = 200  # rows of ids shrink 3 to 20 times; beyond this it is a bomb
_RATIO_FROM_BYTES = 256 << 20  # below it the ratio does not matter
# no text holds these bytes, so a line comes whole; DuckDB wants some delimiter
NO_DELIMITER = "\x01\x02\x03\x04"
LONGEST_LINE = 16 << 20
# what the unpackers raise on damaged, encrypted or unknown packing; all become a refusal
_READ_ERRORS = (
    EOFError, OSError, RuntimeError, NotImplementedError, ValueError, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile,
)  # fmt: skip


def chunks(source: Path, label: str, packing: str, member: str | None) -> Iterator[bytes]:
    """The bytes of a file, unpacked; a damaged one ends in an InputError."""
    try:
        with _opened(source, packing, member) as file:
            while True:
                try:
                    chunk = file.read(_CHUNK)
                except _READ_ERRORS as error:
                    raise _damaged(label, packing, error) from error
                if not chunk:
                    return
                yield chunk
    except (*_READ_ERRORS, KeyError) as error:
        raise _damaged(label, packing, error) from error


def _opened(source: Path, packing: str, member: str | None) -> IO[bytes] | gzip.GzipFile:
    if packing == "zip":
        archive = zipfile.ZipFile(source)
        return archive.open(member or archive.namelist()[0])
    if packing == "gzip":
        return gzip.open(source, "rb")
    if packing == "bzip2":
        return bz2.open(source, "rb")
    if packing == "xz":
        return lzma.open(source, "rb")
    return source.open("rb")


def _damaged(label: str, packing: str, error: Exception) -> InputError:
    if "password" in str(error) or "encrypted" in str(error):
        return InputError(f"{label}: is locked by a password. Unpack it and give the file inside.")
    if not packing:
        return InputError(f"{label}: cannot be read (read error). Check its permissions and disk.")
    return InputError(
        f"{label}: the {packing} data is damaged or cut off. Fetch the file again, or unpack it "
        "and give the file inside."
    )


def zstd_lines(
    source: Path, label: str, scratch: Path, connection: duckdb.DuckDBPyConnection
) -> Path:
    """The lines of a zstd file; DuckDB unpacks it, for this Python has nothing that does."""
    try:
        num_bytes = most_bytes_of_zstd(source)
    except (ValueError, OSError) as error:
        raise _damaged(label, "zstd", error) from error
    num_packed = source.stat().st_size
    if num_bytes > _limit(num_packed):
        raise _too_large(label, num_packed)
    readable = source if is_utf8_name(source) else linked(source, scratch)
    target = write((), scratch)
    with blaming(label):
        connection.execute(
            "COPY (SELECT coalesce(line, '') FROM read_csv($path, auto_detect = false, "  # noqa: S608
            "header = false, columns = {'line': 'VARCHAR'}, compression = 'zstd', quote = '', "
            f"escape = '', delim = $delimiter, max_line_size = {LONGEST_LINE})) TO $target "
            "(FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER $delimiter)",
            {
                "path": glob.escape(str(readable)),
                "delimiter": NO_DELIMITER,
                "target": str(target),
            },
        )
    return target


def _limit(num_packed: int) -> int:
    """What a packed file may grow into [bytes]."""
    return min(_LARGEST_BYTES, max(_RATIO_FROM_BYTES, _LARGEST_RATIO * num_packed))


def _too_large(label: str, num_packed: int) -> InputError:
    return InputError(
        f"{label}: unpacks to more than {_limit(num_packed):,} bytes out of {num_packed:,}, which "
        "no interactions do. Unpack it yourself and give the file inside."
    )


def bounded(
    pieces: Iterator[bytes], label: str, num_packed: int, most_bytes: int | None
) -> Iterator[bytes]:
    """The chunks, until they are far more than an honest file of that size holds."""
    num_bytes = 0
    for chunk in pieces:
        num_bytes += len(chunk)
        if most_bytes is not None and num_bytes > most_bytes:
            yield chunk[: chunk.rfind(b"\n") + 1]
            return
        if num_bytes > _limit(num_packed):
            raise _too_large(label, num_packed)
        yield chunk


def write(pieces: Iterable[bytes], scratch: Path) -> Path:
    """A new file of these pieces; OSError when the disk does not suffice."""
    handle, name = tempfile.mkstemp(prefix="plain-", dir=scratch)
    with os.fdopen(handle, "wb") as file:
        for chunk in pieces:
            file.write(chunk)
    return Path(name)


def is_utf8_name(path: Path) -> bool:
    """Whether DuckDB can be given the path."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def linked(source: Path, scratch: Path) -> Path:
    """A link whose name DuckDB takes, to a file whose name is not UTF-8."""
    folder = Path(tempfile.mkdtemp(prefix="link-", dir=scratch))
    (folder / "file").symlink_to(source.resolve())
    return folder / "file"
