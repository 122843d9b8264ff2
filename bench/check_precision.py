"""The same small training in fp32 and in bf16: losses and HR@10 side by side. See gpu_check.py.

Items follow each other by a fixed permutation nine times out of ten, so there is something to
learn, and a ceiling: HR@10 of about 0.9. First weights, batches, negatives and dropout are the
same. The item table is a plain parameter with Adam; the sharded tables stay fp32 in either case.

Bounds: loss of the last steps within 3 %, HR@10 within 0.03 (of 512 users a share of 0.9 has a
standard error of 0.013, so two trainings that differ in the seed alone differ by as much).
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import numpy.typing as npt
import torch
from checked import Checked, Figure, settle
from torch.nn import functional

from training.config import ModelConfig
from training.jagged import JaggedBatch
from training.model import SASRec, autocast_for
from training.randomness import kept_scale

Items = npt.NDArray[np.int64]
FOLLOWS_SHARE = 0.9
NUM_NEGATIVES = 32
LAST_STEPS = 10
MOST_LOSS_SHARE, MOST_HR = 0.03, 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is trained."""

    num_items: int
    num_users: int
    num_steps: int
    batch_sequences: int


FULL = Size(num_items=500, num_users=512, num_steps=300, batch_sequences=64)
SMALL = Size(num_items=40, num_users=64, num_steps=40, batch_sequences=16)
CONFIG = ModelConfig(
    embedding_dim=64, num_blocks=2, num_heads=2, ffn_dim=128, max_length=64, temperature=0.1
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What one training gave."""

    losses: list[float]  # mean loss of a target, by step
    hr_at_10: float
    seconds: float


def histories(size: Size) -> list[Items]:
    """A history of each user; its last item is held out."""
    rng = np.random.default_rng(11)
    after = rng.permutation(size.num_items)
    made = []
    for _ in range(size.num_users):
        items = [int(rng.integers(size.num_items))]
        for _ in range(int(rng.integers(8, 40))):
            follows = rng.random() < FOLLOWS_SHARE
            items.append(int(after[items[-1]] if follows else rng.integers(size.num_items)))
        made.append(np.array(items))
    return made


def batch_of(size: Size, users: list[Items], step: int) -> JaggedBatch:
    """The batch of one step: drawn users without their last item; ids are rows of the table."""
    rng = np.random.default_rng([13, step])
    chosen = [users[i][:-1] for i in rng.permutation(len(users))[: size.batch_sequences]]
    lengths = tuple(len(items) - 1 for items in chosen)
    negatives_BK = rng.integers(size.num_items, size=(len(chosen), NUM_NEGATIVES))
    keep = rng.random((1 + 2 * CONFIG.num_blocks, sum(lengths), CONFIG.embedding_dim))
    return JaggedBatch(
        lengths=lengths,
        inputs_N=torch.from_numpy(np.concatenate([items[:-1] for items in chosen])),
        targets_N=torch.from_numpy(np.concatenate([items[1:] for items in chosen])),
        negatives_BK=torch.from_numpy(negatives_BK),
        keep_SND=torch.from_numpy(keep >= CONFIG.dropout),
    )


def trained(size: Size, precision: str, device: torch.device) -> Trained:
    """Train from the same first weights and rank every item for every user, in this precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = SASRec(CONFIG)
        table_VD = torch.randn(size.num_items, CONFIG.embedding_dim) * CONFIG.embedding_dim**-0.5
    model = model.to(device)
    table_VD = table_VD.to(device).requires_grad_()
    optimizer = torch.optim.Adam([table_VD, *model.parameters()], lr=3e-3)
    users, losses = histories(size), []
    settle(device)
    begin = time.perf_counter()
    for step in range(size.num_steps):
        batch = batch_of(size, users, step).to(device)
        with autocast_for(precision, device):
            loss = model.loss_sum(table_VD, batch, kept_scale(CONFIG.dropout))
        optimizer.zero_grad()
        (loss / len(batch.targets_N)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach() / len(batch.targets_N))
    settle(device)
    seconds = time.perf_counter() - begin
    return Trained(
        losses=[float(x) for x in losses],
        hr_at_10=hr_at_10(model, table_VD, users, precision, device),
        seconds=seconds,
    )


@torch.no_grad()
def hr_at_10(
    model: SASRec, table_VD: torch.Tensor, users: list[Items], precision: str, device: torch.device
) -> float:
    """Share of users whose held-out item is among the ten best of all items."""
    inputs = [torch.from_numpy(items[:-1]) for items in users]
    lengths = tuple(len(items) for items in inputs)
    with autocast_for(precision, device):
        hidden_ND = model.encode(table_VD[torch.cat(inputs).to(device)], lengths)
    last_B = torch.tensor(lengths).cumsum(0) - 1
    unit_VD = functional.normalize(table_VD, dim=1)
    best_BK = (
        (functional.normalize(hidden_ND[last_B.to(device)], dim=1) @ unit_VD.T).topk(10).indices
    )
    target_B = torch.tensor([int(items[-1]) for items in users])
    return float((best_BK.cpu() == target_B[:, None]).any(1).float().mean())


def precision_part(device: torch.device, small: bool) -> Checked:
    """fp32 beside bf16."""
    size = SMALL if small else FULL
    runs = {precision: trained(size, precision, device) for precision in ("fp32", "bf16")}
    exact, rounded = runs["fp32"], runs["bf16"]
    last = {name: sum(run.losses[-LAST_STEPS:]) / LAST_STEPS for name, run in runs.items()}
    figures = []
    for name, run in runs.items():
        figures += [
            Figure(what=f"{name}: first loss", value=run.losses[0], unit="nats"),
            Figure(what=f"{name}: last {LAST_STEPS} losses", value=last[name], unit="nats"),
            Figure(what=f"{name}: HR@10", value=run.hr_at_10, unit="share"),
            Figure(what=f"{name}: {size.num_steps} steps", value=run.seconds, unit="s"),
        ]
    figures += [
        Figure(
            what="bf16 from fp32: last loss",
            value=abs(last["bf16"] / last["fp32"] - 1),
            unit="share",
            at_most=MOST_LOSS_SHARE,
        ),
        Figure(
            what="bf16 from fp32: HR@10",
            value=abs(rounded.hr_at_10 - exact.hr_at_10),
            unit="share",
            at_most=MOST_HR,
        ),
    ]
    return Checked(figures=figures, curves={f"loss_{n}": run.losses for n, run in runs.items()})
