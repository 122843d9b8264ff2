"""A plain PyTorch loop with DistributedDataParallel, and what seqscale adds to it.

    .venv/bin/torchrun --nproc-per-node 2 examples/plain_loop.py
    .venv/bin/seqscale load --runs-dir runs

The model predicts the next item of a user's history; histories differ much in length, so ranks wait
for whoever holds the long ones. The lines marked seqscale balance and record the loop; without
them it is a loop like any other.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from training.batch_sampler import BalancedBatchSampler  # seqscale
from training.step_recording import StepRecording  # seqscale

NUM_ITEMS = 500


class Histories(Dataset[Tensor]):
    """Made-up histories, a few of them long; always the same."""

    def __init__(self, num_users: int) -> None:
        generator = torch.Generator().manual_seed(1)
        lengths = torch.empty(num_users).log_normal_(3.0, 1.0, generator=generator)
        self.lengths = lengths.clamp(2, 400).long().tolist()
        self.items = [torch.randint(NUM_ITEMS, (n,), generator=generator) for n in self.lengths]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return self.items[index]


class NextItem(nn.Module):
    """Causal attention over one history at a time; the mean loss of all next items of a batch."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, histories: list[Tensor]) -> Tensor:
        """A scalar; 0 for no history."""
        # a zero that hangs on the parameters, so that a rank without a history has gradients too
        total = torch.stack([0.0 * p.sum() for p in self.parameters()]).sum()
        for history in histories:
            x_LD = self.items(history[:-1])
            q, k, v = (part[None] for part in self.qkv(x_LD).chunk(3, dim=-1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
            logits = (x_LD + self.out(mixed)) @ self.items.weight.T
            total = total + functional.cross_entropy(logits, history[1:], reduction="sum")
        return total / max(sum(len(history) - 1 for history in histories), 1)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="A plain loop with seqscale's additions.")
    parser.add_argument("--users", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="histories in a global batch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--runs-dir", default="runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    histories = Histories(given.users)
    sampler = BalancedBatchSampler(histories.lengths, batch_size=given.batch)  # seqscale
    loader = DataLoader(histories, batch_sampler=sampler, collate_fn=list)
    model = DistributedDataParallel(NextItem())
    recording = StepRecording(given.runs_dir, run_id="plain-loop")  # seqscale
    model.register_comm_hook(None, recording.communication_hook())  # seqscale
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            with recording.step(num_sequences=len(batch)):  # seqscale
                optimizer.zero_grad()
                loss = model(batch)
                loss = loss * sampler.loss_scale(step, mean_over="targets")  # seqscale
                loss.backward()
                optimizer.step()
        last_loss = loss.detach().clone()
        dist.all_reduce(last_loss)
        if rank == 0:
            print(f"epoch {epoch}: loss of the last batch {last_loss.item() / num_ranks:.4f}")
    recording.close()  # seqscale
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
