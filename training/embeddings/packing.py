"""Packs the rows of several tables into one flat tensor per exchange, and takes them out again.

Flat order: rank by rank, and of each rank table by table. Counts are rows by rank and table.

Shape letters: R ranks, T tables, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Counts = list[list[int]]  # rows by rank and table, shape (R, T)


def pack(values_T: Sequence[Tensor], count_RT: Counts) -> tuple[Tensor, list[int]]:
    """One flat tensor, rank by rank and in it table by table, and each rank's entries."""
    widths = [values.shape[1] if values.ndim == 2 else 1 for values in values_T]
    sizes_R = [sum(n * width for n, width in zip(row, widths, strict=True)) for row in count_RT]
    if len(values_T) == 1:
        return values_T[0].reshape(-1).contiguous(), sizes_R
    parts_T = [
        torch.split(values, [row[t] for row in count_RT]) for t, values in enumerate(values_T)
    ]
    pieces = [
        parts_T[t][rank].reshape(-1) for rank in range(len(count_RT)) for t in range(len(values_T))
    ]
    return torch.cat(pieces), sizes_R


def unpack(flat: Tensor, count_RT: Counts, width_T: Sequence[int]) -> list[Tensor]:
    """The tables' tensors out of a flat one; a width of 0 means a tensor of one dimension."""

    def shaped(values: Tensor, width: int) -> Tensor:
        return values.view(-1, width) if width else values

    if len(width_T) == 1:
        return [shaped(flat, width_T[0])]
    sizes = [n * max(width, 1) for row in count_RT for n, width in zip(row, width_T, strict=True)]
    pieces = torch.split(flat, sizes)
    num_tables = len(width_T)
    return [shaped(torch.cat(pieces[t::num_tables]), width_T[t]) for t in range(num_tables)]


def kept_counts(keep_T: list[Tensor], count_RT: Counts) -> Counts:
    """How many of each rank's rows are kept, by table; shape (R, T)."""
    by_table = []
    for t, keep in enumerate(keep_T):
        ends = torch.tensor([row[t] for row in count_RT]).cumsum(0)
        kept = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cpu().cumsum(0)])[ends]
        by_table.append(torch.diff(kept, prepend=torch.zeros(1, dtype=torch.int64)).tolist())
    return [list(row) for row in zip(*by_table, strict=True)]
