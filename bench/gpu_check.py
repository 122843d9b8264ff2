"""Checks on one GPU what can only be checked there, and writes JSON to publish.

    .venv/bin/python bench/gpu_check.py --out gpu_check.json
    .venv/bin/python bench/gpu_check.py --cpu --small      # tries the script itself, no GPU needed

Parts, in order, each timed, none stopping another: exactness of the schedules with two processes on
the one GPU; attention back ends (check_attention.py); bf16 beside fp32 (check_precision.py); what a
copy costs a product (check_contention.py). Needs no network; no part begins after five minutes, and
the longest, exactness, is ended after three, so that all is done within eight.

Ends with 0 when no part failed or left its bounds (absent parts are named), 1 when one did, 2
without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from check_attention import attention_part
from check_contention import contention_part
from check_precision import precision_part
from checked import Checked, Figure

LIMIT_S = 300
EXACTNESS_LIMIT_S = 180
NUM_RANKS = 2
EXACTNESS_PROGRAM = "schedules_on_device"

Part = Callable[[torch.device, bool], Checked]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One part as it went."""

    name: str
    status: str  # ok, failed, absent
    reason: str  # why not ok
    wall_s: float
    checked: Checked

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "name": self.name,
            "status": self.status,
            "reason": self.reason,
            "wall_s": round(self.wall_s, 3),
            "figures": [figure.as_json() for figure in self.checked.figures],
            "curves": self.checked.curves,
        }


class AbsentError(Exception):
    """A part cannot be run here; the message says why."""


def exactness_part(device: torch.device, small: bool) -> Checked:
    """Every schedule against `synchronous`, two processes with host_staged on the one device.

    The arithmetic is in bench/schedules_on_device.py:

        differences(rank, world_size, init_method, device, small) -> dict[str, float]

    Called in a process of its own for each rank. It joins the others at init_method (a file://
    address), trains the same batches by every schedule, every rank on `device`, sets what makes
    torch repeat itself to the bit, and returns, the same on every rank, one entry a schedule (and
    optimiser, if it likes): the largest absolute difference of tables, optimiser state, dense
    parameters and loss from `synchronous`. Every entry must be 0.0.
    Raises AbsentError when that file is not there, RuntimeError when a rank failed or was late.
    """
    if importlib.util.find_spec(EXACTNESS_PROGRAM) is None:
        raise AbsentError(f"bench/{EXACTNESS_PROGRAM}.py is not in this checkout")
    with tempfile.TemporaryDirectory() as folder:
        _run_ranks(folder, device, small)
        found = json.loads((Path(folder) / "rank-0.json").read_text(encoding="utf-8"))
    return Checked(
        figures=[
            Figure(what=f"{name} from synchronous", value=difference, unit="", at_most=0.0)
            for name, difference in found.items()
        ]
    )


def _run_ranks(folder: str, device: torch.device, small: bool) -> None:
    """Start the ranks and wait for all; when one fails or the time is up, end the others."""
    context = multiprocessing.get_context("spawn")
    given = (folder, str(device), small, EXACTNESS_PROGRAM)
    ranks = [
        context.Process(target=exactness_rank, args=(rank, *given)) for rank in range(NUM_RANKS)
    ]
    for process in ranks:
        process.start()
    end = time.monotonic() + EXACTNESS_LIMIT_S
    while any(process.is_alive() for process in ranks) and time.monotonic() < end:
        if any(process.exitcode for process in ranks):
            break
        running = [process.sentinel for process in ranks if process.is_alive()]
        multiprocessing.connection.wait(running, timeout=max(0.0, end - time.monotonic()))
    told = [process.exitcode for process in ranks]
    for process in ranks:
        if process.is_alive():
            process.kill()
        process.join()
    if any(code != 0 for code in told):
        ends = ", ".join(
            f"rank {rank} {'was still running' if code is None else f'ended with {code}'}"
            for rank, code in enumerate(told)
        )
        raise RuntimeError(f"{ends} (at most {EXACTNESS_LIMIT_S} s); its message is above")


