"""Reads a pickle that holds plain values alone, and refuses any other before running it.

A pickle is a program. This one may only push numbers, texts, lists, tuples and dictionaries: each
instruction is looked at first, and whatever names a class, calls something or makes memory by a
number in the file is refused.

Before: flight_recorder.py has a file's bytes.   After: it looks at plain values.
Price: a pass of Python over the instructions, about a microsecond each.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

_ALLOWED = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1",
    "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINBYTES", "BINBYTES", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
    "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
})  # fmt: skip


class UnsafePickleError(ValueError):
    """It holds more than plain values, or is no pickle."""


def loads(data: bytes) -> Any:
    """The plain values in a pickle.

    Raises UnsafePickleError when it names a class, calls something, or is broken.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                raise UnsafePickleError(
                    f"it holds the instruction {opcode.name}, which plain values do not need"
                )
            if "PUT" in opcode.name and int(argument or 0) > len(data):
                raise UnsafePickleError("it asks for more memory than it can fill")
        return _PlainUnpickler(io.BytesIO(data)).load()
    except UnsafePickleError:
        raise
    except Exception as error:  # what a broken pickle raises is of no fixed kind
        raise UnsafePickleError(f"it is no whole pickle ({type(error).__name__})") from error


class _PlainUnpickler(pickle.Unpickler):
    """The second lock on the door: no class is found whatever asks for it."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafePickleError(f"it names the class {module}.{name}")
