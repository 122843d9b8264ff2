"""Whatever is started ends with its starter, and a failure names what failed first."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analytics.errors import ConfigError, InputError, LaunchError
from infra.launchers import supervisor
from infra.launchers.local import background_child, run_child, run_ranks

REPOSITORY = Path(__file__).parents[2]

# A process that starts a sleeper in a session of its own, deaf to SIGTERM, and then waits too.
HANGER = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
sleeper = [
    "import signal, time",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "print(flush=True)",
    "time.sleep(600)",
]
command = [sys.executable, "-c", "; ".join(sleeper)]
child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
name = os.environ.get("RANK", "0")
(folder / f"{name}.tmp").write_text(f"{os.getpid()} {child.pid} {os.getppid()}")
(folder / f"{name}.tmp").rename(folder / f"{name}.pids")
if "stay" in sys.argv:
    time.sleep(600)
"""

RANK = """
import json, os, pathlib, signal, sys
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from analytics.errors import ConfigError

@record
def main() -> None:
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    if what == "well":
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "MASTER_ADDR", "EXTRA")
        seen = {name: os.environ.get(name) for name in names}
        (folder / f"{rank}.json").write_text(json.dumps({**seen, "total": total.item()}))
        print("said by rank", rank)
    elif rank == 1 and what == "kill":
        print("about to die", os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    elif rank == 1 and what == "mistake":
        raise ConfigError("seed is -1; it must be 0 or more. Change seed in the recipe.")
    else:
        dist.all_reduce(total)
    dist.destroy_process_group()

main()
"""


