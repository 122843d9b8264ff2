"""Quality by full ranking: where does the true next item stand among all items not yet seen?

Every user with a target once; items of the user's history are removed, the target never is. Ties go
against the target, so equal scores never help. A target that no training sequence holds is *cold*:
it counts as a miss (no rank) and is counted.

Users go through the model in fixed blocks, the same for any number of ranks, and scores are
compared in float64, so the numbers do not depend on how many ranks share the work.

Shape letters: B users of a block, V items, D width.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from analytics.store import TEST, TRAIN, VALIDATION, SequenceStore
from training.model import SASRec

Ranks = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

BLOCK_USERS = 32
MISS = 0  # the "rank" of a cold target; true ranks begin with 1
NO_TARGET = -1  # the "rank" of a user whom the split leaves out
SPLITS = {"validation": VALIDATION, "test": TEST}
_ITEM_CHUNK = 65536
_TIE = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quality:
    """Full-ranking metrics over users."""

    num_users: int
    num_cold_targets: int
    hr_at_10: float
    ndcg_at_10: float
    mrr: float


def quality(rank_of_user: Ranks) -> Quality:
    """Metrics from each user's rank of the target, 1 = best, 0 = miss; shape (users,).

    Users without a target (NO_TARGET) count nowhere. HR@10: share of ranks up to ten. NDCG@10: mean
    of 1/log2(1 + rank) for ranks up to ten. MRR: mean of 1/rank. Raises ValueError without users.
    """
    rank_of_user = rank_of_user[rank_of_user != NO_TARGET]
    if len(rank_of_user) == 0:
        raise ValueError("there is no user to evaluate")
    rank = rank_of_user.astype(np.float64)
    hit = (rank >= 1) & (rank <= 10)
    found = rank >= 1
    gain = np.zeros(len(rank))
    gain[hit] = 1.0 / np.log2(1.0 + rank[hit])
    reciprocal = np.zeros(len(rank))
    reciprocal[found] = 1.0 / rank[found]
    return Quality(
        num_users=len(rank),
        num_cold_targets=int((~found).sum()),
        hr_at_10=float(hit.mean()),
        ndcg_at_10=float(gain.mean()),
        mrr=float(reciprocal.mean()),
    )


def training_counts(store: SequenceStore) -> Counts:
    """How often each item stands in the training part of the histories; shape (V,)."""
    return np.bincount(store.items[store.splits == TRAIN], minlength=store.header.num_items)


def popularity_ranks(store: SequenceStore, counts: Counts, split: str) -> Ranks:
    """Rank of every user's target by training count, seen items removed; shape (users,).

    Equal counts stand in the order of item_index.
    """
    place_V = np.empty(len(counts), dtype=np.int64)
    place_V[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    position_U = store.target_positions(SPLITS[split])
    ranks = np.full(store.header.num_users, NO_TARGET, dtype=np.int64)
    for user in np.flatnonzero(position_U >= 0):
        seen, target = seen_and_target(store, int(user), int(position_U[user]))
        ahead_seen = (place_V[np.unique(seen)] < place_V[target]).sum()
        ranks[user] = 1 + place_V[target] - ahead_seen if counts[target] > 0 else MISS
    return ranks


def seen_and_target(
    store: SequenceStore, user: int, position: int
) -> tuple[npt.NDArray[np.int32], int]:
    """(history before the target, target) of a user; for `test` the history holds validation's.

    position: where the target stands in the store's items (SequenceStore.target_positions).
    """
    return store.items[store.offsets[user] : position], int(store.items[position])


class FullRanker:
    """Ranks every item for a block of users with a trained model."""

    def __init__(
        self, table_VD: Tensor, model: SASRec, store: SequenceStore, counts: Counts
    ) -> None:
        self._table_VD = table_VD
        self._unit_VD = functional.normalize(table_VD, dim=1)
        self._model = model
        self._store = store
        self._counts = counts
        self._positions = {name: store.target_positions(code) for name, code in SPLITS.items()}

    def ranks(self, users: range, split: str) -> Ranks:
        """Rank of each user's target among unseen items, or MISS or NO_TARGET; shape (B,)."""
        position_B = self._positions[split][users.start : users.stop]
        ranks = np.full(len(users), NO_TARGET, dtype=np.int64)
        has_target = np.flatnonzero(position_B >= 0)
        if len(has_target):
            pairs = [
                seen_and_target(self._store, users[at], int(position_B[at])) for at in has_target
            ]
            ranks[has_target] = self._ranks(pairs)
        return ranks

    @torch.no_grad()
    def _ranks(self, pairs: list[tuple[npt.NDArray[np.int32], int]]) -> Ranks:
        longest = self._model.config.max_length
        histories = [torch.from_numpy(s[-longest:].astype(np.int64)) for s, _ in pairs]
        lengths = tuple(len(history) for history in histories)
        hidden_ND = self._model.encode(self._table_VD[torch.cat(histories)], lengths)
        last_B = torch.tensor(lengths).cumsum(0) - 1
        query_BD = functional.normalize(hidden_ND[last_B], dim=1).double()
        target_B = torch.tensor([target for _, target in pairs])
        target_score_B = (query_BD * self._unit_VD[target_B].double()).sum(1)
        ahead_B = self._num_ahead(query_BD, target_score_B, target_B)
        for row, (seen, target) in enumerate(pairs):
            others = torch.from_numpy(np.setdiff1d(seen, [target]).astype(np.int64))
            scores = self._unit_VD[others].double() @ query_BD[row]
            ahead_B[row] -= int((scores >= target_score_B[row] - _TIE).sum())
        ranks: Ranks = (1 + ahead_B).numpy()
        ranks[self._counts[target_B.numpy()] == 0] = MISS
        return ranks

    def _num_ahead(self, query_BD: Tensor, target_score_B: Tensor, target_B: Tensor) -> Tensor:
        """Items that score at least as high as the target, itself left out; shape (B,)."""
        ahead_B = torch.zeros(len(query_BD), dtype=torch.int64)
        for start in range(0, len(self._unit_VD), _ITEM_CHUNK):
            chunk_VD = self._unit_VD[start : start + _ITEM_CHUNK].double()
            ahead_BV = query_BD @ chunk_VD.T >= target_score_B[:, None] - _TIE
            in_chunk = (target_B >= start) & (target_B < start + len(chunk_VD))
            rows = in_chunk.nonzero()[:, 0]
            ahead_BV[rows, target_B[rows] - start] = False
            ahead_B += ahead_BV.sum(1)
        return ahead_B
