"""A lock file held by one process at a time, and given up for lost after a stated time.

Standard library only. The lock belongs to the open file, so it ends with the process, however that
ends; the file itself stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_POLL_S = 0.05  # between two looks; flock itself knows no time-out


@contextlib.contextmanager
def held(
    path: Path,
    *,
    timeout_s: float,
    late: Callable[[], Exception],
    on_wait: Callable[[], None] | None = None,
    mode: int = 0o666,
) -> Iterator[IO[str]]:
    """Hold the lock of `path` while the block runs; its folder must be there.

    late: makes what is raised when another process still holds it after `timeout_s`.
    on_wait: called at every look while waiting; what it raises ends the wait.
    mode: of the file when it is made, less the umask. Yields the file, which is open.
    """
    deadline = time.monotonic() + timeout_s

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    with open(path, "a", encoding="utf-8", opener=opened) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise late() from None
            if on_wait is not None:
                on_wait()
            time.sleep(_POLL_S)  # between two tries of the lock, until the deadline
        yield file


@contextlib.contextmanager
def guarded(path: Path, *, timeout_s: float, late: Callable[[], Exception]) -> Iterator[None]:
    """Hold the lock of `path`, its owner's alone, while the block runs; leave no file behind.

    A file that a killed process left is taken over. late: as for `held`.
    """
    deadline = time.monotonic() + timeout_s
    is_ours = False
    while not is_ours:
        left_s = max(deadline - time.monotonic(), 0.0)
        with held(path, timeout_s=left_s, late=late, mode=0o600) as file:
            # who held it before removed it: then we hold a file that nobody else can find
            with contextlib.suppress(FileNotFoundError):
                is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
            if is_ours:
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def signed(path: Path) -> Iterator[None]:
    """A sign of life: `path` is there and held from its first moment until this process ends.

    Raises FileNotFoundError or BlockingIOError when another process takes its folder or the sign
    away before it has its name.
    """
    born = unnamed(path)
    with born.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        born.rename(path)
        yield


def unnamed(path: Path) -> Path:
    """Where a sign of life is made: held before anybody looks at it under its own name."""
    return path.with_name(f"{path.name}.born")


@contextlib.contextmanager
def left_behind(path: Path) -> Iterator[bool]:
    """Whether a sign of life is there whose process is dead; held while the block runs, if so."""
    try:
        file = path.open("a", encoding="utf-8") if path.is_file() else None
    except OSError:  # gone meanwhile, or not ours
        file = None
    if file is None:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
