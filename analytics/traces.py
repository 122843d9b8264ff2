"""Searches files for what should no longer be in them: the bytes of an id or a pseudonym.

Before: flows/forgetting.py has erased a person.   After: a person is told where something is left.
Price: every file is read once, Parquet files a second time for what their compression hides; one
pass over memory for each needle.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb


def files_with(roots: Iterable[Path], needles: Sequence[str]) -> list[Path]:
    """The files under these folders that hold a needle, as bytes or in a column of Parquet.

    A file that vanishes or cannot be read meanwhile is passed over.
    """
    wanted = [needle.encode() for needle in needles]
    found = []
    with duckdb.connect() as connection:
        for path in _files(roots):
            try:
                holds = _in_bytes(path, wanted)
                if not holds and path.suffix == ".parquet":
                    holds = _in_columns(connection, path, needles)
            except (OSError, duckdb.Error):
                continue
            if holds:
                found.append(path)
    return found


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    seen = set()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def _in_bytes(path: Path, needles: list[bytes]) -> bool:
    with path.open("rb") as file:
        if path.stat().st_size == 0:  # cannot be mapped
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(needle) >= 0 for needle in needles)


def _in_columns(connection: duckdb.DuckDBPyConnection, path: Path, needles: Sequence[str]) -> bool:
    opened = connection.execute("SELECT * FROM read_parquet($path) LIMIT 0", {"path": str(path)})
    names = [str(name).replace('"', '""') for name, *_ in opened.description or []]
    holds = " OR ".join(f'contains(CAST("{name}" AS VARCHAR), needle)' for name in names)
    found = connection.execute(
        "SELECT count(*) FROM read_parquet($path), (SELECT unnest($needles) AS needle) AS needles "  # noqa: S608
        f"WHERE {holds}",
        {"needles": list(needles), "path": str(path)},
    ).fetchall()
    return bool(found[0][0])
