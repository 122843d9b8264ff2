"""A TorchRec-style loop: KeyedJaggedTensors in, jagged rows by key, a dense over-arch.

    make setup BENCH=1          # brings TorchRec
    .venv/bin/torchrun --nproc-per-node 2 examples/torchrec_loop.py

Where a TorchRec user has an EmbeddingCollection sharded by DistributedModelParallel, the lines
marked seqscale give the rows of each key from tables whose traffic runs under the compute. Needs
torchrec for its KeyedJaggedTensor only.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from training.config import TableConfig  # seqscale
from training.embeddings.keyed_jagged import keyed_ids, with_keyed_ids  # seqscale
from training.overlapped_tables import OverlappedTables  # seqscale

try:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
except ImportError:
    sys.exit(
        "torchrec is not installed: pip install 'seqscale[bench]' (make setup BENCH=1) brings it."
    )

KEYS = {"seen": "item", "bought": "item", "user": "user"}  # which table a key's ids are rows of
ROWS, WIDTH = {"item": 2000, "user": 300}, 16
Batch = tuple[KeyedJaggedTensor, Tensor]


def batches(rank: int, num_ranks: int, num_steps: int, size: int) -> list[Batch]:
    """Made-up features of a rank's samples, and labels."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(num_steps):
        values, lengths = [], []
        for key, table in KEYS.items():
            length_B = torch.randint(6, (size,), generator=generator)
            length_B = torch.ones_like(length_B) if key == "user" else length_B
            skew = torch.rand(int(length_B.sum()), generator=generator) ** 3
            parts = torch.split((skew * ROWS[table]).long(), length_B.tolist())
            values += parts[rank::num_ranks]
            lengths.append(length_B[rank::num_ranks])
        features = KeyedJaggedTensor.from_lengths_sync(
            list(KEYS), torch.cat(values), torch.cat(lengths)
        )
        labels = (lengths[0] > lengths[1]).float()
        made.append((features, labels))
    return made


class OverArch(nn.Module):
    """Sums each key's rows per sample, and scores them together."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(len(KEYS) * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, jagged: dict[str, object]) -> Tensor:
        """A logit for each sample."""
        pooled = [torch.stack([r.sum(0) for r in jagged[key].to_dense()]) for key in KEYS]  # type: ignore[attr-defined]
        logits: Tensor = self.layers(torch.cat(pooled, dim=1))
        return logits[:, 0]


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="A TorchRec-style loop and sharded tables")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=128, help="samples in a global batch")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    loader = batches(rank, num_ranks, given.steps, given.batch)
    model = DistributedDataParallel(OverArch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    configs = [TableConfig(name=t, num_rows=n, width=WIDTH) for t, n in ROWS.items()]  # seqscale
    tables = OverlappedTables(configs, average=True)  # seqscale
    pairs = with_keyed_ids(loader, lambda b: b[0], tables=configs, table_of_key=KEYS)  # seqscale
    for step, (((_, labels), keyed), rows) in enumerate(tables.over(pairs, keyed_ids)):  # seqscale
        jagged = keyed.rows(rows)  # seqscale
        optimizer.zero_grad()
        loss_sum = functional.binary_cross_entropy_with_logits(
            model(jagged), labels, reduction="sum"
        )
        (loss_sum * num_ranks / given.batch).backward()  # the ranks' gradients are averaged
        optimizer.step()
        tables.step()  # seqscale
        if step % 10 == 9:
            mean = loss_sum.detach() / given.batch
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item():.5f}")
    tables.close()  # seqscale
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
