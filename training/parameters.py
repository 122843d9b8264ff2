"""A trained arm on disk: one safetensors file, the whole item table and the dense parameters.

Keys: `item_table` float32 (num_items, D), row i = item_index i; `dense.<name>` for every parameter
of training.model.SASRec. Nothing is pickled. Independent of how many ranks trained it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from analytics.errors import StoreError
from training.config import ModelConfig
from training.embeddings.table import ShardedTable
from training.model import SASRec

_TABLE, _DENSE = "item_table", "dense."


def gather_table(table: ShardedTable, group: dist.ProcessGroup) -> Tensor | None:
    """The whole table on rank 0, None elsewhere; shape (num_rows, D). A collective."""
    world_size, config = dist.get_world_size(group), table.config
    most = -(-config.num_rows // world_size)
    padded_MD = torch.zeros(most, config.width)
    padded_MD[: len(table.weight_MD)] = table.weight_MD
    is_first = dist.get_rank(group) == 0
    shares = [torch.zeros_like(padded_MD) for _ in range(world_size)] if is_first else None
    dist.gather(padded_MD, shares, dst=0, group=group)
    if shares is None:
        return None
    whole_VD = torch.empty(config.num_rows, config.width)
    for rank, share in enumerate(shares):
        ids = torch.from_numpy(table.placement.local_ids(rank))
        whole_VD[ids] = share[: len(ids)]
    return whole_VD


def save_parameters(path: Path, item_table_VD: Tensor, model: SASRec) -> None:
    """Write the file aside and rename it."""
    tensors = {_TABLE: item_table_VD.contiguous()}
    tensors.update({_DENSE + k: v.contiguous() for k, v in model.state_dict().items()})
    aside = path.with_name(path.name + ".part")
    save_file(tensors, aside)
    aside.replace(path)


def load_parameters(path: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """(item table of shape (num_items, D), state of SASRec).

    Raises StoreError when the file is missing or damaged.
    """
    try:
        tensors = load_file(path)
        table_VD = tensors.pop(_TABLE)
    except Exception as error:  # safetensors raises its own type, OSError and KeyError
        raise StoreError(
            f"{path}: no readable parameters are here ({error}). Train again with 'seqscale run'."
        ) from error
    return table_VD, {k.removeprefix(_DENSE): v for k, v in tensors.items()}


def load_model(path: Path, config: ModelConfig) -> tuple[Tensor, SASRec]:
    """(item table, model in evaluation mode) of a trained arm, on the CPU.

    Attention is left to the CPU's choice, whichever back end a GPU was trained with.
    """
    table_VD, state = load_parameters(path)
    model = SASRec(dataclasses.replace(config, attention="auto"))
    model.load_state_dict(state)
    return table_VD, model.eval()


def parameters_sha256(path: Path) -> str:
    """SHA-256 of a parameters file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
