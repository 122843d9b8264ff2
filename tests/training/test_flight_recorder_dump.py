"""Dumps that torch itself writes, with gloo on the CPU, are read as they are."""

import subprocess
import sys

from analytics.kineto.flight_recorder import looks_like_dump, read_dump

PROGRAM = """
import os, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{sys.argv[1]}/store")
for _ in range(2):
    dist.all_reduce(torch.ones(3))
open(f"{sys.argv[1]}/rank_0", "wb").write(c10d._dump_fr_trace())
open(f"{sys.argv[1]}/rank_0.json", "wb").write(c10d._dump_fr_trace_json())
dist.destroy_process_group()
"""


def test_a_dump_of_torch_tells_its_collectives_as_pickle_and_as_json(tmp_path):
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], check=True, timeout=120)
    for name in ("rank_0", "rank_0.json"):
        assert looks_like_dump(tmp_path / name)
        told = read_dump(tmp_path / name)
        assert (told.rank, told.num_read) == (0, 2)
        # gloo tells when a collective was enqueued, and not when it ended
        assert [(line, reason) for line, reason, _ in told.rejects] == [
            (1, "no_duration"),
            (2, "no_duration"),
        ]
        assert all("gloo:all_reduce" in text for _, _, text in told.rejects)
