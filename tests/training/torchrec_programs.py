"""What test ranks do with TorchRec; a module of its own, because every rank imports it by name.

TorchRec is imported inside the functions: it is in the `bench` extra only, and takes seconds.
Two tables; of three keys two share the table of items. A dense layer follows; the loss of a batch
is half the squared distance of what leaves it to a drawn target, summed and divided by the global
number of ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.config import TableConfig
from training.embeddings.ids import distinct
from training.embeddings.keyed_jagged import KeyedJaggedIds
from training.embeddings.table import ShardedTable
from training.engine import Engine, EngineOptions
from training.randomness import table_seed
from training.ranks import joined

KEYS = {"seen": "item", "user": "user", "bought": "item"}  # to tables
ROWS = {"item": (400, 16), "user": (150, 16)}  # rows and width; TorchRec wants one width
WIDTH = {key: ROWS[table][1] for key, table in KEYS.items()}
ZIPF, SAMPLES, LONGEST = 1.05, 12, 20
LEARNING_RATE = {"sgd": 1.0, "adagrad": 0.3, "rowwise_adagrad": 0.3}
DENSE_LEARNING_RATE = 0.05
# eps keeps a row whose gradient is near 0 from blowing the last bits up (1e-8: 1.5e-5 seen)
EPS, SEED = 1e-3, 11
SCHEDULES = ("synchronous", "split")


def tables(optimizer: str) -> list[TableConfig]:
    """The two tables as we configure them."""
    return [
        TableConfig(
            name=name,
            num_rows=num_rows,
            width=width,
            optimizer=optimizer,
            learning_rate=LEARNING_RATE[optimizer],
            eps=EPS,
        )
        for name, (num_rows, width) in ROWS.items()
    ]


Features = tuple[Tensor, Tensor, dict[str, Tensor]]


def features(step: int, rank: int) -> Features:
    """(values, lengths, targets by key) of one rank's batch, drawn from (step, rank) alone."""
    rng = np.random.default_rng([step, rank])
    values, lengths, targets = [], [], {}
    for key, table in KEYS.items():
        num_rows, width = ROWS[table]
        length_B = rng.integers(0, LONGEST, SAMPLES)
        share = np.arange(1, num_rows + 1.0) ** -ZIPF
        values.append(rng.choice(num_rows, length_B.sum(), p=share / share.sum()))
        lengths.append(length_B)
        drawn = rng.standard_normal((length_B.sum(), width), dtype=np.float32)
        targets[key] = torch.from_numpy(drawn + 2)  # a mean that can be learned
    return (
        torch.from_numpy(np.concatenate(values)),
        torch.from_numpy(np.concatenate(lengths)),
        targets,
    )


def dense_model() -> nn.Module:
    """The dense part, in its first state."""
    torch.manual_seed(SEED)
    return nn.Linear(16, 16)


def loss_of(model: nn.Module, rows: dict[str, Any], targets: dict[str, Tensor]) -> Tensor:
    """The sum of a rank's losses; rows: by key, with values()."""
    parts = [(model(rows[key].values()) - targets[key]).square().sum() / 2 for key in KEYS]
    return torch.stack(parts).sum()


def num_ids(step: int, world_size: int) -> int:
    """Ids of a global batch."""
    return sum(len(features(step, rank)[0]) for rank in range(world_size))


def keyed_jagged(step: int, rank: int) -> Any:
    """TorchRec's own KeyedJaggedTensor of one rank's batch."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    values, lengths, _ = features(step, rank)
    return KeyedJaggedTensor.from_lengths_sync(list(KEYS), values, lengths)


def train_torchrec(
    rank: int, world_size: int, init_method: str, optimizer: str, num_steps: int
) -> dict[str, Any]:
    """Train TorchRec's plain row-wise module with a fused optimiser on real ranks.

    Returns this rank's first row, weights and accumulators of each table, and the losses.
    """
    from torchrec.distributed.comm_ops import set_gradient_division

    # By default TorchRec divides row gradients by the number of ranks, for losses that are means
    # of a rank; ours are parts of one sum.
    set_gradient_division(False)
    with joined(60, init_method=init_method, rank=rank, world_size=world_size) as group:
        module = _sharded(group, optimizer)
        shards = {
            name: module.state_dict()[f"embeddings.{name}.weight"].local_shards()[0]
            for name in ROWS
        }
        first = {name: shard.metadata.shard_offsets[0] for name, shard in shards.items()}
        for config in tables(optimizer):
            seed = table_seed(SEED, config.name)
            whole = ShardedTable(config, rank=0, world_size=1, seed=seed).weight_MD
            shard = shards[config.name].tensor
            shard.copy_(whole[first[config.name] :][: len(shard)])
        losses, model = [], dense_model()
        dense = torch.optim.SGD(model.parameters(), lr=DENSE_LEARNING_RATE)
        for step in range(num_steps):
            rows = module(keyed_jagged(step, rank))
            loss = loss_of(model, rows, features(step, rank)[2]) / num_ids(step, world_size)
            dense.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            dense.step()
            losses.append(loss.item())
        return {
            "first": first,
            "weight": {name: shard.tensor.numpy().copy() for name, shard in shards.items()},
            "accumulator": _accumulators(module),
            "dense": {name: p.detach().numpy() for name, p in model.named_parameters()},
            "losses": losses,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyedBatch:
    """One rank's batch as the engine sees it."""

    row_ids: tuple[Tensor, ...]
    inverse: dict[str, Tensor]
    jagged: KeyedJaggedIds
    targets: dict[str, Tensor]
    num_targets: int
    global_targets: int


