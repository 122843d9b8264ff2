"""Times `seqscale analyze-trace` beside HolisticTraceAnalysis 0.5.0, and compares their figures.

    python3 -m venv VENV
    VENV/bin/pip install 'pandas<3' 'numpy<3' plotly networkx pydot pyyaml psutil
    VENV/bin/pip install --no-deps HolisticTraceAnalysis==0.5.0
    python bench/traces.py --hta-python VENV/bin/python --repeats 5 TRACES_OF_ONE_JOB [ANOTHER ...]

HTA has a venv of its own: it asks for JupyterLab, which it does not need to analyze, and for a
pandas of before. Each repeat is a process of its own, and all take turns. Each does the same work:
read the traces, temporal breakdown, overlap of communication, idle causes of every rank. "command"
is `seqscale analyze-trace`, "script" a script like HTA's that calls the same functions; both are
held against HTA's script. "work" is a script's time without the start of Python and the imports;
CPU time and memory, the largest resident set, are those of the process and its children. One run of
each goes before and is not timed: it compiles what is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_OURS = """
import json, sys, time
from pathlib import Path
from analytics.kineto.analysis import analyze_files, as_mapping
begin = time.perf_counter()
found = as_mapping(analyze_files([Path(sys.argv[1])]))
work_s = time.perf_counter() - begin
figures = {
    str(one["rank"]): [one["idle_us"], one["compute_us"], one["non_compute_us"],
                       one["overlap_share"]]
    for one in found["ranks"]
}
print(json.dumps({"work_s": work_s, "figures": figures}))
"""
_HTA = """
import json, logging, os, sys, time, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
folder = sys.argv[1]
files = None
if os.path.isfile(folder):
    files, folder = {0: folder}, os.path.dirname(folder)
found = TraceAnalysis(trace_files=files, trace_dir=folder)
times = found.get_temporal_breakdown(visualize=False)
overlap = found.get_comm_comp_overlap(visualize=False).set_index("rank")
for rank in times["rank"]:
    found.get_idle_time_breakdown(ranks=[int(rank)], visualize=False)
work_s = time.perf_counter() - begin
figures = {}
for row in times.to_dict("records"):
    share = overlap["comp_comm_overlap_pctg"][row["rank"]]
    figures[str(row["rank"])] = [
        row["idle_time(us)"], row["compute_time(us)"], row["non_compute_time(us)"],
        None if share != share else float(share) / 100,
    ]
print(json.dumps({"work_s": work_s, "figures": figures}))
"""


def run(python: str, program: list[str], *, cwd: Path) -> dict[str, Any]:
    """One process: wall and CPU time [s], memory [MiB], and what it printed, a JSON document."""
    # as anyone runs it who has not said otherwise: what was compiled is kept
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [python, *program], stdout=out, stderr=err, cwd=cwd, env=env | {"PYTHONPATH": str(cwd)}
        )
        _, status, used = os.wait4(child.pid, 0)
        whole_s = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode != 0:
            said = err.read().decode()[-300:]
            raise SystemExit(f"{python} ended with {child.returncode} on {program[-1]}: {said}")
        found: dict[str, Any] = json.loads(out.read().strip().splitlines()[-1])
    cpu_s = used.ru_utime + used.ru_stime
    return found | {"whole_s": whole_s, "cpu_s": cpu_s, "peak_mib": used.ru_maxrss / 1024}


def compare(path: Path, hta_python: str, repeats: int) -> None:
    """Take turns on one job's traces and print medians, ratios and differences."""
    command = ["-m", "flows.cli", "analyze-trace", "--json", str(path)]
    programs = {
        "command": (sys.executable, command, ROOT),
        "script": (sys.executable, ["-c", _OURS, str(path)], ROOT),
        "HTA": (hta_python, ["-c", _HTA, str(path)], Path("/")),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name, (python, program, cwd) in programs.items():
            one = run(python, program, cwd=cwd)
            if repeat:
                found[name].append(one)
    print(f"{path.name}: medians of {repeats}, load {os.getloadavg()[0]:.1f}")
    for name, key, unit in (
        ("command", "whole_s", "s"), ("script", "whole_s", "s"), ("script", "work_s", "s"),
        ("command", "cpu_s", "s"), ("script", "cpu_s", "s"), ("command", "peak_mib", "MiB"),
        ("script", "peak_mib", "MiB"),
    ):  # fmt: skip
        a, b = (statistics.median(one[key] for one in found[who]) for who in (name, "HTA"))
        print(f"  {name:7} {key:9} {a:8.3f} {unit:4} HTA {b:8.3f} {unit:4} ratio {b / a:6.1f}x")
    ours = found["script"][0]["figures"]
    for rank, figures in found["HTA"][0]["figures"].items():
        mine = ours.get(rank) or next(iter(ours.values()))
        pairs = zip(("idle_us", "compute_us", "non_compute_us", "overlap_share"), mine, figures,
                    strict=True)  # fmt: skip
        told = [
            f"{name} {a if a is None else round(a, 4)}"
            + ("" if a == b or (None not in (a, b) and abs(a - b) < 1e-4) else f" (HTA {b})")
            for name, a, b in pairs
        ]
        print(f"  rank {rank}: " + ", ".join(told))


def main() -> None:
    """The door."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--hta-python", required=True, help="Python that has HTA 0.5.0")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    for path in given.paths:
        compare(path.resolve(), given.hta_python, given.repeats)


if __name__ == "__main__":
    main()
