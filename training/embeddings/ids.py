"""Checks a batch's ids and removes repeats, before anything is exchanged.

Before: feed.py or keyed_jagged.py reads the batch.   After: exchange.py asks the rows' owners.
An id outside its table is an error here: owner and place are computed from the id, so elsewhere it
would silently read another row or, on a GPU, end the process without saying which id it was.

Shape letters: N ids, U distinct ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from analytics.errors import IdError

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def checked_ids(ids_N: Tensor, *, table: str, num_rows: int, step: int, column: str) -> Tensor:
    """The ids as int64, on their device; any shape, also empty.

    table, column: the names of the table and of the batch's column that holds the ids, and step:
    the number of the batch, for the message.
    Raises IdError when an id is negative or not below num_rows, or the ids are not whole numbers.
    """
    where = f"batch of step {step}, column {column!r}, table {table!r}"
    if ids_N.dtype not in _WHOLE:
        raise IdError(
            f"{where}: the ids are {str(ids_N.dtype).removeprefix('torch.')}, and only int64 and "
            "narrower whole numbers name rows exactly. Convert the column with .long() where it is "
            "read."
        )
    ids_N = ids_N.to(torch.int64)
    if ids_N.numel() == 0:
        return ids_N
    lowest, highest = (int(bound) for bound in torch.aminmax(ids_N))
    if lowest >= 0 and highest < num_rows:
        return ids_N
    flat_N = ids_N.flatten()
    outside = torch.nonzero((flat_N < 0) | (flat_N >= num_rows)).flatten()
    first = int(outside[0])
    what = "negative" if int(flat_N[first]) < 0 else "too large"
    raise IdError(
        f"{where}: id {int(flat_N[first])} at place {first} is {what}; the table has {num_rows:,} "
        f"rows, ids 0 to {num_rows - 1}. {len(outside):,} of the batch's {len(flat_N):,} ids are "
        "outside. Map unknown items to an id of their own when preparing the data, or raise the "
        "table's num_rows."
    )


def distinct(ids_N: Tensor) -> tuple[Tensor, Tensor]:
    """(the distinct ids, ascending, shape (U,); for each id its place among them, shape of ids_N).

    ids_U[inverse_N] is ids_N. With autograd, rows_UD[inverse_N] sums the gradients of repeats.
    """
    ids_U, inverse_N = torch.unique(ids_N, sorted=True, return_inverse=True)
    return ids_U, inverse_N
