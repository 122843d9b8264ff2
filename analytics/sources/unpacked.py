"""Makes of any file one that DuckDB reads as it lies: plain UTF-8 text with one kind of line end.

A file that is that already is read where it is. Packed files (gz, bz2, xz, zst, a member of a zip),
other encodings and mixed line ends are rewritten into the scratch folder, streamed and bounded, so
that the three passes that follow are cheap and a line keeps its number. Blank lines stay.

Before: files.py says which file.   After: shapes.py looks at its head, parquet.py at its footer.
Price: one pass over the bytes (0.06 s a 250 MB) to find zero bytes and line ends; a rewritten file
takes its unpacked size on disk.
"""

from __future__ import annotations

import bz2
import codecs
import dataclasses
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
from analytics.sources.files import shown, unreadable
from analytics.sources.options import ReadingOptions
from analytics.sources.zstd_frames import most_bytes as most_bytes_of_zstd

HEAD_BYTES = 1 << 20
_CHUNK = 1 << 20
_LARGEST_BYTES = 20 << 30  # what a packed file may grow into
_LARGEST_RATIO = 200  # rows of ids shrink 3 to 20 times; beyond this it is a bomb
_RATIO_FROM_BYTES = 256 << 20  # below it the ratio does not matter
# no text holds these bytes, so a line comes whole; DuckDB wants some delimiter
NO_DELIMITER = "\x01\x02\x03\x04"
LONGEST_LINE = 16 << 20

