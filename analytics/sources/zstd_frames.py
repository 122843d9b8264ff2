"""Walks over a zstd file's blocks without unpacking them, to see that it is whole and how large.

DuckDB unpacks zstd, but takes a file that is cut off for one that ends there; rows would be lost
without a word. The blocks' headers tell both the cut and an upper bound of the unpacked size.

Before: unpacked.py met a zstd file.   After: it lets DuckDB unpack it.
Price: one small read a block of 128 KiB. Format: RFC 8878.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_BLOCK = 128 << 10


def most_bytes(path: Path) -> int:
    """An upper bound of what a zstd file unpacks to [bytes].

    Raises ValueError when it is cut off or no zstd; OSError when it cannot be read.
    """
    size = path.stat().st_size
    total = 0
    with path.open("rb") as file:
        while file.tell() < size:
            magic = _exactly(file, 4)
            if magic == _MAGIC:
                total += _frame(file)
            elif magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:  # a frame to be skipped
                file.seek(int.from_bytes(_exactly(file, 4), "little"), 1)
            else:
                raise ValueError("no zstd frame")
        if file.tell() > size:
            raise ValueError("cut off")
    return total


def _frame(file: IO[bytes]) -> int:
    """Step over one frame and return the most its blocks can hold."""
    flags = _exactly(file, 1)[0]
    is_single = flags >> 5 & 1
    size_bytes = (is_single, 2, 4, 8)[flags >> 6]
    _exactly(file, (not is_single) + (0, 1, 2, 4)[flags & 3] + size_bytes)
    total = 0
    while True:
        header = int.from_bytes(_exactly(file, 3), "little")
        kind, size = header >> 1 & 3, header >> 3
        if kind == 3:
            raise ValueError("a block of no known kind")
        total += _LARGEST_BLOCK if kind == 2 else size
        file.seek(1 if kind == 1 else size, 1)
        if header & 1:
            _exactly(file, 4 * (flags >> 2 & 1))  # the checksum
            return total


def _exactly(file: IO[bytes], num_bytes: int) -> bytes:
    found = file.read(num_bytes)
    if len(found) < num_bytes:
        raise ValueError("cut off")
    return found