@pytest.fixture
def programs(tmp_path):
    """A folder with the two modules above, and the environment that finds them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "hanger.py").write_text(HANGER, encoding="utf-8")
    (folder / "rank_program.py").write_text(RANK, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(what, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def pids_in(folder: Path) -> list[int]:
    return [int(p) for path in folder.glob("*.pids") for p in path.read_text().split()[:2]]


# Single children


def test_a_child_that_ends_well_leaves_its_output_in_the_log(tmp_path):
    log = tmp_path / "logs" / "child.log"
    command = [sys.executable, "-c", "import os; print('hello', os.environ['EXTRA'])"]
    run_child(command, what="child", log_path=log, timeout_s=30, environment={"EXTRA": "there"})
    assert log.read_text(encoding="utf-8") == "hello there\n"


def test_a_failed_child_is_named_with_its_exit_code_log_and_last_lines(tmp_path):
    command = [sys.executable, "-c", "print('the reason'); raise SystemExit(7)"]
    with pytest.raises(LaunchError, match=r"(?s)^calibration ended with exit code 7\..*the reason"):
        run_child(command, what="calibration", log_path=tmp_path / "c.log", timeout_s=30)


def test_a_killed_child_is_named_with_its_signal(tmp_path):
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with pytest.raises(LaunchError, match=r"was ended by SIGKILL \(signal 9\)\. .*memory"):
        run_child(command, what="child", log_path=tmp_path / "c.log", timeout_s=30)


def test_a_command_that_is_not_there_is_said_in_the_message(tmp_path):
    with pytest.raises(LaunchError, match=r"(?s)exit code 127.*no-such-command cannot be started"):
        run_child(["no-such-command"], what="child", log_path=tmp_path / "c.log", timeout_s=30)


def test_a_recorded_error_of_ours_is_the_message(tmp_path):
    program = (
        "import json, os; path = os.environ['TORCHELASTIC_ERROR_FILE'];"
        "json.dump({'message': {'message': 'InputError: x.csv: it is empty.'}}, open(path, 'w'));"
        "raise SystemExit(1)"
    )
    with pytest.raises(InputError, match=r"^registration: x\.csv: it is empty\.\nLog: .*r\.log$"):
        run_child(
            [sys.executable, "-W", "ignore", "-c", program],
            what="registration",
            log_path=tmp_path / "r.log",
            timeout_s=30,
        )


def test_a_time_out_ends_the_child_and_a_deaf_grandchild_of_another_session(tmp_path, programs):
    command = [sys.executable, "-m", "hanger", str(tmp_path), "stay"]
    log = tmp_path / "h.log"
    with pytest.raises(LaunchError, match="did not end within its time-out of 12 s"):
        run_child(command, what="hanger", log_path=log, timeout_s=12, environment=programs)
    pids = pids_in(tmp_path)
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(pid)]


def test_what_a_successful_child_leaves_behind_is_ended(tmp_path, programs):
    command = [sys.executable, "-m", "hanger", str(tmp_path)]
    log = tmp_path / "h.log"
    run_child(command, what="hanger", log_path=log, timeout_s=60, environment=programs)
    pids = pids_in(tmp_path)
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(pid)]


def test_what_is_raised_while_waiting_ends_the_child(tmp_path, programs):
    def stop_when_started() -> None:
        if pids_in(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child(
            [sys.executable, "-m", "hanger", str(tmp_path), "stay"],
            what="hanger",
            log_path=tmp_path / "h.log",
            timeout_s=60,
            on_poll=stop_when_started,
            environment=programs,
        )
    assert not [pid for pid in pids_in(tmp_path) if is_alive(pid)]


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(LaunchError, match=r"file, cannot be made .* --runs-dir"):
        run_child(["true"], what="child", log_path=tmp_path / "file" / "c.log", timeout_s=5)


# A companion


def test_a_companion_is_told_to_stop_and_may_finish_its_work(tmp_path, caplog):
    program = (
        "import pathlib, signal, sys, time\n"
        "def stop(*_): pathlib.Path(sys.argv[1], 'closed').touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "pathlib.Path(sys.argv[1], 'ready').touch()\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with (
        caplog.at_level(logging.WARNING),
        background_child(command, what="sampler", log_path=tmp_path / "s.log"),
    ):
        wait_until((tmp_path / "ready").exists)
    assert (tmp_path / "closed").exists()
    assert not caplog.records


def test_a_companion_that_ends_by_the_signal_it_was_sent_is_no_news(tmp_path, caplog):
    program = (
        "import pathlib, sys, time; pathlib.Path(sys.argv[1], 'ready').touch(); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with background_child(command, what="server", log_path=tmp_path / "s.log"):
        wait_until((tmp_path / "ready").exists)
    assert not caplog.records


def test_a_companion_that_ends_early_is_reported_and_does_not_fail_the_work(tmp_path, caplog):
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with background_child(command, what="sampler", log_path=tmp_path / "s.log") as process:
        wait_until(lambda: process.poll() is not None)
    assert "sampler ended with exit code 3" in caplog.text


def test_a_companion_ends_with_a_starter_that_was_killed(tmp_path, programs):
    starter = (
        "import sys\nfrom pathlib import Path\nfrom infra.launchers.local import background_child\n"
        "command = [sys.executable, '-m', 'hanger', sys.argv[1], 'stay']\n"
        "with background_child(command, what='h', log_path=Path(sys.argv[1], 'h.log')):\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter, str(tmp_path)],
        stdin=subprocess.PIPE,
        env={**os.environ, **programs},
    ) as process:
        wait_until(lambda: pids_in(tmp_path))
        process.kill()
    wait_until(lambda: not [pid for pid in pids_in(tmp_path) if is_alive(pid)])


# Real ranks; each start of torchrun costs seconds, so few


def test_ranks_reach_each_other_and_leave_a_log_each(tmp_path, programs, monkeypatch):
    # what an outer torchrun would leave behind must not reach this one
    for name in ("RANK", "WORLD_SIZE", "PET_NNODES", "MASTER_ADDR"):
        monkeypatch.setenv(name, "5")
    polls: list[float] = []
    run_ranks(
        "rank_program",
        ["well", str(tmp_path)],
        num_ranks=2,
        log_dir=tmp_path / "logs",
        timeout_s=150,
        on_poll=lambda: polls.append(time.monotonic()),
        environment={**programs, "EXTRA": "1"},
    )
    seen = [json.loads((tmp_path / f"{r}.json").read_text(encoding="utf-8")) for r in range(2)]
    # ranks 0 and 1 put in 1 and 2: 1 + 2 = 3
    assert [s["total"] for s in seen] == [3.0, 3.0]
    assert [(s["RANK"], s["WORLD_SIZE"], s["LOCAL_RANK"]) for s in seen] == [
        ("0", "2", "0"),
        ("1", "2", "1"),
    ]
    assert {(s["OMP_NUM_THREADS"], s["MASTER_ADDR"], s["EXTRA"]) for s in seen} == {
        ("1", "127.0.0.1", "1")
    }
    log = (tmp_path / "logs" / "rank_program-rank-1.log").read_text(encoding="utf-8")
    assert "said by rank 1" in log
    assert polls


def test_a_killed_rank_is_named_and_the_waiting_one_ends(tmp_path, programs):
    started = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        run_ranks(
            "rank_program",
            ["kill", str(tmp_path)],
            num_ranks=2,
            log_dir=tmp_path,
            timeout_s=150,
            environment=programs,
        )
    message = str(caught.value)
    log = (tmp_path / "rank_program-rank-1.log").read_text(encoding="utf-8")
    pid = int(log.split("about to die ")[1].split()[0])
    assert f"rank 1 of 2 (pid {pid}) failed first: it was ended by SIGKILL" in message
    assert f"Log: {tmp_path / 'rank_program-rank-1.log'}" in message
    assert f"| about to die {pid}" in message
    assert time.monotonic() - started < 60  # the bound is the product's promise, start included


def test_a_users_mistake_found_in_a_rank_is_the_message(tmp_path, programs):
    expected = r"^rank_program, rank 1 of 2: seed is -1; it must be 0 or more\. Change seed"
    with pytest.raises(ConfigError, match=expected) as caught:
        run_ranks(
            "rank_program",
            ["mistake", str(tmp_path)],
            num_ranks=2,
            log_dir=tmp_path,
            timeout_s=150,
            environment=programs,
        )
    assert "Traceback" not in str(caught.value)


def test_ranks_end_when_torchrun_itself_is_killed(tmp_path, programs):
    killed: list[int] = []

    def kill_torchrun() -> None:
        if len(pids_in(tmp_path)) == 4 and not killed:
            guard = int((tmp_path / "0.pids").read_text(encoding="utf-8").split()[2])
            stat = Path(f"/proc/{guard}/stat").read_text(encoding="utf-8")
            killed.append(int(stat.rsplit(")", 1)[1].split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(LaunchError, match="hanger on 2 ranks was ended by SIGKILL"):
        run_ranks(
            "hanger",
            [str(tmp_path), "stay"],
            num_ranks=2,
            log_dir=tmp_path / "logs",
            timeout_s=150,
            on_poll=kill_torchrun,
            environment=programs,
        )
    assert len(pids_in(tmp_path)) == 4
    assert not [pid for pid in pids_in(tmp_path) if is_alive(pid)]


def test_descendants_are_found_through_generations():
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE) as process:
        wait_until(lambda: len(supervisor.descendants(process.pid)) == 1)
        assert process.pid in supervisor.descendants(os.getpid())
        assert process.stdin is not None
        process.stdin.close()
