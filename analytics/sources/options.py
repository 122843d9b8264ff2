"""What a person may say about an interactions file instead of letting it be found out.

Before: the command line's --user, --item, --time and so on.   After: every module of this folder.
Price: none; values are checked once, here.
"""

from __future__ import annotations

import codecs
import dataclasses

from analytics.errors import ConfigError

FORMATS = ("csv", "inter", "json", "json_sessions", "lists", "parquet")
TIME_UNITS = ("s", "ms", "us", "ns", "iso", "yyyymmdd")
NONE = "none"  # --time none, --action none, --rating none
_SPOKEN = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How a file is to be read; None means: find it out and say what was found.

    format: csv (a delimiter between columns), inter (the same with RecBole's typed header, lists
    in token_seq columns included), json (one event an object), json_sessions (one session an
    object, its events in a list), lists (one user a line, then the items in order) or parquet.
    user, item, time, action, rating: a column's name, with or without RecBole's type; in a file
    without a header its position from "1". time "none": the order of the file is the order of time.
    action, rating "none": do not look for one. time_unit: s, ms, us, ns, iso or yyyymmdd.
    delimiter: 1 to 4 bytes, or the words tab, space. encoding: a Python codec such as latin-1.
    header: whether the first line that is not blank names the columns.
    Raises ConfigError for a value out of these.
    """

    format: str | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    action: str | None = None
    rating: str | None = None
    time_unit: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        _one_of("--format", self.format, FORMATS)
        _one_of("--time-unit", self.time_unit, TIME_UNITS)
        if self.delimiter is not None:
            mark = self.delimiter_text or ""
            bad = any(c in mark for c in '\r\n"\0') or (not mark.isprintable() and mark != "\t")
            if not 1 <= len(mark.encode("utf-8", "replace")) <= 4 or (bad and mark != "\x01"):
                raise ConfigError(
                    f"--delimiter {self.delimiter!r}: needed are 1 to 4 bytes without quotes and "
                    "line ends, or one of the words tab and space."
                )
        if self.encoding is not None:
            try:
                is_text = getattr(codecs.lookup(self.encoding), "_is_text_encoding", True)
            except (LookupError, ValueError):
                is_text = False
            if not is_text:
                raise ConfigError(
                    f"--encoding {self.encoding!r}: is no encoding of text that is known. Usual "
                    "ones are utf-8, utf-16, latin-1, cp1252, gb18030 and shift_jis."
                )

    @property
    def delimiter_text(self) -> str | None:
        """The delimiter itself, with words such as 'tab' resolved."""
        if self.delimiter is None:
            return None
        return _SPOKEN.get(self.delimiter.lower(), self.delimiter)

    @property
    def encoding_name(self) -> str | None:
        """The encoding's usual name, such as 'utf-8' or 'iso8859-1'."""
        return None if self.encoding is None else codecs.lookup(self.encoding).name


def spoken(delimiter: str) -> str:
    """A delimiter for a person: 'tab', 'space' or what it is."""
    return {"\t": "tab", " ": "space", "\x01": "byte 1"}.get(delimiter, delimiter)


def _one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ConfigError(f"{option} {value!r}: is not known. Use one of {', '.join(allowed)}.")