class KeyedWorkload:
    """The dense layer over rows by key."""

    def __init__(self) -> None:
        self.model = dense_model()

    def parts(self, batch: KeyedBatch, num_parts: int) -> list[KeyedBatch]:
        """Micro-batches are not used here."""
        assert num_parts == 1
        return [batch]

    def loss_sum(self, rows_T: Sequence[Tensor], part: KeyedBatch) -> Tensor:
        rows = {
            name: rows_UD[part.inverse[name]] for name, rows_UD in zip(ROWS, rows_T, strict=True)
        }
        return loss_of(self.model, part.jagged.rows(rows), part.targets)


def keyed_batch(configs: list[TableConfig], step: int, rank: int, world_size: int) -> KeyedBatch:
    """TorchRec's KeyedJaggedTensor through our adapter."""
    jagged = KeyedJaggedIds(keyed_jagged(step, rank), tables=configs, table_of_key=KEYS, step=step)
    found = {name: distinct(jagged.ids[name]) for name in ROWS}
    return KeyedBatch(
        row_ids=tuple(ids_U for ids_U, _ in found.values()),
        inverse={name: inverse_N for name, (_, inverse_N) in found.items()},
        jagged=jagged,
        targets=features(step, rank)[2],
        num_targets=len(features(step, rank)[0]),
        global_targets=num_ids(step, world_size),
    )


def train_ours(
    rank: int, world_size: int, init_method: str, optimizer: str, num_steps: int
) -> dict[str, dict[str, Any]]:
    """Train our engine on the same batches, by schedule.

    Returns of each schedule this rank's ids, weights and accumulators of each table, the dense
    parameters, and the losses.
    """
    configs = tables(optimizer)
    batches = [keyed_batch(configs, step, rank, world_size) for step in range(num_steps)]
    found: dict[str, dict[str, Any]] = {}
    with joined(60, init_method=init_method, rank=rank, world_size=world_size):
        for schedule in SCHEDULES:
            engine = Engine(
                KeyedWorkload(),
                configs,
                lambda parameters: torch.optim.SGD(parameters, lr=DENSE_LEARNING_RATE),
                EngineOptions(schedule=schedule, seed=SEED, timeout_s=45),
            )
            losses = [
                float(result.local_loss_sum) / result.batch.global_targets
                for result in engine.run(batches)
            ]
            engine.close()
            named = {table.config.name: table for table in engine.tables}
            found[schedule] = {
                "ids": {name: table.placement.local_ids(rank) for name, table in named.items()},
                "weight": {name: table.weight_MD.numpy() for name, table in named.items()},
                "accumulator": {
                    name: table.state["accumulator"].numpy()
                    for name, table in named.items()
                    if "accumulator" in table.state
                },
                "dense": {name: v.numpy() for name, v in engine.dense.state().items()},
                "losses": losses,
            }
    return found


def check_adapter(rank: int, world_size: int, init_method: str) -> list[dict[str, Any]]:
    """Look one batch up by TorchRec's unsharded EmbeddingCollection and through our adapter."""
    del rank, world_size, init_method
    theirs = _collection("cpu")
    jagged = keyed_jagged(0, 0)
    ours = KeyedJaggedIds(jagged, tables=tables("sgd"), table_of_key=KEYS, step=0)
    weights = {table: theirs.embeddings[table].weight.detach() for table in ROWS}
    rows = ours.rows({table: weights[table][ids] for table, ids in ours.ids.items()})
    return [
        {
            key: [part.detach().numpy() for part in (got.values(), got.lengths(), got.offsets())]
            for key, got in by_key.items()
        }
        for by_key in (theirs(jagged), rows)
    ]


def _collection(device: str) -> Any:
    import torchrec
    from torchrec.modules.embedding_configs import EmbeddingConfig

    return torchrec.EmbeddingCollection(
        device=torch.device(device),
        tables=[
            EmbeddingConfig(
                name=table,
                num_embeddings=num_rows,
                embedding_dim=width,
                feature_names=[key for key, of in KEYS.items() if of == table],
            )
            for table, (num_rows, width) in ROWS.items()
        ],
    )


def _sharded(group: Any, optimizer: str) -> Any:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv

    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    }
    module = _collection("meta")
    fused = {"optimizer": kinds[optimizer], "learning_rate": LEARNING_RATE[optimizer], "eps": EPS}
    sharder = EmbeddingCollectionSharder(fused_params=fused)
    plan = construct_module_sharding_plan(
        module,
        per_param_sharding={table: row_wise(compute_kernel="fused") for table in ROWS},
        sharder=sharder,
        local_size=group.size(),
        world_size=group.size(),
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(group)
    return sharder.shard(module, plan, env, torch.device("cpu"))


def _accumulators(module: Any) -> dict[str, Any]:
    """This rank's accumulators by table, empty for SGD."""
    found = {}
    for name, states in module.fused_optimizer.state_dict()["state"].items():
        for key, state in states.items():
            if key.endswith("momentum1"):
                table = name.removeprefix("embeddings.").removesuffix(".weight")
                found[table] = state.local_shards()[0].tensor.numpy().copy()
    return found
