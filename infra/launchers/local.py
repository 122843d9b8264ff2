"""Starts processes on this machine: ranks under torchrun, single children, and a companion.

Before: flows asks for a module to be run.   After: supervisor.py holds it.
Price: a start of torchrun costs 2.5 to 7 s of imports; each process has a supervisor of 9 MB.

Every wait has a time-out, and however a wait ends (success, failure, time-out, interrupt, death of
this process) nothing that was started stays alive: see supervisor.py. The starter keeps the write
end of a pipe to each supervisor; do not fork this process without exec while a child runs, for
the copy would hold that pipe open.

torch is not imported here: torchrun is `python -m torch.distributed.run`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from analytics.errors import LaunchError
from infra.launchers.failures import (
    child_failure,
    first_failure,
    how_it_ended,
    rank_failure,
    recorded_error,
    tail,
    user_error,
)

logger = logging.getLogger("seqscale.launchers")

_POLL_S = 0.25
# From the inside out, each has time to see the one below it end: a rank, torchrun, all of it.
_RANK_GRACE_S = 5
_TORCHRUN_GRACE_S = 8
_GRACE_S = 12
# What an outer launcher may have left in the environment and torchrun must not see.
_FOREIGN = ("PET_", "TORCHELASTIC_", "GROUP_", "ROLE_", "MASTER_")
_FOREIGN_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_SECRETS = ("SEQSCALE_PSEUDONYM_KEY",)  # of whoever prepares; no child has a use for it


def run_ranks(
    module: str,
    arguments: list[str],
    *,
    num_ranks: int,
    log_dir: Path,
    timeout_s: float,
    on_poll: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `python -m module arguments` as `num_ranks` ranks of one torchrun, and wait for them.

    log_dir: takes `<module>-torchrun.log` and, per rank, `<module>-rank-<r>.log`.
    on_poll: called about four times a second while waiting; what it raises ends the ranks.
    environment: added to this process's own.
    Raises LaunchError that names the rank which failed first, how it ended, its log and its last
    lines; when that rank recorded one of our own errors, that error.
    """
    what = f"{module} on {num_ranks} ranks"
    prefix = log_dir / f"{module}-rank-"
    _make_folder(log_dir, what)
    for old in log_dir.glob(f"{prefix.name}*"):
        old.unlink()  # of an earlier start; a new attempt should rather get a folder of its own
    log_path = log_dir / f"{module}-torchrun.log"
    code = _run(
        _torchrun(module, arguments, num_ranks, log_dir, prefix),
        what=what,
        log_path=log_path,
        shown_path=Path(f"{prefix}0.log"),
        timeout_s=timeout_s,
        on_poll=on_poll,
        environment=_rank_environment(environment or {}),
    )
    if code != 0:
        first = first_failure(prefix, num_ranks, torchrun_was_killed=code < 0)
        if first is None:
            raise LaunchError(child_failure(what, code, log_path))
        raise rank_failure(module, num_ranks, first)


