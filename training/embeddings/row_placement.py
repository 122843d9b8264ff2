"""Which rank owns which row of a table, and where the row lies there.

Every placement is a bijection between row ids and (owner, place), computed without a table of its
own, so that any rank can find any row.

Shape letters: U row ids; M rows of one rank; V rows of the whole table.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.config import TableConfig

# Odd and below 2^23, so that a product with an id below 2^40 does not overflow 63 bits.
_MULTIPLIERS = (0x5BD1E9, 0x45D9F3, 0x6C8E95)
_ADDENDS = (0x3C6EF3, 0x1B873D, 0x52DCE7)


class RowPlacement(Protocol):
    """Where rows lie; the same on every rank."""

    replicated: bool  # every rank holds every row; `owner` is then not asked

    def owner(self, ids_U: Tensor) -> Tensor:
        """The rank that owns each row; int64, shape (U,)."""
        ...

    def place(self, ids_U: Tensor) -> Tensor:
        """The row's place at its owner; int64, shape (U,)."""
        ...

    def local_ids(self, rank: int) -> npt.NDArray[np.int64]:
        """The ids of a rank's rows, in the order of their places; shape (M,)."""
        ...


class RoundRobin:
    """Row i belongs to rank i mod R, at place i // R."""

    replicated = False

    def __init__(self, num_rows: int, world_size: int) -> None:
        self._num_rows = num_rows
        self._world_size = world_size

    def owner(self, ids_U: Tensor) -> Tensor:
        """The rank that owns each row; int64, shape (U,)."""
        return ids_U % self._world_size

    def place(self, ids_U: Tensor) -> Tensor:
        """The row's place at its owner; int64, shape (U,)."""
        return ids_U // self._world_size

    def local_ids(self, rank: int) -> npt.NDArray[np.int64]:
        """The ids of a rank's rows, in the order of their places; shape (M,)."""
        return np.arange(rank, self._num_rows, self._world_size, dtype=np.int64)


class Hashed:
    """Ids are shuffled by a fixed bijection onto 0 .. V-1, and the shuffled ids dealt round robin.

    For ids whose popularity follows their number, say with a stride that round robin would put on
    one rank. Shares stay even to one row, for the shuffle is a bijection. A multiplication modulo V
    alone would not do: where V is a multiple of R it keeps all even ids together. So ids are mixed
    as numbers of k bits, 2^k the first power of two from V on, by rounds of x -> m x + c and
    x -> x ^ (x >> k/2), each a bijection, and mixed again while they lie outside the table.
    """

    replicated = False

    def __init__(self, num_rows: int, world_size: int) -> None:
        self._num_rows = num_rows
        self._world_size = world_size
        self._bits = max(1, (num_rows - 1).bit_length())
        self._mask = (1 << self._bits) - 1
        self._shift = (self._bits + 1) // 2

    def owner(self, ids_U: Tensor) -> Tensor:
        """The rank that owns each row; int64, shape (U,)."""
        return self._shuffled(ids_U) % self._world_size

    def place(self, ids_U: Tensor) -> Tensor:
        """The row's place at its owner; int64, shape (U,)."""
        return self._shuffled(ids_U) // self._world_size

    def local_ids(self, rank: int) -> npt.NDArray[np.int64]:
        """The ids of a rank's rows, in the order of their places; shape (M,)."""
        mixed_M = np.arange(rank, self._num_rows, self._world_size, dtype=np.uint64)
        ids_M = self._unmixed(mixed_M)
        while (outside_M := ids_M >= self._num_rows).any():
            ids_M[outside_M] = self._unmixed(ids_M[outside_M])
        return ids_M.astype(np.int64)

    def _shuffled(self, ids_U: Tensor) -> Tensor:
        mixed_U = self._mixed(ids_U)
        while bool((outside_U := mixed_U >= self._num_rows).any()):
            mixed_U[outside_U] = self._mixed(mixed_U[outside_U])
        return mixed_U

    def _mixed(self, ids_U: Tensor) -> Tensor:
        mixed_U = ids_U
        for multiplier, addend in zip(_MULTIPLIERS, _ADDENDS, strict=True):
            mixed_U = (mixed_U * multiplier + addend) & self._mask
            mixed_U = mixed_U ^ (mixed_U >> self._shift)
        return mixed_U

    def _unmixed(self, mixed_M: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """The inverse; uint64 products wrap, and their low bits are right."""
        ids_M, mask = mixed_M, np.uint64(self._mask)
        for multiplier, addend in zip(_MULTIPLIERS[::-1], _ADDENDS[::-1], strict=True):
            ids_M = ids_M ^ (ids_M >> np.uint64(self._shift))  # its own inverse: 2 shift >= bits
            inverse = np.uint64(pow(multiplier, -1, self._mask + 1))
            ids_M = ((ids_M - np.uint64(addend)) * inverse) & mask
        return ids_M


class Replicated:
    """Every rank holds every row, row i at place i; gradients of all ranks go to all ranks."""

    replicated = True

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def owner(self, ids_U: Tensor) -> Tensor:
        """Rank 0, which answers for what all ranks hold; int64, shape (U,)."""
        return torch.zeros_like(ids_U)

    def place(self, ids_U: Tensor) -> Tensor:
        """The row's place on every rank, its id; int64, shape (U,)."""
        return ids_U

    def local_ids(self, rank: int) -> npt.NDArray[np.int64]:
        """All ids, on every rank; shape (V,)."""
        return np.arange(self._num_rows, dtype=np.int64)


def row_placement(config: TableConfig, world_size: int) -> RowPlacement:
    """The placement that a table's configuration names, over so many ranks."""
    if config.placement == "round_robin":
        return RoundRobin(config.num_rows, world_size)
    if config.placement == "hash":
        return Hashed(config.num_rows, world_size)
    assert config.placement == "replicated"  # TableConfig knows no other
    return Replicated(config.num_rows)
