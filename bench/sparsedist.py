"""TorchRec's TrainPipelineSparseDist on the batches, the model and the first weights of our arms.

    python bench/sparsedist.py
    python bench/sparsedist.py --rate 100mbit --model real

TorchRec 1.8: row-wise sharded EmbeddingCollection, fused row-wise Adagrad, gloo; the dense part in
DDP, as DistributedModelParallel does it. Prints the step beside our synchronous one on the same
batches, and the largest differences of table, its accumulators, dense parameters and loss; DDP's
all-reduce sums in another order, so 1e-5 is expected there, not 0.

What is made equal: every batch gives its distinct ids, for TorchRec's index de-duplication has no
CPU kernel and would else send rows twice. What is not: TorchRec travels by gloo's own all-to-all,
which sends before it posts its receives (training/comm/gloo.py has what that costs), and its table
is cut by blocks of rows, ours round robin.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the packages lie beside it

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

NAME = "torchrec"


def missing() -> str | None:
    """Why there is no TorchRec here, in a sentence; None when there is."""
    absent = [name for name in ("torchrec", "fbgemm_gpu") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed; make setup BENCH=1" if absent else None


@dataclasses.dataclass
class KeyedBatch:
    """A batch of ours with its distinct ids as TorchRec takes them."""

    ids: Any  # KeyedJaggedTensor
    own: Any

    def to(self, device: torch.device, non_blocking: bool = False) -> KeyedBatch:
        """Everything is on the CPU already."""
        del device, non_blocking
        return self

    def record_stream(self, stream: Any) -> None:
        """Nothing runs on a stream."""


class _Dense(nn.Module):
    """Everything behind the rows; a leaf for the pipeline's tracer."""

    def __init__(self, workload: Any, world_size: int) -> None:
        super().__init__()
        self.model = workload.model
        self._loss_sum = workload.loss_sum
        self._parts = workload.parts
        self._world_size = world_size

    def forward(self, rows: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """(what is differentiated, this rank's part of the loss).

        TorchRec and DDP both divide gradients by the number of ranks, so the loss is multiplied.
        """
        (part,) = self._parts(batch, 1)
        loss = self._loss_sum([rows["item"].values()], part) / batch.global_targets
        return loss * self._world_size, loss.detach()


class _Model(nn.Module):
    def __init__(self, embeddings: nn.Module, dense: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dense = dense

    def forward(self, batch: KeyedBatch) -> tuple[Tensor, Tensor]:
        """Rows by the pipeline's early ids, then the dense part."""
        rows = self.embeddings(batch.ids)
        found: tuple[Tensor, Tensor] = self.dense(rows, batch.own)
        return found


class SparseDistArm:
    """TorchRec's pipeline as an arm of a bench. Made by all ranks together."""

    name = NAME

    def __init__(self, task: Any) -> None:
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.streamable import Pipelineable

        from training.embeddings.table import ShardedTable
        from training.randomness import table_seed

        Pipelineable.register(KeyedBatch)  # the pipeline insists; TorchRec is imported only here
        group = dist.group.WORLD
        assert group is not None
        self._model = _sharded(task, group)
        dense = [p for name, p in self._model.named_parameters() if name.startswith("dense.")]
        self._optimizer = task.optimizer(dense)
        self._pipeline = TrainPipelineSparseDist(
            self._model, self._optimizer, torch.device("cpu"), execute_all_batches=True
        )
        seed = table_seed(task.seed, task.table.name)  # as the engine gives it to its tables
        whole = ShardedTable(task.table, rank=0, world_size=1, seed=seed).weight_MD
        shard = self._shard()
        self._first_row = shard.metadata.shard_offsets[0]
        shard.tensor.copy_(whole[self._first_row :][: len(shard.tensor)])

    def run(self, batches: Sequence[Any]) -> list[dict[str, float]]:
        """Train on a block; time of each step on this rank [s] and its loss."""
        source = iter([KeyedBatch(ids=_keyed(batch), own=batch) for batch in batches])
        marks, losses = [], []
        for _ in batches:
            marks.append(time.monotonic_ns())
            losses.append(self._pipeline.progress(source))
        marks.append(time.monotonic_ns())
        return [
            {"window_s": (end - begin) / 1e9, "loss": float(loss)}
            for (begin, end), loss in zip(itertools.pairwise(marks), losses, strict=True)
        ]

    def rows(self) -> dict[str, Any]:
        """This rank's block of the table and its accumulators: first row, weight, accumulator."""
        found = {"first_row": self._first_row, "table/weight": self._shard().tensor.clone()}
        for states in self._embeddings.fused_optimizer.state_dict()["state"].values():
            for key, state in states.items():
                if key.endswith("momentum1"):
                    found["table/accumulator"] = state.local_shards()[0].tensor.clone()
        return found

    def dense(self) -> dict[str, Tensor]:
        """Dense parameters and their optimiser's state, by our names."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._model.named_parameters():
            if not name.startswith("dense."):
                continue
            own = f"dense/{name.removeprefix('dense.model.')}"
            found[own] = parameter.detach()
            for key, value in self._optimizer.state[parameter].items():
                found[f"{own}/{key}"] = value
        return found

    def close(self) -> None:
        """Nothing of its own runs on."""

    @property
    def _embeddings(self) -> Any:
        return self._model.module.embeddings

    def _shard(self) -> Any:
        (shard,) = self._embeddings.state_dict()["embeddings.item.weight"].local_shards()
        return shard


def _keyed(batch: Any) -> Any:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    (ids_U,) = batch.row_ids
    return KeyedJaggedTensor(
        keys=["item"], values=ids_U, lengths=torch.tensor([len(ids_U)], dtype=torch.int64)
    )


def _sharded(task: Any, group: dist.ProcessGroup) -> Any:
    import torchrec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan
    from torchrec.modules.embedding_configs import EmbeddingConfig

    table, cpu = task.table, torch.device("cpu")
    assert table.optimizer == "rowwise_adagrad"
    embeddings = torchrec.EmbeddingCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingConfig(
                name="item",
                num_embeddings=table.num_rows,
                embedding_dim=table.width,
                feature_names=["item"],
            )
        ],
    )
    sharder = EmbeddingCollectionSharder(
        fused_params={
            "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            "learning_rate": table.learning_rate,
            "eps": table.eps,
        }
    )
    plan = construct_module_sharding_plan(
        embeddings,
        per_param_sharding={"item": row_wise(compute_kernel="fused")},
        sharder=sharder,
        local_size=group.size(),
        world_size=group.size(),
        device_type="cpu",
    )
    return DistributedModelParallel(
        _Model(embeddings, _Dense(task.workload(), group.size())),
        env=ShardingEnv.from_process_group(group),
        device=cpu,
        plan=ShardingPlan(plan={"embeddings": plan}),
        sharders=[sharder],
    )


def main() -> int:
    from bench.arms_in_turn import REFERENCE, TORCHREC
    from bench.link import missing as no_link
    from bench.overlap import UNLIMITED, measure, table, with_link_costs

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", default=UNLIMITED, help="of the link, such as 100mbit")
    parser.add_argument("--model", choices=("emulated", "real"), default="emulated")
    parser.add_argument("--repeats", type=int, default=2, help="blocks of each arm that count")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    given = parser.parse_args()
    reason = missing() or no_link()
    if reason is not None:
        parser.error(reason)
    given.emulated_link, given.load = False, {}
    rows = with_link_costs(measure(given, given.model, given.rate, [TORCHREC, REFERENCE]))
    print("\n".join(table(rows)))
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
