from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analytics.locks import guarded, held

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class LateError(Exception):
    pass


def test_a_held_lock_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        looks = []
        waiting = held(path, timeout_s=0.2, late=LateError, on_wait=lambda: looks.append(1))
        with pytest.raises(LateError), waiting:
            pytest.fail("another process holds it")
        assert looks
        holder.kill()  # a lock ends with its process, however that ends
        holder.wait(timeout=10)
    with held(path, timeout_s=5, late=LateError):
        assert path.exists()


def test_what_a_look_raises_ends_the_wait(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    path = tmp_path / "lock"
    waiting = held(path, timeout_s=60, late=LateError, on_wait=stop)
    with held(path, timeout_s=1, late=LateError), pytest.raises(KeyboardInterrupt), waiting:
        pytest.fail("the outer block holds it")


def test_a_guard_leaves_no_file_and_one_that_was_left_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / ".store.lock"
    path.touch()  # of a process that was killed
    with guarded(path, timeout_s=1, late=LateError):
        with pytest.raises(LateError), guarded(path, timeout_s=0.1, late=LateError):
            pytest.fail("the outer block holds it")
        assert path.exists()
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt), guarded(path, timeout_s=1, late=LateError):
        assert path.stat().st_mode & 0o777 == 0o600
        raise KeyboardInterrupt
    assert not path.exists()


def test_a_lock_that_its_holder_removed_is_no_lock(tmp_path: Path) -> None:
    # whoever waits for it then must make a new one, which others can find
    path = tmp_path / ".store.lock"
    order: list[str] = []

    def wait() -> None:
        with guarded(path, timeout_s=30, late=LateError):
            order.append("second" if path.exists() else "of a file that nobody can find")

    with guarded(path, timeout_s=1, late=LateError):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join(timeout=30)
    assert order == ["first", "second"]
    assert not path.exists()
