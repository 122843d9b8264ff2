"""Trains tables whose hottest rows lie on every rank, under any schedule (embeddings/hot_rows.py).

A workload and its batches are wrapped; the engine sees one more table for each. Off unless asked
for: gradients of a hot row go to every rank and count as colliding, so the bytes rise, and with two
ranks nothing was gained in a prototype.

    hot = HotTables(configs, {"item": hottest(counts, 400)})
    engine = Engine(hot.workload(workload), hot.configs, optimizer, options)
    hot.start(engine.tables, seed=options.seed)
    for result in engine.run(hot.batch(batch) for batch in batches): ...
    hot.write_back(engine.tables, rank)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TableConfig
from training.embeddings.hot_rows import HotCold, HotRows, Ids
from training.embeddings.table import ShardedTable
from training.pipeline.workload import Batch, Workload
from training.randomness import first_weights, table_seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class HotBatch:
    """A batch whose ids are those of the wrapped tables."""

    inner: Batch
    row_ids: Sequence[Tensor]
    parts_T: list[HotCold | None]

    @property
    def num_targets(self) -> int:
        """Targets on this rank."""
        return self.inner.num_targets

    @property
    def global_targets(self) -> int:
        """Targets over all ranks."""
        return self.inner.global_targets


class HotTables:
    """Tables, those named in `hot_ids` as two each: replicated hot rows, then sharded cold ones."""

    def __init__(self, configs: Sequence[TableConfig], hot_ids: Mapping[str, Ids]) -> None:
        self._hot_ids = hot_ids
        self._rows_T = [HotRows(c, hot_ids[c.name]) if c.name in hot_ids else None for c in configs]
        self.configs: list[TableConfig] = []
        for config, rows in zip(configs, self._rows_T, strict=True):
            self.configs += [config] if rows is None else [rows.hot, rows.cold]

    def batch(self, batch: Batch) -> HotBatch:
        """The batch with its ids in two parts where a table is in two."""
        parts_T: list[HotCold | None] = []
        ids: list[Tensor] = []
        for rows, ids_U in zip(self._rows_T, batch.row_ids, strict=True):
            parts = None if rows is None else rows.split(ids_U)
            parts_T.append(parts)
            ids += [ids_U] if parts is None else [parts.hot_X, parts.cold_C]
        return HotBatch(inner=batch, row_ids=ids, parts_T=parts_T)

    def workload(self, inner: Workload) -> HotWorkload:
        """The workload, which goes on seeing whole tables."""
        return HotWorkload(inner)

    def start(self, tables: Sequence[ShardedTable], *, seed: int) -> None:
        """Give hot rows the first weights that the one table would have; seed: the engine's."""
        named = {table.config.name: table for table in tables}
        for rows in self._rows_T:
            if rows is not None:
                cold = rows.cold
                drawn_HD = first_weights(
                    seed=table_seed(seed, cold.name),
                    row_ids_M=self._hot_ids[cold.name],
                    width=cold.width,
                    scale=cold.width**-0.5,
                )
                named[rows.hot.name].weight_MD.copy_(torch.from_numpy(drawn_HD))

    def write_back(self, tables: Sequence[ShardedTable], rank: int) -> None:
        """Put the hot rows into the cold shares, which are then the whole tables."""
        named = {table.config.name: table for table in tables}
        for rows in self._rows_T:
            if rows is not None:
                rows.write_back(named[rows.hot.name], named[rows.cold.name], rank)


class HotWorkload:
    """A workload over tables in two parts."""

    def __init__(self, inner: Workload) -> None:
        self._inner = inner

    @property
    def model(self) -> nn.Module:
        """The inner workload's."""
        return self._inner.model

    def parts(self, batch: HotBatch, num_parts: int) -> Sequence[Any]:
        """The inner workload's parts, each with the way back to whole tables."""
        return [(part, batch.parts_T) for part in self._inner.parts(batch.inner, num_parts)]

    def loss_sum(self, rows_T: Sequence[Tensor], part: Any) -> Tensor:
        """The inner workload's loss over the joined rows."""
        inner, parts_T = part
        left = iter(rows_T)
        whole = [
            next(left) if parts is None else HotRows.joined(next(left), next(left), parts)
            for parts in parts_T
        ]
        return self._inner.loss_sum(whole, inner)
