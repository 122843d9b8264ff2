"""Finds the events of a trace by its lines, without parsing it, where the profiler wrote them.

Kineto writes an event as lines of a fixed beginning:

      {
        "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
        "ts": 1661203462598738, "dur": 19,
        "args": {
          ...
        }
      },

A line ends nowhere inside a text of JSON, where it would have to be escaped, so a line that begins
like these is one of them whatever names and arguments hold. An event is only taken when each part
up to its duration is where it belongs; else, and for all other writers, events.py parses the piece.
What is parsed of the others is left to who needs it: the arguments of most events and the flows
between events are never looked at, and JSON that is broken inside them is not noticed.

Before: events.py gives a piece of a trace.   After: collecting.py takes columns from the lines.
Price: a quarter of parsing; a few arrays as long as the piece has lines.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import orjson

from analytics.kineto.json_text import parse

SEAM = b'\n  },\n  {\n    "ph": "'
_LONGEST_CATEGORY = 64
_PAD = b" " * 2 * _LONGEST_CATEGORY  # so that words can be read beyond the end
_TIMES_AT = len('    "ts": ')
_CATEGORY_AT = len('    "ph": "X", "cat": "')
_DIGITS = b"0123456789 "
_LARGEST_US = 2**52  # 142 years around 1970, as times.MAX_US


@dataclasses.dataclass(frozen=True)
class Lines:
    """The complete events of a piece ("ph": "X"), in its order; places are those of bytes."""

    text: bytes
    num_events: int  # of all phases
    categories: list[tuple[str, np.ndarray]]  # and which events have it; one may come twice
    spans: np.ndarray  # int64 (N, 2), start and end [ns]
    named: np.ndarray  # where the text of the name begins
    timed: np.ndarray  # where the line of the times begins: name, pid and tid are before
    more: np.ndarray  # where the line after it begins, that of the arguments
    closed: np.ndarray  # where the event has ended

    def heads(self, which: np.ndarray) -> list[bytes]:
        """Texts of name, pid and tid of some events, for `head_of`."""
        text, named, timed = self.text, self.named[which].tolist(), self.timed[which].tolist()
        return [text[begin:end] for begin, end in zip(named, timed, strict=True)]

    def others(self, which: np.ndarray) -> list[dict[str, Any]]:
        """What some events tell after their times: `args`, as a rule.

        Raises ValueError when it is no JSON.
        """
        ends = self._ends(which)
        told: list[dict[str, Any]] = parse(b"[{" + b",{".join(ends) + b"]") if ends else []
        if len(told) != len(ends):
            raise orjson.JSONDecodeError("an event ends inside another", "", 0)
        return told

    def whole_numbers(self, key: str, which: np.ndarray) -> list[int] | None:
        """The number under a key of `args` of some events; None when it takes parsing to know.

        It does where one does not have it once, or has objects or escapes around.
        """
        joined = b"".join(self._ends(which))
        if b"\\" in joined or joined.count(b"{") != len(which):
            return None
        # to the end of the event, so that it is found once in each
        found = re.findall(rb'"%s": (\d{1,18})(?:[,\s][^{}]*)?\}\s*\}' % key.encode(), joined)
        return list(map(int, found)) if len(found) == len(which) else None

    def _ends(self, which: np.ndarray) -> list[bytes]:
        text, more, closed = self.text, self.more[which].tolist(), self.closed[which].tolist()
        return [text[begin:end] for begin, end in zip(more, closed, strict=True)]


def parsed_heads(texts: list[bytes]) -> list[dict[str, Any]]:
    """Name, pid and tid of texts that `Lines.heads` gave.

    Raises ValueError when one is no JSON.
    """
    joined = b'},{"name": "'.join(text.removesuffix(b",\n") for text in texts)
    found: list[dict[str, Any]] = parse(b'[{"name": "' + joined + b"}]") if texts else []
    if len(found) != len(texts) or not all(isinstance(head["name"], str) for head in found):
        raise orjson.JSONDecodeError("a name ends inside another, or is no text", "", 0)
    return found


def scan(text: bytes, end: int) -> Lines | None:
    """The events before a place in a text; None when they are written in any other way."""
    text = b"".join((memoryview(text)[:end], _PAD))
    words = np.ndarray((len(text) - 8,), "<u8", text, 0, (1,))  # 8 bytes from each place
    starts = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    first = words[starts]
    opens = np.flatnonzero((first & _mask(4)) == _word("  {\n"))
    closes = np.flatnonzero((first & _mask(3)) == _word("  }"))
    if not _tile(text, starts, opens, closes):
        return None
    heads = opens + 1
    is_phase = first[heads] == _word('    "ph"')
    after = words[starts[heads] + 8]
    is_complete = is_phase & (after == _word(': "X", "'))
    # flows, one or two for each kernel, are known by their first line too
    phase = after & _mask(5)
    is_other = is_phase & ((phase == _FLOWS[0]) | (phase == _FLOWS[1]) | (phase == _FLOWS[2]))
    rest = ~is_complete & ~is_other
    if not _are_of_other_phases(text, starts, opens[rest], closes[rest]):
        return None
    heads, closes = heads[is_complete], closes[is_complete]
    at = starts[heads] + _CATEGORY_AT
    if np.any((words[at - 7] & _mask(7)) != _word('cat": "')):
        return None
    found = _names(text, words, at)
    if found is None:
        return None
    categories, named, is_old = found
    times = heads + 1 + is_old
    if np.any(times + 1 > closes) or np.any(first[times] != _word('    "ts"')):
        return None
    said = np.frombuffer(text, np.uint8)
    if np.any((words[starts[times] + 8] & _mask(2)) != _word(": ")) or np.any(
        said[starts[times] - 2] != ord(",")
    ):
        return None
    # behind the times stand arguments and nothing else, or a key there would be passed over
    has_args = times + 1 < closes
    if np.any(first[times[has_args] + 1] != _word('    "arg')) or np.any(
        (first[closes[has_args] - 1] & _mask(5)) != _word("    }")
    ):
        return None
    if np.any((said[starts[times + 1] - 2] == ord(",")) != has_args):
        return None  # a comma too many, or none where one belongs
    spans = _spans(text, starts[times] + _TIMES_AT, starts[times + 1] - 1)
    if spans is None:
        return None
    return Lines(
        text=text, num_events=len(opens), categories=categories, spans=spans, named=named,
        timed=starts[times], more=starts[times + 1], closed=starts[closes] + 3,
    )  # fmt: skip


def _word(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(text.encode("latin-1"), "little"))


def _mask(num_bytes: int) -> np.uint64:
    return np.uint64((1 << 8 * num_bytes) - 1)


_FLOWS = [_word(f': "{phase}"') for phase in "stf"]


def _tile(text: bytes, starts: np.ndarray, opens: np.ndarray, closes: np.ndarray) -> bool:
    """Whether the lines from each opening one to its closing one are all there is."""
    if not len(opens) or len(opens) != len(closes) or np.any(closes <= opens + 1):
        return False
    if np.any(opens[1:] != closes[:-1] + 1) or np.any(starts[opens[1:]] - starts[closes[:-1]] != 5):
        return False
    said = np.frombuffer(text, np.uint8)
    if np.any(said[starts[closes[:-1]] + 3] != ord(",")):
        return False  # not '  },' and the end of the line
    return not text[: starts[opens[0]]].strip() and not text[starts[closes[-1]] + 3 :].strip()


def _are_of_other_phases(
    text: bytes, starts: np.ndarray, opens: np.ndarray, closes: np.ndarray
) -> bool:
    """Whether these events are sound and none is a complete one."""
    for begin, end in zip(starts[opens].tolist(), (starts[closes] + 3).tolist(), strict=True):
        try:
            event = orjson.loads(text[begin:end])
        except orjson.JSONDecodeError:
            return False
        if event.get("ph", "X") == "X":
            return False
    return True


def _names(
    text: bytes, words: np.ndarray, at: np.ndarray
) -> tuple[list[tuple[str, np.ndarray]], np.ndarray, np.ndarray] | None:
    """(categories, where names begin, whether they are on a line of their own) or None.

    at: where the text of each category begins.
    """
    begins = words[at]
    length = np.zeros(len(at), np.int64)
    found: list[tuple[str, np.ndarray]] = []
    left = np.ones(len(at), bool)
    while left.any():
        one = int(np.argmax(left))
        end = text.find(b'"', at[one], at[one] + _LONGEST_CATEGORY)
        if end < 0:
            return None
        category = text[at[one] : end]
        if b"\\" in category:
            return None
        same = np.flatnonzero(left & (begins == begins[one]))
        for skip in range(8, len(category) + 1, 8):
            word = (category + b'"')[skip : skip + 8]
            read = words[at[same] + skip] & _mask(len(word))
            same = same[read == np.uint64(int.from_bytes(word, "little"))]
        left[same] = False
        length[same] = len(category)
        try:
            found.append((category.decode(), same))
        except UnicodeDecodeError:
            return None
    ends = at + length
    follows = words[ends]
    is_new = (follows == _word('", "name')) & ((words[ends + 8] & _mask(4)) == _word('": "'))
    is_old = (
        (follows == _word('", \n    '))
        & (words[ends + 8] == _word('"name": '))
        & ((words[ends + 16] & _mask(1)) == _word('"'))
    )
    if not np.all(is_new | is_old):
        return None
    return found, ends + np.where(is_old, 17, 12), is_old


def _spans(text: bytes, begin: np.ndarray, end: np.ndarray) -> np.ndarray | None:
    """Start and end [ns] from texts such as `1661203462598738, "dur": 19,`; None for other forms.

    Whole microseconds, or all of them with three decimals, which are taken by their digits.
    """
    if not len(begin):
        return np.empty((0, 2), np.int64)
    length = end - begin + 1  # with the end of the line
    if length.max() > 64:
        return None
    skipped = np.repeat(begin - np.cumsum(length) + length, length)
    said = np.frombuffer(text, np.uint8)[skipped + np.arange(len(skipped))].tobytes()
    durations = np.flatnonzero(np.frombuffer(said, np.uint8) == ord("d"))
    if not np.array_equal(
        np.searchsorted(np.cumsum(length), durations, side="right"), np.arange(len(begin))
    ):
        return None  # not one duration on each line
    joined = said.replace(b', "dur": ', b" ").replace(b",\n", b" ").replace(b"\n", b" ")
    if _has_leading_zero(b" " + joined):
        return None
    num_points = joined.count(b".")
    if num_points:
        points, spaces = (
            np.flatnonzero(np.frombuffer(joined, np.uint8) == ord(mark)) for mark in ". "
        )
        if num_points != len(spaces) or np.any(points + 4 != spaces):
            return None
        joined = joined.replace(b".", b"")
    if joined.translate(None, _DIGITS) or b"  " in joined or joined.startswith(b" "):
        return None
    if joined.count(b" ") != 2 * len(begin):
        return None
    times = np.fromstring(joined, np.int64, sep=" ").reshape(-1, 2)
    if np.any(times >= _LARGEST_US * (1000 if num_points else 1)):
        return None
    if not num_points:
        times *= 1000
    times[:, 1] += times[:, 0]
    return times


def _has_leading_zero(numbers: bytes) -> bool:
    """Whether one of the numbers, each behind a space, has a 0 before another digit."""
    signs = np.frombuffer(numbers, np.uint8)
    is_first = (signs[:-2] == ord(" ")) & (signs[1:-1] == ord("0"))
    return bool(np.any(is_first & (signs[2:] >= ord("0"))))
