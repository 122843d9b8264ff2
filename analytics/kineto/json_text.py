"""Parses JSON as traces hold it, which is not always JSON.

Before: events.py and lines.py cut a trace.   After: collecting.py takes the events apart.
Price: orjson's; a second look where it is no JSON.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

_BARE = re.compile(rb"([:\[,]\s*)-?(?:[nN]a[nN]|[iI]nf(?:inity)?)\b")


def parse(text: bytes) -> Any:
    """JSON as Python objects, forgiving bare NaN and Infinity and broken UTF-8.

    Raises orjson.JSONDecodeError, a ValueError, when it is no JSON all the same.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        mended = _BARE.sub(rb"\1null", text.decode("utf-8", "replace").encode())
        if mended == text:
            raise
        return orjson.loads(mended)
