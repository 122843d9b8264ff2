from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from analytics.locks import held

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
