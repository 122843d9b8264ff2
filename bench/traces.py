"""Times `seqscale analyze-trace` beside HolisticTraceAnalysis 0.5.0, and compares their figures.

    python3 -m venv VENV
    VENV/bin/pip install 'pandas<3' 'numpy<3' plotly networkx pydot pyyaml psutil
    VENV/bin/pip install --no-deps HolisticTraceAnalysis==0.5.0
    python bench/traces.py --hta-python VENV/bin/python --repeats 5 TRACES_OF_ONE_JOB [ANOTHER ...]

HTA has a venv of its own: it asks for JupyterLab, which it does not need to analyze, and for a
pandas of before. Both do the same work: read the traces, temporal breakdown, overlap of
communication, idle causes of every rank. Each repeat is a process of its own, and the two take
turns. Time and memory are those of the process and its children; "work" leaves out the start of
Python and the imports, CPU time holds them. Memory is the largest resident set, of the process or
of one child.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
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


def run(python: str, program: str, path: Path, *, cwd: Path) -> dict[str, Any]:
    """One process: wall and CPU time [s], time of the work alone [s], memory [MiB], figures."""
    measured = (
        "import json, resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "cpu_s = used.ru_utime + used.ru_stime\n"
        "sys.stderr.write(json.dumps([used.ru_maxrss, cpu_s]))\n"
        "sys.stdout.buffer.write(done.stdout)\n"
        "sys.exit(done.returncode)\n"
    )
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", measured, python, "-c", program, str(path)],
        capture_output=True, text=True, cwd=cwd, env=os.environ | {"PYTHONPATH": str(cwd)},
    )  # fmt: skip
    whole_s = time.perf_counter() - begin
    if done.returncode != 0:
        raise SystemExit(f"{python} ended with {done.returncode} on {path}: {done.stderr[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    peak_kib, cpu_s = json.loads(done.stderr)
    return found | {"whole_s": whole_s, "cpu_s": cpu_s, "peak_mib": peak_kib / 1024}


def compare(path: Path, hta_python: str, repeats: int) -> None:
    """Take turns on one job's traces and print medians, ratios and differences."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for _ in range(repeats):
        ours.append(run(sys.executable, _OURS, path, cwd=ROOT))
        theirs.append(run(hta_python, _HTA, path, cwd=Path("/")))
    print(f"{path.name}: medians of {repeats}")
    for key, unit in (("whole_s", "s"), ("work_s", "s"), ("cpu_s", "s"), ("peak_mib", "MiB")):
        a, b = (statistics.median(one[key] for one in found) for found in (ours, theirs))
        print(f"  {key:9} ours {a:8.2f} {unit:4} HTA {b:8.2f} {unit:4} ratio {b / a:6.1f}x")
    for rank, figures in theirs[0]["figures"].items():
        mine = ours[0]["figures"].get(rank) or next(iter(ours[0]["figures"].values()))
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
