"""Dumps that torch itself writes, with gloo on the CPU, are read as they are."""

import subprocess
import sys

from analytics.kineto.flight_recorder import import_dumps, looks_like_dump, read_dump
from tests.analytics.landed import loaded, query

PROGRAM = """
import os, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/store")
dist.all_reduce(torch.ones(3))
if rank == 1:
    time.sleep(0.3)
dist.all_reduce(torch.ones(3))
open(f"{folder}/rank_{rank}", "wb").write(c10d._dump_fr_trace())
open(f"{folder}/rank_{rank}.json", "wb").write(c10d._dump_fr_trace_json())
dist.destroy_process_group()
"""


def test_dumps_of_torch_tell_collectives_and_who_came_last_to_them(tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path, str(rank)])
             for rank in (0, 1)]  # fmt: skip
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    for rank in (0, 1):
        as_pickle, as_json = (read_dump(tmp_path / f"rank_{rank}{end}") for end in ("", ".json"))
        assert as_pickle.entries == as_json.entries
        assert looks_like_dump(tmp_path / f"rank_{rank}")
        assert looks_like_dump(tmp_path / f"rank_{rank}.json")
        assert (as_pickle.rank, as_pickle.num_read, as_pickle.rejects) == (rank, 2, ())
    runs_dir = tmp_path / "runs"
    about = import_dumps([tmp_path / "rank_0", tmp_path / "rank_1"], runs_dir)
    assert (about.num_loaded, about.num_rejected) == (4, 0)
    loaded(runs_dir)
    # gloo tells when a collective was enqueued, and not when it ended
    rows = query(
        runs_dir,
        "SELECT rank, kind, duration_s, exposed_s, last_rank, "
        "last_arrived_unix_ns - arrived_unix_ns FROM fact_collective ORDER BY collective, rank",
    )
    assert [row[:4] for row in rows] == [(rank, "all_reduce", None, None) for rank in (0, 1) * 2]
    (_, _, _, _, last_rank, waited_ns), (*_, own_ns) = rows[2:]
    assert (last_rank, own_ns) == (1, 0)
    assert waited_ns > 100_000_000  # rank 1 slept for 0.3 s; the two may begin to wait apart
    assert query(
        runs_dir,
        "SELECT sum(num_rank_collectives), sum(num_timed), sum(collective_s) "
        "FROM collective_exposure",
    ) == [(4, 0, None)]
    assert query(runs_dir, "SELECT device, world_size FROM dim_run") == [("cpu", 2)]
