"""Says why started processes ended: which rank failed first, how, and what it wrote last.

Before: supervisor.py notes how a rank ended; the rank may record its exception (torch's `record`).
After: local.py raises what is said here.   Price: a few small files are read after a failure.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

from analytics import errors

_LAST_LINES = 15
# The kernel tells a supervisor of a death a moment after the peers see the connection close.
_DEATH_NOTICE_NS = 250_000_000
_USER_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.SeqscaleError)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How one rank ended, from the files its supervisor and the rank itself wrote."""

    rank: int
    pid: int | None  # None: the supervisor was killed too
    exit_code: int
    stopped: bool  # it was told to stop, so it is not the cause
    happened_unix_ns: int
    error: str | None  # "ConfigError: ..." when the rank recorded an exception
    log_path: Path


def first_failure(
    prefix: Path, num_ranks: int, *, torchrun_was_killed: bool = False
) -> RankEnd | None:
    """The rank that failed first, or None when no rank failed by itself.

    torchrun_was_killed: then its ranks are killed with it, some before their supervisors can note
    anything; such an end says nothing of the cause.
    A survivor's error ("connection closed by peer") follows from the first failure and is later;
    torchrun's own summary compares whole seconds and may name the survivor.
    """
    ends = [_rank_end(prefix, rank) for rank in range(num_ranks)]
    if all(end is None for end in ends):
        return None  # torchrun itself failed before it had ranks
    if torchrun_was_killed:
        ends = [end for end in ends if end is not None and end.exit_code != -signal.SIGKILL]
    failed = [
        end or _vanished(prefix, rank)
        for rank, end in enumerate(ends)
        if end is None or (end.exit_code != 0 and not end.stopped)
    ]
    return min(failed, key=lambda end: (end.happened_unix_ns, end.rank), default=None)


def _rank_end(prefix: Path, rank: int) -> RankEnd | None:
    """What is known of one rank's end; None when its supervisor did not live to note it."""
    try:
        noted = json.loads(Path(f"{prefix}{rank}.exit.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    error_path = Path(f"{prefix}{rank}.error.json")
    error = recorded_error(error_path)
    if error is None:
        happened_unix_ns = noted["ended_unix_ns"] - _DEATH_NOTICE_NS
    else:
        happened_unix_ns = error_path.stat().st_mtime_ns
    return RankEnd(
        rank=rank,
        pid=noted["pid"],
        exit_code=noted["exit_code"],
        stopped=noted["stopped"],
        happened_unix_ns=happened_unix_ns,
        error=error,
        log_path=Path(f"{prefix}{rank}.log"),
    )


def _vanished(prefix: Path, rank: int) -> RankEnd:
    return RankEnd(
        rank=rank,
        pid=None,
        exit_code=-signal.SIGKILL,
        stopped=False,
        happened_unix_ns=0,
        error=None,
        log_path=Path(f"{prefix}{rank}.log"),
    )


def recorded_error(path: Path) -> str | None:
    """The exception in an error file of torch's `record`, as "Kind: message"; None without one."""
    try:
        message = json.loads(path.read_text(encoding="utf-8"))["message"]
        return str(message if isinstance(message, str) else message["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or half-written by a process that was killed


def user_error(recorded: str | None, who: str, log_path: Path) -> errors.SeqscaleError | None:
    """A recorded error of ours as its own kind again; its message says itself how to mend."""
    kind, separator, message = (recorded or "").partition(": ")
    if not separator or kind not in _USER_ERRORS:
        return None
    return _USER_ERRORS[kind](f"{who}: {message}\nLog: {log_path}")


def rank_failure(module: str, num_ranks: int, end: RankEnd) -> errors.SeqscaleError:
    """What to raise about the rank that failed first."""
    who = f"rank {end.rank} of {num_ranks}"
    own = user_error(end.error, f"{module}, {who}", end.log_path)
    if own is not None:
        return own
    pid = "" if end.pid is None else f" (pid {end.pid})"
    because = f", after {end.error}" if end.error else ""
    return errors.LaunchError(
        f"{module}: {who}{pid} failed first: it {how_it_ended(end.exit_code)}{because}. The other "
        f"ranks were stopped. {_how_to_mend(end.exit_code)}{tail(end.log_path)}"
    )


def child_failure(what: str, code: int, log_path: Path) -> str:
    """The whole message about a single child that failed."""
    return f"{what} {how_it_ended(code)}. {_how_to_mend(code)}{tail(log_path)}"


def how_it_ended(code: int) -> str:
    """An exit code in words; negative codes are signals."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name} (signal {-code})"


def _how_to_mend(code: int) -> str:
    if code == -signal.SIGKILL:
        return (
            "Most often that is the kernel short of memory ('dmesg' tells), else a person or a "
            "scheduler; give it more memory or a smaller batch, and run again."
        )
    return "The log's last lines tell why; mend that and run again."


def tail(log_path: Path) -> str:
    """The place of a log and its last lines, for the end of a message."""
    try:
        with log_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode("utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    except FileNotFoundError:
        lines = []
    return f"\nLog: {log_path}" + "".join(f"\n  | {line}" for line in lines)
