"""What ranks with a loop of their own do with overlapped tables; imported by name on every rank.

A batch of a step is drawn from (step, rank) alone. The loss of a rank is half the squared distance
of a small model's output to a drawn target, divided by the global number of ids.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analytics.errors import SeqscaleError
from training.config import TableConfig
from training.overlapped_tables import OverlappedTables
from training.ranks import joined
from training.step_recording import StepRecording

ROWS = {"item": (40, 8), "user": (9, 4), "shop": (5, 3)}
STEPS = 14
Ids = dict[str, Tensor]


def configs(optimizer: str = "sgd", learning_rate: float = 0.1) -> list[TableConfig]:
    return [
        TableConfig(
            name=name,
            num_rows=num_rows,
            width=width,
            optimizer=optimizer,
            learning_rate=learning_rate,
            placement="hash" if name == "item" else "round_robin",
        )
        for name, (num_rows, width) in ROWS.items()
    ]


def ids_of(step: int, rank: int) -> Ids:
    """Items of shape (B, L) with many repeats; users of one dimension; shops now and then only."""
    rng = np.random.default_rng([7, step, rank])
    num = 0 if (step + rank) % 5 == 4 else 4
    items = np.minimum(rng.zipf(1.3, (num, 6)) - 1, ROWS["item"][0] - 1)
    ids = {"item": torch.from_numpy(items), "user": torch.from_numpy(rng.integers(0, 9, num))}
    if step % 3 == 0:
        ids["shop"] = torch.from_numpy(rng.integers(0, 5, 2 * num))
    return ids


def num_global(step: int, counts: list[int]) -> int:
    """Ids of the ranks that still have a batch in this step."""
    return sum(
        ids.numel()
        for rank, count in enumerate(counts)
        if step < count
        for ids in ids_of(step, rank).values()
    )


def dense_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(ROWS["item"][1], 6)


def loss_of(model: nn.Module, rows: dict[str, Tensor], number: int) -> Tensor:
    """Depends on the rows, on their order and on their number; 0 for none."""
    total = torch.zeros(())
    for name in sorted(rows):
        flat = rows[name].reshape(-1, ROWS[name][1])
        target = torch.linspace(-1, 1, flat.numel()).view_as(flat)
        total = total + (flat - target).square().sum() / 2
        if name == "item":
            total = total + model(flat).square().sum()
    return total / max(number, 1)


def trained(
    tables: OverlappedTables, counts: list[int], rank: int, first: int = 0
) -> tuple[list[float], list[list[tuple[int, ...]]]]:
    """Run the user's loop; losses, and the shapes of the rows of every batch."""
    model = dense_model()
    losses, shapes = [], []
    batches = range(first, first + counts[rank])
    loop = tables.over(batches, lambda step: ids_of(step, rank))
    for at, (step, rows) in enumerate(loop, start=first):
        assert step is None or step == at
        assert (step is None) == (rows == {})
        loss = loss_of(model, rows, num_global(at, [first + c for c in counts]))
        if step is not None:
            loss.backward()
        tables.step()
        losses.append(loss.item())
        shapes.append([tuple(rows[name].shape) for name in rows])
    return losses, shapes