def exactness_rank(rank: int, folder: str, device: str, small: bool, program_name: str) -> None:
    """One rank's process: what it found goes to a file."""
    program = importlib.import_module(program_name)
    init_method = f"file://{folder}/rendezvous"
    found = program.differences(rank, NUM_RANKS, init_method, torch.device(device), small)
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


PARTS: dict[str, Part] = {
    "exactness": exactness_part,
    "attention": attention_part,
    "precision": precision_part,
    "contention": contention_part,
}


def outcome(name: str, part: Part, device: torch.device, small: bool) -> Outcome:
    """Run one part; whatever happens in it is recorded, nothing is raised."""
    begin = time.perf_counter()
    checked, status, reason = Checked(figures=[]), "ok", ""
    try:
        checked = part(device, small)
        failed = [f.what for f in checked.figures if f.verdict == "FAILED"]
        if failed:
            status, reason = "failed", "out of bounds: " + ", ".join(failed)
    except AbsentError as error:
        status, reason = "absent", str(error)
    except Exception as error:
        status, reason = "failed", f"{type(error).__name__}: {error}"
    wall_s = time.perf_counter() - begin
    return Outcome(name=name, status=status, reason=reason, wall_s=wall_s, checked=checked)


def driver_version() -> str | None:
    """The NVIDIA driver's version as nvidia-smi tells it; None when it does not."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip().splitlines()[0] if told.stdout.strip() else None


def device_facts(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    facts: dict[str, Any] = {
        "device": device.type,
        "name": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "measured_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "num_sms": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "driver": driver_version(),
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def table(facts: dict[str, Any], outcomes: list[Outcome]) -> list[str]:
    """Everything as one Markdown table."""
    lines = [", ".join(f"{name} {value}" for name, value in facts.items()), ""]
    lines += ["| part | figure | value | at most | |", "|---|---|---:|---:|---|"]
    for done in outcomes:
        lines.append(f"| **{done.name}** | {done.reason} | {done.wall_s:.1f} s | | {done.status} |")
        for figure in done.checked.figures:
            value = "" if figure.value is None else f"{figure.value:.4g} {figure.unit}".strip()
            bound = "" if figure.at_most is None else f"{figure.at_most:.3g}"
            verdict = f"{figure.verdict}{': ' if figure.note else ''}{figure.note}"
            lines.append(f"| {done.name} | {figure.what} | {value} | {bound} | {verdict} |")
    return lines


def check(device: torch.device, small: bool, names: list[str], limit_s: float) -> list[Outcome]:
    """The named parts, in order."""
    begin, outcomes = time.monotonic(), []
    for name in names:
        part = PARTS[name]
        if time.monotonic() - begin > limit_s:
            part = _too_late
        outcomes.append(outcome(name, part, device, small))
    return outcomes


def _too_late(device: torch.device, small: bool) -> Checked:
    raise AbsentError("the time was used up by the parts before")


def main(arguments: list[str] | None = None) -> int:
    """Check, print the table, write the JSON; the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU what a CPU can")
    parser.add_argument("--small", action="store_true", help="small sizes, seconds")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="begin no part after this")
    given = parser.parse_args(arguments)
    if not given.cpu and not torch.cuda.is_available():
        print(
            f"gpu_check: torch {torch.__version__} sees no NVIDIA GPU "
            f"(built for CUDA {torch.version.cuda}). Run it on a machine with one and a CUDA build "
            "of torch, or try the script itself with --cpu.",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cpu") if given.cpu else torch.device("cuda", 0)
    if given.cpu:
        torch.set_num_threads(1)  # as a rank runs; more wait for each other on a busy machine
    facts = device_facts(device)
    outcomes = check(device, given.small, given.parts, given.limit_s)
    print("\n".join(table(facts, outcomes)))
    if given.cpu:
        print(
            "Run on a CPU: tells nothing of CUDA, its streams, copy engines, host_staged or bf16."
        )
    if given.out is not None:
        report = {"facts": facts, "parts": [done.as_json() for done in outcomes]}
        given.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(any(done.status == "failed" for done in outcomes))


if __name__ == "__main__":
    sys.exit(main())
