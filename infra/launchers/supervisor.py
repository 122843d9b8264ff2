"""Runs one command and leaves nothing of it behind, however it or its starter ends.

Before: local.py starts this file in front of `torchrun`, of every rank and of other children.
After: the command itself.   Price: one process of about 9 MB that sleeps; 0.05 s at the start.

Why a process of its own. torchrun puts every rank in a session of its own, so a signal to
torchrun's process group does not reach the ranks, and ranks whose torchrun was killed with SIGKILL
train on for ever. A supervisor is the "child subreaper" of its command: whatever loses its parent
below it becomes its child, so all descendants can be found and ended. Three ways lead to the end:
- the command ends: what it left behind is killed at once;
- SIGTERM or SIGINT: the command gets SIGTERM, after `--grace` seconds everything gets SIGKILL;
- the starter is gone: seen as end of file on standard input (`--lifeline`), which holds for a
  starter with threads, where a parent-death signal would follow the thread; else, and for the
  command itself should this process be killed, as a parent-death signal.

Standard library only, run by path with `python -I -S`, so that nothing else is imported.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_WAIT_S = 5.0  # a process in uninterruptible sleep outlives SIGKILL; do not wait for ever


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process; see prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def descendants(root: int) -> list[int]:
    """Process ids of everything below `root` that has not ended.

    The processes are read one after another, so one that changes its parent meanwhile may be
    missed: ask again until waitpid(2) says that no child is left.
    """
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # it ended while we looked
        # the name in parentheses may hold anything, so read behind the last ')'
        state, parent = stat.rsplit(")", 1)[1].split()[:2]
        children.setdefault(int(parent), []).append(int(entry.name))
        if state in "ZX":
            ended.add(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return [pid for pid in found if pid not in ended]


def _kill_all() -> None:
    """Send SIGKILL to every descendant."""
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended while we looked


def _sweep() -> None:
    """Kill until no child is left or the wait is over.

    Every orphan below becomes a child of this process, so "no child" means "no descendant".
    """
    deadline = time.monotonic() + _KILL_WAIT_S
    while time.monotonic() < deadline:
        _kill_all()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)  # between two rounds of killing, until the deadline


def _reap(child: int) -> int | None:
    """Collect ended children; the exit code of `child` if it is among them (-N for signal N)."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _spawn(command: list[str], rank_files: Path | None) -> int:
    """Start the command; its process id.

    rank_files: where the log and the error file of this rank go (`<rank_files><rank>.log`); None
    keeps the streams as they are.
    """
    supervisor = os.getpid()
    # held back over the fork: a signal that came before SIG_DFL would meet the inherited handler,
    # which does nothing, and be lost
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        return pid
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if rank_files is not None:
            log = os.open(f"{rank_files}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["TORCHELASTIC_ERROR_FILE"] = f"{rank_files}.error.json"
        os.execvp(command[0], command)  # noqa: S606 - a list, no shell
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
    finally:
        os._exit(127)


def _write_exit(rank_files: Path, pid: int, code: int, stopped: bool) -> None:
    """Record how the command ended, for local.py, which finds the first cause from it."""
    path = Path(f"{rank_files}.exit.json")
    aside = path.with_suffix(".tmp")
    ended = {"pid": pid, "exit_code": code, "stopped": stopped, "ended_unix_ns": time.time_ns()}
    aside.write_text(json.dumps(ended), encoding="utf-8")
    aside.replace(path)


def supervise(
    command: list[str], *, grace_s: float, lifeline: bool, rank_files: Path | None
) -> int:
    """Run the command to its end and kill what it leaves; its exit code (-N for signal N)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    poller = select.poll()
    poller.register(woken, select.POLLIN)
    if lifeline:
        poller.register(0, select.POLLIN)
    child = _spawn(command, rank_files)
    kill_at: float | None = None
    while (code := _reap(child)) is None:
        left_s = 3600.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready = [descriptor for descriptor, _ in poller.poll(left_s * 1000)]
        numbers = os.read(woken, 4096) if woken in ready else b""
        if 0 in ready:
            poller.unregister(0)  # end of file: the starter is gone
        if kill_at is None and (0 in ready or any(s in numbers for s in _STOP_SIGNALS)):
            kill_at = time.monotonic() + grace_s
            os.kill(child, signal.SIGTERM)
        if kill_at is not None and time.monotonic() >= kill_at:
            kill_at += 0.1  # again, for what was just being started
            _kill_all()
    if rank_files is not None:
        _write_exit(rank_files, child, code, stopped=kill_at is not None)
    _sweep()
    return code


def _end_like(code: int) -> None:
    """End this process the way the command ended, by the same signal if it was one."""
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    sys.exit(128 - code)


def main() -> None:
    """Read the arguments and supervise."""
    parser = argparse.ArgumentParser(prog="supervisor", description="Run a command, leave nothing.")
    parser.add_argument(
        "--grace", type=float, required=True, help="seconds from SIGTERM to SIGKILL"
    )
    parser.add_argument("--lifeline", action="store_true", help="stop when standard input ends")
    parser.add_argument("--rank-files", help="path prefix of this rank's log, error and exit files")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    rank_files = None
    if arguments.rank_files is not None:
        rank_files = Path(arguments.rank_files + os.environ["RANK"])
    if not arguments.lifeline:
        starter = os.getppid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != starter:
            sys.exit(1)
    _end_like(
        supervise(
            arguments.command,
            grace_s=arguments.grace,
            lifeline=arguments.lifeline,
            rank_files=rank_files,
        )
    )


if __name__ == "__main__":
    main()