def told(tables: OverlappedTables, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, table in tables.tables.items():
        found[name] = table.weight_MD.numpy().copy()
        found[f"{name} ids"] = table.placement.local_ids(rank)
        for key, kept in table.state.items():
            found[f"{name}/{key}"] = kept.numpy().copy()
    return found


def both_orders(
    rank: int, world_size: int, init_method: str, optimizer: str, counts: list[int]
) -> list[dict[str, Any]]:
    """The same loop without and with overlap."""
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        results = []
        for overlap in (False, True):
            tables = OverlappedTables(
                configs(optimizer), overlap=overlap, chunk_bytes=256, timeout_s=20
            )
            losses, shapes = trained(tables, counts, rank)
            tables.close()
            results.append(told(tables, rank) | {"losses": np.array(losses), "shapes": shapes})
        return results


def with_torch(rank: int, world_size: int, init_method: str, learning_rate: float) -> Any:
    """Our tables on these ranks, and torch.nn.Embedding with SGD on all ranks' batches, here."""
    counts = [STEPS] * world_size
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        tables = OverlappedTables(configs("sgd", learning_rate), seed=4, timeout_s=20)
        alone = _whole_tables(learning_rate)
        trained(tables, counts, rank)
        tables.close()
    model = dense_model()
    embeddings, optimizer = alone
    for step in range(STEPS):
        optimizer.zero_grad()
        for other in range(world_size):
            rows = {name: embeddings[name](ids) for name, ids in ids_of(step, other).items()}
            loss_of(model, rows, num_global(step, counts)).backward()
        optimizer.step()
    whole = {name: layer.weight.detach().numpy() for name, layer in embeddings.items()}
    return told(tables, rank), whole


def _whole_tables(learning_rate: float) -> tuple[dict[str, nn.Embedding], torch.optim.Optimizer]:
    from training.embeddings.table import ShardedTable
    from training.randomness import table_seed

    layers = {
        config.name: nn.Embedding.from_pretrained(
            ShardedTable(
                TableConfig(name=config.name, num_rows=config.num_rows, width=config.width),
                rank=0,
                world_size=1,
                seed=table_seed(4, config.name),
            ).weight_MD.clone(),
            freeze=False,
        )
        for config in configs()
    }
    parameters = [layer.weight for layer in layers.values()]
    return layers, torch.optim.SGD(parameters, lr=learning_rate)


def first_rows(rank: int, world_size: int, init_method: str) -> list[Any]:
    """Two tables of one shape."""
    same = [TableConfig(name=name, num_rows=6, width=4) for name in ("left", "right")]
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        tables = OverlappedTables(same, timeout_s=20)
        tables.close()
        return [table.weight_MD.numpy() for table in tables.tables.values()]


def bad_id(rank: int, world_size: int, init_method: str, at: int) -> tuple[str, str, int, float]:
    """Rank 1 meets an id that its table does not have in batch `at`."""

    def ids(step: int) -> Ids:
        found = ids_of(step, rank)
        if rank == 1 and step == at:
            found["user"] = torch.tensor([3, 9])
        return found

    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        tables = OverlappedTables(configs(), timeout_s=20)
        begin, done = time.monotonic(), 0
        try:
            for step, rows in tables.over(range(STEPS), ids):
                assert step is not None
                loss_of(dense_model(), rows, 1).backward()
                tables.step()
                done += 1
        except SeqscaleError as error:
            problem = error
        tables.close()
        return type(problem).__name__, str(problem), done, time.monotonic() - begin


def misused(rank: int, world_size: int, init_method: str, how: str) -> str:
    """What is said to a loop that forgets step(), or calls it twice."""
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        tables = OverlappedTables(configs(), timeout_s=20)
        num_batches = 1 if how == "forgotten at the end" else 4
        try:
            if how == "before the first":
                tables.step()
            for _ in tables.over(range(num_batches), lambda step: ids_of(step, rank)):
                if how == "twice":
                    tables.step()
                    tables.step()
        except SeqscaleError as error:
            return str(error)
        finally:
            tables.close()
    return ""


def left_early(
    rank: int, world_size: int, init_method: str, after_step: bool
) -> tuple[float, list[dict[str, Any]]]:
    """Break out of a loop, then begin another; close() in time; same bits in both orders."""
    close_s, results = 0.0, []
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        for overlap in (False, True):
            tables = OverlappedTables(configs("adagrad"), overlap=overlap, timeout_s=20)
            for _ in range(2):
                for step, rows in tables.over(range(6), lambda step: ids_of(step, rank)):
                    loss_of(dense_model(), rows, 50).backward()
                    if step == 3 and not after_step:
                        break
                    tables.step()
                    if step == 3:
                        break
            trained(tables, [3] * world_size, rank, first=2)
            for _ in tables.over(range(6), lambda step: ids_of(step, rank)):
                break
            results.append(told(tables, rank))
            begin = time.monotonic()
            tables.close()
            close_s = max(close_s, time.monotonic() - begin)
    return close_s, results


def one_leaves(rank: int, world_size: int, init_method: str) -> tuple[str, float, float]:
    """Only rank 0 leaves its loop: it closes at once, the other ends within the time-out."""
    problem = ""
    with joined(30, init_method=init_method, rank=rank, world_size=world_size):
        tables = OverlappedTables(configs(), timeout_s=5)
        begin = time.monotonic()
        try:
            for step, rows in tables.over(range(20), lambda step: ids_of(step, rank)):
                loss_of(dense_model(), rows, 50).backward()
                tables.step()
                if rank == 0 and step == 2:
                    break
        except RuntimeError as error:
            problem = str(error)
        loop_s, begin = time.monotonic() - begin, time.monotonic()
        tables.close()
        return problem, loop_s, time.monotonic() - begin


def recorded(rank: int, world_size: int, init_method: str, runs: Path) -> list[float]:
    """A recorded loop with tables; rank 1 works 20 ms longer in every step."""
    with (
        joined(30, init_method=init_method, rank=rank, world_size=world_size),
        StepRecording(runs, run_id="mine", block_steps=4) as recording,
    ):
        tables = OverlappedTables(configs(), recording=recording, chunk_bytes=256, timeout_s=20)
        model = dense_model()
        for step, rows in tables.over(range(10), lambda step: ids_of(step, rank)):
            with recording.step():
                time.sleep(0.02 if rank == 1 else 0.0)
                loss_of(model, rows, num_global(step or 0, [10] * world_size)).backward()
                tables.step()
        tables.close()
        return list(recording.waited_s.values())
