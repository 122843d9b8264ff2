"""Makes of any file one that DuckDB reads as it lies: plain UTF-8 text with one kind of line end.

A file that is that already is read where it is. Packed files (gz, bz2, xz, zst, a member of a zip),
other encodings and mixed line ends are rewritten into the scratch folder, streamed and bounded, so
that the three passes that follow are cheap and a line keeps its number. Blank lines stay.

Before: files.py says which file.   After: shapes.py looks at its head, parquet.py at its footer.
Price: one pass over the bytes (0.06 s a 250 MB) to find zero bytes and line ends; a rewritten file
takes its unpacked size on disk.
"""

from __future__ import annotations

import codecs
import dataclasses
import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

import duckdb

from analytics.errors import InputError
from analytics.sources.files import shown, unreadable
from analytics.sources.options import ReadingOptions
from analytics.sources.streams import bounded, chunks, is_utf8_name, linked, write, zstd_lines

HEAD_BYTES = 1 << 20

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainFile:
    """A file that DuckDB reads as it lies: UTF-8 text with one kind of line end, or Parquet."""

    path: Path
    source_path: Path  # the file that the person gave; a zip's, when it is a member
    name: str  # of the source without its folder, such as "ml.zip:ml/ratings.csv"
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
    packing, num_source_bytes = _packing(source)
    path, unpacks_here = source, packing not in ("", "zstd")
    if packing == "zstd":
        path = zstd_lines(source, label, scratch, connection)
    pieces = chunks(path, label, packing if unpacks_here else "", member)
    if unpacks_here:
        pieces = bounded(pieces, label, num_source_bytes, most_bytes)
    first = next(pieces, b"")
    _refuse_foreign(label, first)
    is_parquet = first.startswith(b"PAR1") or options.format == "parquet"
    encoding = "utf-8" if is_parquet else _encoding(first, options)
    pieces = _chained(first, pieces)
    if encoding != "utf-8":
        pieces = _recoded(pieces, label, encoding)
    if encoding != "utf-8" or unpacks_here:
        path = write(pieces if is_parquet else _lines_of(pieces, label), scratch)
    elif not is_utf8_name(path):
        path = linked(path, scratch)
    warnings: tuple[str, ...] = ()
    if not is_parquet and _look_through(chunks(path, label, "", None), label):
        path = write(_one_line_end(chunks(path, label, "", None)), scratch)
        warnings = (f"{label}: holds several kinds of line ends; all were taken as one.",)
    return PlainFile(
        path=path,
        source_path=source,
        name=shown(source.name) + (f":{member}" if member else ""),
        label=label,
        head=_head(path, label, is_parquet),
        num_bytes=path.stat().st_size,
        num_source_bytes=num_source_bytes,
        is_parquet=is_parquet,
        warnings=warnings,
        decision={"compression": packing or "none", "encoding": "" if is_parquet else encoding},
    )


def is_zip(path: Path) -> bool:
    """Whether a file's first bytes are those of a zip archive."""
    return _packing(path)[0] == "zip"


def _packing(path: Path) -> tuple[str, int]:
    """How a file is packed by its first bytes, empty when it is not, and its size."""
    try:
        with path.open("rb") as file:
            return _first(_PACKINGS, file.read(8)), path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def _head(path: Path, label: str, is_parquet: bool) -> bytes:
    """A file's first megabyte; of a text it must hold something, in UTF-8."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not is_parquet:
        if not head.strip(b"\xef\xbb\xbf \t\r\n"):
            raise InputError(f"{label}: the file is empty. Give a file with interactions.")
        _check_utf8(label, head)
    return head


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


def _encoding(first: bytes, options: ReadingOptions) -> str:
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
