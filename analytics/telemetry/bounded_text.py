"""Opens a log of any size as numbered lines, within bounds of memory and disk.

UTF-8 and UTF-16 with or without a byte order mark; a byte that is neither becomes U+FFFD and
spoils its own cell only. gzip, and a tar of one file, are unpacked into the scratch folder, never
into memory. A line longer than LINE_CHARS is cut, and told as cut. A line in which a zero byte
stands is told too: what a crash or a truncated log left there cannot be known, and '1' may be the
rest of '41'. A line of nothing but zero bytes is blank.

Before: a path a person typed.   After: recognising.py looks at the head, an importer at the lines.
Price: one pass; a packed file takes its unpacked size on disk while it is imported.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from analytics.errors import InputError
from analytics.sources.files import shown, unreadable

TOO_LONG, ZERO_BYTE = "line_too_long", "zero_byte"
LINE_CHARS = 1 << 17
HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_SHOWN_ZERO = "\u2400"  # the symbol for it, as it stands in the text of a rejected line
_Line = tuple[int, str, str]
# Logs pack 5 to 40 times; what unpacks more than this is a trap or not a log.
_MOST_RATIO, _FREE_BYTES = 200, 64 << 20


def head(path: Path) -> bytes:
    """The first bytes of a file, unpacked when it is gzip.

    Raises InputError when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    if not start.startswith(_GZIP):
        return start
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(31).decompress(start, HEAD_BYTES)
    return start


def is_packed(path: Path) -> bool:
    """Whether a file is gzip."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def unpacked(path: Path, scratch: Path) -> Path:
    """A gzip file, or the one file of a gzipped tar, as a plain file in the scratch folder.

    Raises InputError when it is damaged, holds several files, or unpacks to more than 200 times
    its size.
    """
    plain = scratch / "unpacked"
    bound = path.stat().st_size * _MOST_RATIO + _FREE_BYTES
    try:
        with gzip.open(path, "rb") as packed, plain.open("wb") as out:
            _copy(packed, out, bound, path)
        if not _is_tar(plain):
            return plain
        member = scratch / "member"
        with tarfile.open(plain, "r:") as archive:
            found = [info for info in archive if info.isreg()]
            if len(found) != 1:
                raise InputError(
                    f"{shown(path)}: the archive holds {len(found)} files. Unpack it and import "
                    "its folder."
                )
            inside = archive.extractfile(found[0])
            assert inside is not None  # a regular member has content
            with member.open("wb") as out:
                _copy(inside, out, bound, path)
        return member
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise InputError(
            f"{shown(path)}: the packed file is damaged or cut off ({error}). Fetch it again."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def decoded(path: Path) -> IO[str]:
    """The text of a file; the caller closes it. Line ends stay as they are read: \\n, \\r\\n, \\r.

    Raises InputError when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
        name = encoding(start)
        return path.open("r", encoding=name, errors="replace", newline=None)
    except OSError as error:
        raise unreadable(path, error) from error


def encoding(start: bytes) -> str:
    """The encoding that the first bytes of a text tell."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # two letters of a header or time without a mark: every other byte is zero
    zeros = [byte == 0 for byte in start[:4]]
    if zeros == [False, True, False, True]:
        return "utf-16-le"
    if zeros == [True, False, True, False]:
        return "utf-16-be"
    return "utf-8-sig"


def decoded_head(start: bytes) -> str:
    """The head of a file as text, its last and perhaps half line left out when there are more.

    Without zero bytes: what form a log has does not depend on damage.
    """
    text = start.decode(encoding(start), errors="replace").replace("\0", "")
    text = io.IncrementalNewlineDecoder(None, translate=True).decode(text, final=True)
    if len(start) >= HEAD_BYTES and "\n" in text:
        text = text[: text.rindex("\n")]
    return text


def numbered_lines(text: IO[str]) -> Iterator[_Line]:
    """Each line: its number from 1, its text without line end, and why it cannot be used.

    The reason is TOO_LONG, ZERO_BYTE, or empty for a line that can. Holds LINE_CHARS characters
    at most; what a longer line has beyond is passed over.
    """
    number = 0
    while line := text.readline(LINE_CHARS):
        number += 1
        fault = ""
        if not line.endswith("\n") and len(line) >= LINE_CHARS:
            rest = "\0"
            while rest and not rest.endswith("\n"):
                rest = text.readline(LINE_CHARS)
                if rest.strip("\0\n"):  # zero bytes are no more of a line than the first of them
                    fault = TOO_LONG
        line = line.rstrip("\n")
        if "\0" in line:
            is_blank = not line.strip("\0 \t") and not fault
            line = "" if is_blank else line.replace("\0", _SHOWN_ZERO)
            fault = fault or ("" if is_blank else ZERO_BYTE)
        yield number, line, fault


def whole_text(line: str) -> str:
    """A line without the zero bytes that stood in it, as it may have been meant."""
    return line.replace(_SHOWN_ZERO, "")


def _copy(source: IO[bytes] | gzip.GzipFile, out: IO[bytes], bound: int, path: Path) -> None:
    written = 0
    while chunk := source.read(_CHUNK):
        written += len(chunk)
        if written > bound:
            raise InputError(
                f"{shown(path)}: it unpacks to more than {_MOST_RATIO} times its size, which no "
                "log does. Unpack it yourself and import what comes out."
            )
        out.write(chunk)


def _is_tar(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(512)[257:262] == b"ustar"
