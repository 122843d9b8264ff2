"""One rank's life: `torchrun ... -m training --job JOB.json`.

Reads the job, joins the others, trains every arm, writes what it measured. A failure on any rank is
written to torchrun's error file, so the launcher can say which rank failed first and why.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from analytics.errors import ConfigError
from analytics.journal import JournalWriter
from analytics.store import open_store
from training.config import read_job
from training.planning.plan import read_plan
from training.ranks import joined
from training.trainer import Trainer


@record
def main() -> None:
    """Train as one rank among those that torchrun started."""
    parser = argparse.ArgumentParser(prog="python -m training")
    parser.add_argument("--job", type=Path, required=True, help="job file written by the flow")
    job = read_job(parser.parse_args().job)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {job.pipeline_id} rank {os.environ['RANK']} %(message)s",
    )
    store, plan = open_store(Path(job.store_dir)), read_plan(Path(job.plan_dir))
    with joined(job.config.train.collective_timeout_s) as group:
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        if plan.num_ranks != world_size:
            raise ConfigError(
                f"{job.plan_dir}: the plan is for {plan.num_ranks} ranks, but {world_size} were "
                "started. Start as many ranks as the plan has, or plan again."
            )
        # who watches or ends a rank finds its process here
        (Path(job.attempt_dir) / f"rank-{rank:05d}.pid").write_text(f"{os.getpid()}\n")
        with JournalWriter(job.journal_dir, f"rank-{rank:05d}") as journal:
            Trainer(job, store, plan, group, journal).run()


if __name__ == "__main__":
    main()