def run_child(
    command: list[str],
    *,
    what: str,
    log_path: Path,
    timeout_s: float,
    on_poll: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run one command to its end; what it started and left is killed.

    what: names the command in messages, such as "calibration".
    log_path: takes its output, appended.
    Raises LaunchError with the exit code or signal, the log and its last lines. A child that
    records its exception in the file named by TORCHELASTIC_ERROR_FILE, as torch's `record` does,
    is answered with that error when it is one of our own.
    """
    _make_folder(log_path.parent, what)
    error_path = log_path.with_suffix(".error.json")
    error_path.unlink(missing_ok=True)
    extra = {"TORCHELASTIC_ERROR_FILE": str(error_path), **(environment or {})}
    code = _run(
        command,
        what=what,
        log_path=log_path,
        shown_path=log_path,
        timeout_s=timeout_s,
        on_poll=on_poll,
        environment=_environment(extra),
    )
    if code != 0:
        own = user_error(recorded_error(error_path), what, log_path)
        if own is not None:
            raise own
        raise LaunchError(child_failure(what, code, log_path))


@contextlib.contextmanager
def background_child(
    command: list[str],
    *,
    what: str,
    log_path: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A companion that runs while the block runs; at its end it gets SIGTERM, later SIGKILL.

    Yields the supervisor's process: `poll()` is None as long as the companion runs. A companion
    that ended early or badly is logged as a warning and does not fail the block.
    """
    with _supervised(command, what, log_path, _environment(environment or {})) as process:
        yield process
        early = process.poll() is not None
    if early or process.returncode not in (0, -signal.SIGTERM):  # which it was told to end by
        logger.warning(
            "%s %s; what it would have recorded since then is missing. Log: %s",
            what,
            "ended early" if process.returncode == 0 else how_it_ended(process.returncode),
            log_path,
        )


def _torchrun(
    module: str, arguments: list[str], num_ranks: int, log_dir: Path, prefix: Path
) -> list[str]:
    """The command of the agent; each rank runs under a supervisor that notes how it ended.

    The address is given, because torchrun would else ask the resolver for this host's full name,
    which hangs or gives an unreachable address where names are set up oddly.
    """
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    agent += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(num_ranks)]
    agent += ["--max-restarts", "0", "--shutdown-timeout", str(_TORCHRUN_GRACE_S)]
    agent += ["--log-dir", str(log_dir / "torchrun"), "--no-python"]
    guard = _supervisor(_RANK_GRACE_S, "--rank-files", str(prefix.absolute()))
    return [*agent, *guard, sys.executable, "-m", module, *arguments]


def _supervisor(grace_s: float, *options: str) -> list[str]:
    path = Path(__file__).with_name("supervisor.py")
    return [sys.executable, "-I", "-S", str(path), "--grace", str(grace_s), *options]


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without secrets and an outer launcher's variables, and `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and name not in (*_FOREIGN_NAMES, *_SECRETS)
    }
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **extra}


def _rank_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ranks of one machine: one thread each and the loopback device, unless the user says else.

    Threads: ranks times cores threads would fight, and torchrun warns when it is unset.
    Loopback: gloo would else take the address that this host's name resolves to, if any.
    """
    defaults = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    own = {name: os.environ.get(name, value) for name, value in defaults.items()}
    return _environment({**own, **extra})


def _make_folder(folder: Path, what: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"{what}: the folder of its logs, {folder}, cannot be made ({error.strerror}). "
            "Make the place writable, or choose another with --runs-dir."
        ) from error


@contextlib.contextmanager
def _supervised(
    command: list[str], what: str, log_path: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The command under a supervisor of its own session; stopped when the block ends."""
    _make_folder(log_path.parent, what)
    try:
        log = log_path.open("ab")
    except OSError as error:
        raise LaunchError(
            f"{what}: its log {log_path} cannot be written ({error.strerror}). "
            "Make the place writable, or choose another with --runs-dir."
        ) from error
    with log:
        process = subprocess.Popen(
            [*_supervisor(_GRACE_S, "--lifeline"), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the rest
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Cut the lifeline and wait: SIGTERM now, SIGKILL after the grace."""
    assert process.stdin is not None  # it was opened as a pipe
    process.stdin.close()
    try:
        process.wait(timeout=_GRACE_S + 10)
    except subprocess.TimeoutExpired:
        process.kill()  # the command then gets its parent-death signal
        process.wait(timeout=10)


def _run(
    command: list[str],
    *,
    what: str,
    log_path: Path,
    shown_path: Path,
    timeout_s: float,
    on_poll: Callable[[], None] | None,
    environment: dict[str, str],
) -> int:
    """The exit code of a supervised command, -N for signal N; LaunchError when it is too late."""
    deadline = time.monotonic() + timeout_s
    with _supervised(command, what, log_path, environment) as process:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=_POLL_S)
            if on_poll is not None:
                on_poll()
            if time.monotonic() > deadline:
                break
    raise LaunchError(
        f"{what} did not end within its time-out of {timeout_s:g} s and was stopped. Look into "
        f"the log for where it stood, and allow more time if it was only slow.{tail(shown_path)}"
    )
