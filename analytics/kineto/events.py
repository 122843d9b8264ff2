"""Reads the events of a trace in pieces, so that a trace of any size needs little memory.

The text is cut where one event ends and the next begins, and each piece is parsed on its own. A
cut may fall inside an event that holds objects itself; then the piece is no JSON, and another
place is taken. A piece that parses was cut right: what came before it in a list of events was
whole. Traces written with bare NaN or Infinity, or with names that are no UTF-8, are read too.

Before: files.py gives the bytes.   After: reading.py takes the events apart.
Price: the text and the objects of one piece at a time, about 15 MB.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from analytics.errors import InputError
from analytics.kineto.json_text import parse
from analytics.kineto.lines import SEAM, Lines, scan

PIECE_BYTES = 1 << 20
MAX_HEAD_BYTES = 16 << 20  # a trace's own data before its events
MAX_WHOLE_BYTES = 64 << 20  # what is parsed at once where no place to cut is found
_BOM = b"\xef\xbb\xbf"
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEAM = re.compile(rb'\}\s*,(?=\s*\{\s*(?:("(?:ph|name|cat|pid|args)")|))')
_TRIES = 6
_TIME = re.compile(rb'"(ts|dur)"(\s*:\s*)(-?\d[\d.eE+-]*)')


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some events, and the text they came from."""

    events: list[Any]  # none where there are lines, nor a text
    text: bytes
    is_tail: bool = False  # the text ends the object that holds the list
    lines: Lines | None = None  # where the events need no parsing to be found

    def with_times_as_text(self) -> list[Any]:
        """The same events, the numbers of `ts` and `dur` as texts, so that no digit is lost."""
        said = parse(_TIME.sub(rb'"\1"\2"\3"', self.text))
        events: list[Any] = said["traceEvents"] if self.is_tail else said
        return events


def pieces(blocks: Iterator[bytes], where: str, about: dict[str, Any]) -> Iterator[Piece]:
    """The events of a trace, piece by piece.

    about: gets what the trace says besides its events.
    Raises InputError naming the file, and what it seems to be, when it is no trace.
    """
    text, is_object = _head(blocks, where, about)
    parts, num_bytes = [text], len(text)
    for block in blocks:
        parts.append(block)
        num_bytes += len(block)
        if num_bytes < PIECE_BYTES:
            continue
        text = b"".join(parts)
        cut = _cut_by_lines(text) or _cut(text)
        if cut is None:
            text = _rest(text, blocks, where)
            break
        piece, text = cut
        yield piece
        parts, num_bytes = [text], len(text)
    else:
        text = b"".join(parts)
        cut = _cut_by_lines(text)
        if cut is not None:
            piece, text = cut
            yield piece
    yield _tail(text, is_object, where, about)


def _head(blocks: Iterator[bytes], where: str, about: dict[str, Any]) -> tuple[bytes, bool]:
    """The text after the start of the list of events, and whether an object holds the list."""
    text = b""
    for block in blocks:
        text = (text + block).removeprefix(_BOM)
        if text.lstrip()[:1] == b"[":
            return text.lstrip()[1:], False
        for start in _START.finditer(text):
            try:
                said = parse(text[: start.end()] + b"]}")
            except ValueError:
                continue
            del said["traceEvents"]
            about.update(said)
            return text[start.end() :], True
        if len(text) > MAX_HEAD_BYTES:
            raise InputError(
                f"{where}: there is no list 'traceEvents' in its first "
                f"{MAX_HEAD_BYTES >> 20} MiB, so this is not a trace of the PyTorch profiler."
            )
    raise InputError(f"{where}: {_what_it_is(text)}")


def _what_it_is(text: bytes) -> str:
    if not text.strip():
        return "the file is empty. Write the trace again with prof.export_chrome_trace."
    try:
        said = parse(text)
    except ValueError as error:
        return (
            f"this is not whole JSON ({error}). If it ends early, it was copied while it was "
            "written: copy it again; else write it again with prof.export_chrome_trace."
        )
    if isinstance(said, dict) and "nodes" in said:
        return (
            "this is an execution trace (a graph of operators), which tells no times of a device. "
            "Record a trace of the profiler: torch.profiler.profile(...).export_chrome_trace(PATH)."
        )
    return (
        "there is no list 'traceEvents' in it, so this is not a trace of the PyTorch profiler. "
        "Name files that prof.export_chrome_trace or tensorboard_trace_handler wrote."
    )


def _cut_by_lines(text: bytes) -> tuple[Piece, bytes] | None:
    """The same without parsing, where the events are written as the profiler writes them."""
    seam = text.rfind(SEAM)
    if seam < 0:
        return None
    end = seam + SEAM.index(b",")
    lines = scan(text, end)
    return None if lines is None else (Piece([], b"", lines=lines), text[end + 1 :])


def _cut(text: bytes) -> tuple[Piece, bytes] | None:
    """The whole events of a text and the text after them, or None where no cut is found."""
    for reach in (PIECE_BYTES >> 4, len(text)):
        seams = list(_SEAM.finditer(text, max(0, len(text) - reach)))
        likely = [seam for seam in seams if seam.group(1)][-_TRIES:] or seams[-_TRIES:]
        for seam in reversed(likely):
            whole = b"[" + text[: seam.start() + 1] + b"]"
            try:
                return Piece(parse(whole), whole), text[seam.end() :]
            except ValueError:
                continue
    return None


def _rest(text: bytes, blocks: Iterator[bytes], where: str) -> bytes:
    for block in blocks:
        text += block
        if len(text) > MAX_WHOLE_BYTES:
            raise InputError(
                f"{where}: {MAX_WHOLE_BYTES >> 20} MiB of it hold no place where one event ends "
                "and the next begins, so it is broken or not a trace. Write it again with "
                "prof.export_chrome_trace."
            )
    return text


def _tail(text: bytes, is_object: bool, where: str, about: dict[str, Any]) -> Piece:
    """The last events; what follows them goes to `about`."""
    text = (b'{"traceEvents":[' if is_object else b"[") + text
    try:
        said = parse(text)
    except ValueError as error:
        raise InputError(
            f"{where}: the JSON breaks off or is broken in its last {len(text):,} bytes ({error}). "
            "If it ends early, it was copied while it was written: copy it again; else write it "
            "again with prof.export_chrome_trace."
        ) from error
    events = said.pop("traceEvents") if is_object else said
    about.update(said if is_object else {})
    if not isinstance(events, list):
        raise InputError(f"{where}: 'traceEvents' is said twice and is no list. Write it again.")
    return Piece(events, text, is_tail=is_object)
