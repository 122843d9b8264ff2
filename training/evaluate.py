"""Evaluates every trained arm: `torchrun ... -m training.evaluate --job JOB.json`.

Ranks share the users block by block; rank 0 writes fact_evaluation, the model's and popularity's
on validation and test. Definition of the metrics: training/ranking.py.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from analytics.journal import JournalWriter
from analytics.schema import FactEvaluation
from analytics.store import SequenceStore, open_store
from training.config import TrainJob, read_job
from training.parameters import load_model, parameters_sha256
from training.ranking import (
    BLOCK_USERS,
    SPLITS,
    FullRanker,
    Quality,
    Ranks,
    popularity_ranks,
    quality,
    training_counts,
)
from training.ranks import joined
from training.trainer import write_progress

logger = logging.getLogger(__name__)

# Ranks meet only once a split, after all their users; a dead rank is noticed at once all the same.
_TIMEOUT_S = 1800


def shared_ranks(ranker: FullRanker, num_users: int, split: str, group: dist.ProcessGroup) -> Ranks:
    """Every user's rank of the target, blocks dealt to the ranks in turn. A collective."""
    ranks = np.zeros(num_users, dtype=np.int64)
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    for block, start in enumerate(range(0, num_users, BLOCK_USERS)):
        if block % world_size == rank:
            users = range(start, min(start + BLOCK_USERS, num_users))
            ranks[users.start : users.stop] = ranker.ranks(users, split)
    total = torch.from_numpy(ranks)
    dist.all_reduce(total, group=group)
    merged: Ranks = total.numpy()
    return merged


def evaluation(
    job: TrainJob, arm: str, split: str, ranker: str, measured: Quality, digest: str
) -> FactEvaluation:
    """The record of one ranker on one split of one arm."""
    return FactEvaluation(
        run_id=job.run_id(arm),
        pipeline_id=job.pipeline_id,
        attempt=job.attempt,
        split=split,
        ranker=ranker,
        num_users=measured.num_users,
        num_cold_targets=measured.num_cold_targets,
        hr_at_10=measured.hr_at_10,
        ndcg_at_10=measured.ndcg_at_10,
        mrr=measured.mrr,
        parameters_sha256=digest,
    )


def evaluate(job: TrainJob, store: SequenceStore, group: dist.ProcessGroup) -> list[FactEvaluation]:
    """Every arm and popularity on every split; the same on every rank. A collective."""
    counts = training_counts(store)
    records: list[FactEvaluation] = []
    total = len(SPLITS) * len(job.config.arms)
    for split in SPLITS:
        popular = quality(popularity_ranks(store, counts, split))
        for arm in job.config.arms:
            path = job.parameters_path(arm.name)
            digest = parameters_sha256(path)
            ranker = FullRanker(*load_model(path, job.config.model), store, counts)
            measured = quality(shared_ranks(ranker, store.header.num_users, split, group))
            records.append(evaluation(job, arm.name, split, "model", measured, digest))
            records.append(evaluation(job, arm.name, split, "popularity", popular, digest))
            if dist.get_rank(group) == 0:
                progress = {"done": len(records) // 2, "total": total, "arm": arm.name}
                write_progress(Path(job.attempt_dir), {"phase": "evaluate", **progress})
                logger.info("%s on %s: HR@10 %.4f", arm.name, split, measured.hr_at_10)
    return records


@record
def main() -> None:
    """Evaluate as one rank among those that torchrun started."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate")
    parser.add_argument("--job", type=Path, required=True, help="job file written by the flow")
    job = read_job(parser.parse_args().job)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {job.pipeline_id} %(message)s")
    with joined(_TIMEOUT_S) as group:
        records = evaluate(job, open_store(Path(job.store_dir)), group)
        if dist.get_rank(group) == 0:
            with JournalWriter(job.journal_dir, "evaluate") as journal:
                for item in records:
                    journal.write(item)


if __name__ == "__main__":
    main()
