"""Keeps the hottest rows of a table on every rank, so that looking them up costs no exchange.

A mapping on top of two tables: the hottest ids become rows 0 .. H-1 of a replicated table, all
other ids stay what they are in the sharded one (which keeps its H now unused rows: H / R more rows
a rank, and no renumbering). The gradients of a hot row go to every rank and are summed there in the
order of ranks, which is the order in which its one owner would sum them; so the tables hold the
same bits as without replication (tested).

Before: ids.py checks the ids.   After: exchange.py looks both parts up.
Price: gradients of hot rows travel to all ranks instead of one. In a prototype the colliding share
fell from 31 to 11 % with 400 hot rows, but bytes rose, and on two ranks nothing was gained: measure
before use.

Shape letters: V rows of the table, H hot rows, N ids, X hot ids and C cold ids among them, D width.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from analytics.errors import ConfigError
from training.config import TableConfig
from training.embeddings.table import ShardedTable
from training.randomness import first_weights

Ids = npt.NDArray[np.int64]


def hottest(count_V: npt.NDArray[np.int64], num_hot: int) -> Ids:
    """The num_hot most counted ids, ascending; among equals the lower id; shape (H,).

    count_V: how often each id occurs. Ids that never occur are not hot, so H may be less.
    """
    order_V = np.argsort(-count_V, kind="stable")[:num_hot]
    return np.sort(order_V[count_V[order_V] > 0]).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HotCold:
    """A batch's ids in two parts."""

    is_hot_N: Tensor  # bool
    hot_X: Tensor  # rows of the hot table, in the order of N
    cold_C: Tensor  # ids of the cold table, in the order of N


class HotRows:
    """One table as two: `hot`, replicated, and `cold`, sharded as the table itself.

    hot_ids_H: distinct ids, ascending; the same on every rank.
    Raises ConfigError when hot_ids_H is empty, not ascending, or holds an id outside the table, or
    when the table is replicated as it is.
    """

    def __init__(self, config: TableConfig, hot_ids_H: Ids) -> None:
        if config.placement == "replicated":
            raise ConfigError(
                f"table {config.name!r} is replicated as a whole, so none of its rows can be. "
                "Choose placement round_robin or hash, or no hot rows."
            )
        if (
            len(hot_ids_H) == 0
            or (np.diff(hot_ids_H) <= 0).any()
            or hot_ids_H[0] < 0
            or hot_ids_H[-1] >= config.num_rows
        ):
            raise ConfigError(
                f"table {config.name!r}: the {len(hot_ids_H)} hot ids must be at least one, "
                f"distinct, ascending and below its {config.num_rows} rows. Take them from "
                "hot_rows.hottest."
            )
        self.cold = config
        self.hot = dataclasses.replace(
            config, name=f"{config.name}.hot", num_rows=len(hot_ids_H), placement="replicated"
        )
        self._hot_ids_H = hot_ids_H
        self._hot_H = torch.from_numpy(hot_ids_H.copy())

    def tables(
        self, *, rank: int, world_size: int, seed: int, device: torch.device | None = None
    ) -> tuple[ShardedTable, ShardedTable]:
        """(hot, cold) with the first weights that the one table would have with this seed."""
        place = {"rank": rank, "world_size": world_size, "seed": seed}
        hot = ShardedTable(self.hot, **place, device=device)
        cold = ShardedTable(self.cold, **place, device=device)
        width = self.cold.width
        drawn_HD = first_weights(
            seed=seed, row_ids_M=self._hot_ids_H, width=width, scale=width**-0.5
        )
        hot.weight_MD.copy_(torch.from_numpy(drawn_HD))
        return hot, cold

    def split(self, ids_N: Tensor) -> HotCold:
        """The ids in two parts; repeats stay, order stays, ascending stays ascending."""
        hot_H = self._hot_H.to(ids_N.device)
        found_N = torch.searchsorted(hot_H, ids_N).clamp_(max=len(hot_H) - 1)
        is_hot_N = hot_H[found_N] == ids_N
        return HotCold(is_hot_N=is_hot_N, hot_X=found_N[is_hot_N], cold_C=ids_N[~is_hot_N])

    @staticmethod
    def joined(hot_XD: Tensor, cold_CD: Tensor, parts: HotCold) -> Tensor:
        """The rows of both parts in the order of the ids; shape (N, D); autograd goes through."""
        places = torch.empty(len(parts.is_hot_N), dtype=torch.int64, device=cold_CD.device)
        num_hot = len(hot_XD)
        places[parts.is_hot_N] = torch.arange(num_hot, device=cold_CD.device)
        places[~parts.is_hot_N] = torch.arange(
            num_hot, num_hot + len(cold_CD), device=cold_CD.device
        )
        return torch.cat([hot_XD, cold_CD]).index_select(0, places)

    @staticmethod
    def split_gradient(gradient_ND: Tensor, parts: HotCold) -> tuple[Tensor, Tensor]:
        """(gradient of the hot rows, shape (X, D); of the cold rows, shape (C, D))."""
        return gradient_ND[parts.is_hot_N], gradient_ND[~parts.is_hot_N]

    def write_back(self, hot: ShardedTable, cold: ShardedTable, rank: int) -> None:
        """Copy the hot rows this rank owns, weights and state, to their places in its cold share.

        The cold shares are then the whole table, as a checkpoint or an evaluation wants it.
        """
        hot_H = self._hot_H.to(cold.weight_MD.device)
        mine_H = cold.placement.owner(hot_H) == rank
        places = cold.placement.place(hot_H)[mine_H]
        cold.weight_MD[places] = hot.weight_MD[mine_H]
        for name, kept in cold.state.items():
            kept[places] = hot.state[name][mine_H]
