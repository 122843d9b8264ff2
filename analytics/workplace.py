"""Where a store is made: a private folder beside its final place, and a database that keeps to it.

The folder is removed whatever happens, with the spill and every raw id in it. A killed process
cannot do that: the lock it held is free then, and the next one to work in the same place, or
`seqscale forget`, removes what it left at once.

Before: interactions.py asks for a workplace.   After: the finished store is renamed into place.
Price: disk for the spill, bounded by `max_temp_directory_size`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import filecmp
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

from analytics.data_sheet import SHEET_NAME, says_more
from analytics.errors import StoreError
from analytics.locks import left_behind, signed, unnamed
from analytics.store import MAP_NAMES, open_store

_MAKING = ".making-"
_LOCK_NAME = "lock"
_STALE_S = 86_400  # a working folder this old without a lock was left by an earlier version
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100
_GIB = 2**30


@contextlib.contextmanager
def working_folder(beside: Path) -> Iterator[Path]:
    """A folder of our own in `beside`, which is made if need be; removed whatever happens."""
    beside.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove_dead(beside)
    with contextlib.ExitStack() as signs:
        folder = _signed_folder(beside, signs)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                _empty(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _signed_folder(beside: Path, signs: contextlib.ExitStack) -> Path:
    """A new folder with a sign of life in it.

    Until it is signed it looks like one that a process left which was killed just then, so another
    process may take it away: then the next is made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_MAKING, dir=beside))
        try:
            signs.enter_context(signed(folder / _LOCK_NAME))
        except (FileNotFoundError, BlockingIOError):
            continue
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder


def remove_dead(beside: Path) -> list[Path]:
    """Remove the working folders that killed processes left; those that remain, living or not."""
    for old in beside.glob(f"{_MAKING}*"):
        with contextlib.suppress(OSError), left_behind(old / _LOCK_NAME) as is_dead:
            has_lock = (old / _LOCK_NAME).exists()
            if is_dead or (not has_lock and time.time() - old.stat().st_mtime > _STALE_S):
                _empty(old)
                shutil.rmtree(old, ignore_errors=True)
            elif not has_lock:
                _remove_unsigned(old)
    return sorted(beside.glob(f"{_MAKING}*"))


def _remove_unsigned(folder: Path) -> None:
    """Remove a folder whose process was killed before it had signed it, or while it removed it.

    It holds nothing, or the sign before it has its name; one that holds more stays. Raises OSError.
    """
    born = unnamed(folder / _LOCK_NAME)
    with left_behind(born) as is_dead:
        if is_dead:
            born.unlink()
        folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove all but the lock, which goes last: what is left half-removed can still be told."""
    for child in folder.iterdir():
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        elif child.name != _LOCK_NAME:
            child.unlink(missing_ok=True)


def connect(
    folder: Path, *, num_source_bytes: int, memory_limit_gib: float | None
) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that spills to the working folder, both bounded, without a network.

    memory_limit_gib: None takes 1.5 times the source, at least 0.5 and at most 2 GiB or half of the
    machine's memory.
    """
    limit_gib = memory_limit_gib
    if limit_gib is None:
        total_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
        limit_gib = min(max(1.5 * num_source_bytes / _GIB, 0.5), 2.0, total_gib / 2)
    # staged numbers, one sort and the ids: never more than eight times the text, nor twenty times
    # a compressed file
    spill_gib = 4 + 20 * num_source_bytes / _GIB
    connection = duckdb.connect(
        ":memory:",  # spills to the folder when it must; a file would be written always (1 s of 7)
        config={
            "memory_limit": f"{limit_gib * 1024:.0f}MiB",
            "temp_directory": str(folder / "spill"),
            "max_temp_directory_size": f"{spill_gib:.0f}GiB",
            "threads": str(min(os.cpu_count() or 1, 8)),  # each thread needs memory of its own
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    # the distinct ids are the smaller side; DuckDB cannot know that of a text file and would build
    # its hash table of the events (12.6 s instead of 4.0 s for 10 million rows)
    connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    connection.execute("SET force_compression = 'uncompressed'")  # read once: half the time
    return connection


def put_in_place(store_folder: Path, final: Path) -> None:
    """Rename a finished store to where it belongs, unless the same one is there, whole, already.

    A different one that is there is exchanged for it in one step, and removed with the working
    folder: a reader finds the one or the other, never half of either. So is the same one when its
    data sheet lacks what this one's says.
    """
    for file in store_folder.iterdir():
        file.chmod(0o600)
    if final.exists():
        if _is_same(final, store_folder) and not says_more(store_folder, final):
            return
        _exchange(store_folder, final)
        return
    try:
        store_folder.rename(final)
    except OSError:
        if not _is_same(final, store_folder):  # else another process was faster with the same
            raise


def is_whole(path: Path) -> bool:
    """Whether a store is there with all its parts."""
    try:
        open_store(path)
    except StoreError:
        return False
    return all((path / f"{name}.parquet").is_file() for name in MAP_NAMES)


def storage_error(path: Path, error: Exception) -> StoreError:
    """What to tell a user whose disk or memory did not suffice."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, duckdb.Error):  # its own words may quote a row
        is_memory = isinstance(error, duckdb.OutOfMemoryException)
        reason = "the memory did not suffice" if is_memory else "the disk could not be written"
    return StoreError(
        f"{path}: the sequence store could not be written ({reason}). Nothing half-written was "
        "left. Free disk space (about four times the size of the file is needed), check that the "
        "folder is writable, or choose another place (--out, --runs-dir)."
    )


def _is_same(final: Path, made: Path) -> bool:
    """Whether the store that is there is the one just made, to the byte; a damaged one is not."""
    if not is_whole(final) or not (final / SHEET_NAME).is_file():
        return False
    if (final / SHEET_NAME).read_bytes()[-40:] != (made / SHEET_NAME).read_bytes()[-40:]:
        return False  # cut short: all sheets end alike, though a person's words may differ
    if open_store(final).header.content_sha256 != open_store(made).header.content_sha256:
        return False
    names = sorted(path.name for path in made.iterdir() if path.suffix in (".npy", ".parquet"))
    return filecmp.cmpfiles(final, made, names, shallow=False)[0] == names


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders in one step; where the kernel cannot, in two renames."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = -1
    if hasattr(libc, "renameat2"):
        done = libc.renameat2(
            _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
        )
        number = ctypes.get_errno()
        if done != 0 and number not in (errno.ENOSYS, errno.EINVAL):  # not "cannot", but "failed"
            raise OSError(number, os.strerror(number), str(other))
    if done != 0:
        _exchange_in_two(one, other)


def _exchange_in_two(one: Path, other: Path) -> None:
    """Put one folder in another's place, and that one beside the first; or change nothing."""
    aside = one.with_name(f"{one.name}-old")
    try:
        other.rename(aside)
        one.rename(other)
    except BaseException:
        if aside.exists() and not other.exists():  # else it would go with the working folder
            aside.rename(other)
        raise
