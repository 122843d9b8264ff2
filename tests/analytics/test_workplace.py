"""What a store is made in is closed to others, and nothing of it outlives its process for long."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from analytics import store_making, workplace
from analytics.errors import InputError
from analytics.workplace import remove_dead, working_folder

# as the command line does: a signal to end becomes an exit, which cleans up
AT_WORK = """
import signal, sys, time
from pathlib import Path
from analytics.workplace import working_folder
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
with working_folder(Path(sys.argv[1])) as folder:
    (folder / "spill").mkdir()
    (folder / "spill" / "ids").write_text("anna-customer-1001")
    print(folder, flush=True)
    time.sleep(60)
"""


@contextmanager
def at_work(beside: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-c", AT_WORK, str(beside)]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


def test_whatever_the_umask_a_store_is_its_owners_alone(shop, monkeypatch):
    seen: list[int] = []
    write_files = store_making.write_files

    def looking(connection, folder, *rest):  # type: ignore[no-untyped-def]
        seen.append(folder.parent.stat().st_mode & 0o777)
        return write_files(connection, folder, *rest)

    monkeypatch.setattr(store_making, "write_files", looking)
    before = os.umask(0)
    try:
        data = shop.prepared(*shop.NAMES)
    finally:
        os.umask(before)
    assert seen == [0o700]
    found = modes(Path(data.store_dir))
    assert found.pop(data.dataset_id) == 0o700
    assert set(found) > {"store.json", "data_sheet.md", "user_map.parquet", "items.npy"}
    assert set(found.values()) == {0o600}
    assert shop.stores.stat().st_mode & 0o777 == 0o700


def test_nothing_is_left_beside_a_store(shop):
    data = shop.prepared(*shop.NAMES)
    assert [path.name for path in shop.stores.iterdir()] == [data.dataset_id]


def test_nothing_is_left_of_a_failure(shop):
    with pytest.raises(InputError):
        shop.prepared(shop.ANNA)  # one user is too few
    assert list(shop.stores.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="locks and signals as on Linux")
def test_nothing_is_left_when_told_to_end(tmp_path):
    with at_work(tmp_path) as (process, folder):
        assert (folder / "spill" / "ids").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_at_once_and_a_living_ones_stays(tmp_path):
    with at_work(tmp_path) as (process, folder):
        with working_folder(tmp_path) as mine:
            assert folder.exists()
            assert remove_dead(tmp_path) == sorted([folder, mine])
            process.kill()
            process.wait(timeout=30)
            assert (folder / "spill" / "ids").exists()
        with working_folder(tmp_path):
            assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_only_half_removed_can_still_be_told(tmp_path, monkeypatch):
    left = tmp_path / ".making-x"
    (left / "old").mkdir(parents=True)
    for name in ("lock", "old/ids", "prepare.duckdb"):
        (left / name).touch()
    with monkeypatch.context() as patch:
        patch.setattr(workplace.shutil, "rmtree", lambda *_, **__: None)
        assert remove_dead(tmp_path) == [left]
    assert (left / "lock").exists() and not (left / "prepare.duckdb").exists()
    assert remove_dead(tmp_path) == []


def test_a_folder_with_something_in_it_and_no_lock_is_given_a_day(tmp_path):
    # an earlier version left it, or is at work in it
    young, old = tmp_path / ".making-young", tmp_path / ".making-old"
    for folder in (young, old):
        (folder / "spill").mkdir(parents=True)
    os.utime(old, (0, time.time() - 86_500))
    assert remove_dead(tmp_path) == [young]
    shutil.rmtree(young)


def test_a_folder_of_a_process_killed_before_it_signed_it_goes_at_once(tmp_path):
    # killed after the folder was made or before it was removed, and while the sign had no name yet
    (tmp_path / ".making-empty").mkdir()
    (tmp_path / ".making-unnamed").mkdir()
    (tmp_path / ".making-unnamed" / "lock.born").touch()
    held_one = tmp_path / ".making-held"
    held_one.mkdir()
    with (held_one / "lock.born").open("w") as file:  # alive: it is just about to give the name
        fcntl.flock(file, fcntl.LOCK_EX)
        assert remove_dead(tmp_path) == [held_one]
    assert remove_dead(tmp_path) == []


@pytest.mark.parametrize("taken", ["the folder", "the sign"])
def test_who_loses_an_unsigned_folder_to_another_makes_the_next(tmp_path, monkeypatch, taken):
    first: list[Path] = []
    mkdtemp, flock = workplace.tempfile.mkdtemp, fcntl.flock

    def made(**where):  # type: ignore[no-untyped-def]
        folder = Path(mkdtemp(**where))
        if taken == "the folder" and not first:
            assert remove_dead(tmp_path) == []
        first.append(folder)
        return str(folder)

    def locked(file, how):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(fcntl, "flock", flock)
        assert remove_dead(tmp_path) == []  # between the opening of the sign and its locking
        flock(file, how)

    monkeypatch.setattr(workplace.tempfile, "mkdtemp", made)
    if taken == "the sign":
        monkeypatch.setattr(fcntl, "flock", locked)
    with working_folder(tmp_path) as folder:
        assert folder == first[1]
        assert list(tmp_path.iterdir()) == [folder]
        (folder / "spill").mkdir()
    assert list(tmp_path.iterdir()) == []


# exchanging two folders


def pair(folder: Path) -> tuple[Path, Path]:
    for name in ("new", "old"):
        (folder / name).mkdir()
        (folder / name / name).touch()
    return folder / "new", folder / "old"


def test_a_kernel_that_cannot_exchange_two_folders_renames_them(tmp_path, monkeypatch):
    new, old = pair(tmp_path)
    monkeypatch.setattr(workplace.ctypes, "CDLL", lambda *_, **__: object())
    workplace._exchange(new, old)
    assert [path.name for path in old.iterdir()] == ["new"]
    assert (tmp_path / "new-old" / "old").exists()


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_between_two_renames_leaves_the_old_folder_in_its_place(
    tmp_path, monkeypatch, failure
):
    new, old = pair(tmp_path)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self == new:
            raise failure
        return rename(self, target)

    monkeypatch.setattr(workplace.ctypes, "CDLL", lambda *_, **__: object())
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(type(failure)):
        workplace._exchange(new, old)
    assert [path.name for path in old.iterdir()] == ["old"]
    assert [path.name for path in new.iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_an_exchange_that_fails_for_another_reason_is_not_tried_in_two(tmp_path, monkeypatch):
    new, _ = pair(tmp_path)
    monkeypatch.setattr(workplace, "_exchange_in_two", pytest.fail)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        workplace._exchange(new, tmp_path / "nowhere")