_PACKINGS = (
    (b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"), (b"PK\x03\x04", "zip"), (b"PK\x05\x06", "zip"),
)  # fmt: skip
_FOREIGN = (
    (b"\x80\x02", "a Python pickle, which could run code and is never opened"),
    (b"\x80\x03", "a Python pickle, which could run code and is never opened"),
    (b"\x80\x04", "a Python pickle, which could run code and is never opened"),
    (b"\x80\x05", "a Python pickle, which could run code and is never opened"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3", "a SQLite database"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"ARROW1", "an Arrow file"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
    (b"%PDF", "a PDF"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
)
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_READ_ERRORS = (
    EOFError, OSError, RuntimeError, NotImplementedError, ValueError, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainFile:
    """A file that DuckDB reads as it lies: UTF-8 text with one kind of line end, or Parquet."""

    path: Path
    label: str
    head: bytes  # its first megabyte
    num_bytes: int
    num_source_bytes: int  # as the person gave it, packed
    is_parquet: bool
    decision: dict[str, str]  # compression and encoding
    warnings: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """The path as DuckDB takes it, where * and [ would mean other files."""
        return glob.escape(str(self.path))


def make_plain(
    source: Path,
    *,
    options: ReadingOptions,
    scratch: Path,
    connection: duckdb.DuckDBPyConnection,
    member: str | None = None,
    most_bytes: int | None = None,
) -> PlainFile:
    """Look through a file and, where needed, rewrite it into `scratch`.

    member: of a zip. most_bytes: take only so much of it, cut after a line, to see whether it
    would do. Raises InputError when it is empty, damaged, not text, or not in its encoding;
    OSError when `scratch` cannot be written.
    """
    label = f"{shown(source)}:{member}" if member else shown(source)
    try:
        num_source_bytes = source.stat().st_size
        with source.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise unreadable(source, error) from error
    packing = _first(_PACKINGS, start)
    if packing == "zstd":
        source, packing = _zstd_lines(source, label, scratch, connection), ""
        original = "zstd"
    else:
        original = packing
    chunks = _chunks(source, label, packing, member)
    if packing:
        chunks = _bounded(chunks, label, num_source_bytes, most_bytes)
    first = next(chunks, b"")
    _refuse_foreign(label, first)
    is_parquet = first.startswith(b"PAR1") or options.format == "parquet"
    encoding = "utf-8" if is_parquet else _encoding(label, first, options)
    all_chunks = _chained(first, chunks)
    path, warnings = source, []
    if packing or encoding != "utf-8":
        if encoding != "utf-8":
            all_chunks = _recoded(all_chunks, label, encoding)
        path = _write(all_chunks if is_parquet else _lines_of(all_chunks, label), scratch)
        all_chunks = _chunks(path, label, "", None)
    elif not _is_utf8_name(source):
        path = _linked(source, scratch)
    if not is_parquet and _look_through(all_chunks, label):
        path = _write(_one_line_end(_chunks(path, label, "", None)), scratch)
        warnings.append(f"{label}: holds several kinds of line ends; all were taken as one.")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not is_parquet and not head.strip(b"\xef\xbb\xbf \t\r\n"):
        raise InputError(f"{label}: the file is empty. Give a file with interactions.")
    if not is_parquet:
        _check_utf8(label, head)
    return PlainFile(
        path=path, label=label, head=head, num_bytes=path.stat().st_size,
        num_source_bytes=num_source_bytes, is_parquet=is_parquet, warnings=tuple(warnings),
        decision={"compression": original or "none", "encoding": "" if is_parquet else encoding},
    )  # fmt: skip


def is_zip(path: Path) -> bool:
    """Whether a file's first bytes are those of a zip archive."""
    try:
        with path.open("rb") as file:
            return _first(_PACKINGS, file.read(8)) == "zip"
    except OSError as error:
        raise unreadable(path, error) from error


def _first(table: tuple[tuple[bytes, str], ...], start: bytes) -> str:
    return next((name for mark, name in table if start.startswith(mark)), "")


def _refuse_foreign(label: str, first: bytes) -> None:
    name = _first(_FOREIGN, first[:16])
    if name:
        raise InputError(f"{label}: is {name}. Save it as CSV, JSON lines or Parquet.")


def _chained(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _chunks(source: Path, label: str, packing: str, member: str | None) -> Iterator[bytes]:
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
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, KeyError) as error:
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


def _zstd_lines(
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
    readable = source if _is_utf8_name(source) else _linked(source, scratch)
    target = _write((), scratch)
    with blaming(label):
        connection.execute(
            "COPY (SELECT coalesce(line, '') FROM read_csv($path, auto_detect = false, "  # noqa: S608
            "header = false, columns = {'line': 'VARCHAR'}, compression = 'zstd', quote = '', "
            f"escape = '', delim = $delimiter, max_line_size = {LONGEST_LINE})) TO $target "
            "(FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '\x01')",
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


def _bounded(
    chunks: Iterator[bytes], label: str, num_packed: int, most_bytes: int | None
) -> Iterator[bytes]:
    """The chunks, until they are far more than an honest file of that size holds."""
    num_bytes = 0
    for chunk in chunks:
        num_bytes += len(chunk)
        if most_bytes is not None and num_bytes > most_bytes:
            yield chunk[: chunk.rfind(b"\n") + 1]
            return
        if num_bytes > _limit(num_packed):
            raise _too_large(label, num_packed)
        yield chunk


def _encoding(label: str, first: bytes, options: ReadingOptions) -> str:
    """The encoding by option or by the byte order mark; UTF-8 otherwise."""
    if options.encoding_name is not None:
        return options.encoding_name.replace("utf-8-sig", "utf-8").replace("ascii", "utf-8")
    return _first(_BOMS, first[:4]) or "utf-8"


def _recoded(chunks: Iterable[bytes], label: str, encoding: str) -> Iterator[bytes]:
    """Text of another encoding as UTF-8, without a byte order mark."""
    decoder = codecs.getincrementaldecoder(encoding)()
    num_lines = 0
    try:
        for chunk in chunks:
            text = decoder.decode(chunk)
            num_lines += text.count("\n")
            yield text.encode("utf-8")
        yield decoder.decode(b"", True).encode("utf-8")
    except UnicodeError as error:
        raise InputError(
            f"{label}: after line {num_lines} it is not {encoding} text. Name its encoding with "
            "--encoding, or save it as UTF-8."
        ) from error


def _lines_of(chunks: Iterable[bytes], label: str) -> Iterator[bytes]:
    """The chunks as they are, as long as they are text, so that no zeros fill the disk."""
    num_lines = 0
    for chunk in chunks:
        _refuse_zeros(label, chunk, num_lines)
        num_lines += chunk.count(b"\n")
        yield chunk


def _refuse_zeros(label: str, chunk: bytes, num_lines: int) -> None:
    at = chunk.find(b"\0")
    if at >= 0:
        line = num_lines + chunk.count(b"\n", 0, at) + 1
        raise InputError(
            f"{label}: line {line} holds zero bytes, so it is not text in UTF-8. Save it as UTF-8 "
            "text, or name its encoding with --encoding, for example utf-16-le."
        )


def _look_through(chunks: Iterable[bytes], label: str) -> bool:
    """Whether a text has several kinds of line ends; raises InputError at a zero byte."""
    num_lines = num_feeds = num_returns = num_pairs = 0
    last = b""
    for chunk in chunks:
        if b"\0" in chunk:
            _refuse_zeros(label, chunk, num_lines)
        num_lines += chunk.count(b"\n")
        if num_returns or b"\r" in chunk or last == b"\r":
            num_pairs += chunk.count(b"\r\n") + (last == b"\r" and chunk[:1] == b"\n")
            num_returns += chunk.count(b"\r")
        last = chunk[-1:]
    num_feeds = num_lines - num_pairs
    return sum(n > 0 for n in (num_feeds, num_pairs, num_returns - num_pairs)) > 1


def _one_line_end(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        chunk = held + chunk
        held = b"\r" if chunk.endswith(b"\r") else b""
        chunk = chunk[: len(chunk) - len(held)]
        yield chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if held:
        yield b"\n"


def _check_utf8(label: str, head: bytes) -> None:
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError as error:
        line = head.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{label}: line {line} is not UTF-8 text (byte 0x{head[error.start]:02x}). Save it as "
            "UTF-8, or name its encoding, for example --encoding latin-1."
        ) from error


def _write(chunks: Iterable[bytes], scratch: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix="plain-", dir=scratch)
    with os.fdopen(handle, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
    return Path(name)


def _is_utf8_name(path: Path) -> bool:
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _linked(source: Path, scratch: Path) -> Path:
    """A link whose name DuckDB takes, to a file whose name is not UTF-8."""
    folder = Path(tempfile.mkdtemp(prefix="link-", dir=scratch))
    (folder / "file").symlink_to(source.resolve())
    return folder / "file"
