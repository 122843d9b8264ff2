"""Sums the gradients that one row gets from several askers, in a fixed order and without atomics.

Before: exchange.py brings gradients, asker by asker.   After: optimizers.py steps each row once.

The order is that of Q. Atomic additions, which a plain index_add on a GPU uses, would add in
another order every time, and no schedule could then be compared with another by 0.0.
On a CPU index_add_ adds one after another in the order of Q, which is the same sum as sorting and
adding segment by segment (they differ by 0.0, tested) at a third of the time: 37 ms against 122 ms
for 200,000 x 64 on one core.

Shape letters: Q gradients, P distinct rows among them, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def summed_by_row(places_Q: Tensor, gradient_QD: Tensor) -> tuple[Tensor, Tensor]:
    """(the distinct places, ascending, shape (P,); the sum of each one's gradients, shape (P, D)).

    Each sum starts from 0 and runs in the order of Q. Q may be 0.
    """
    if places_Q.device.type == "cpu":
        return _one_after_another(places_Q, gradient_QD)
    return _segment_by_segment(places_Q, gradient_QD)


def _one_after_another(places_Q: Tensor, gradient_QD: Tensor) -> tuple[Tensor, Tensor]:
    places_P, inverse_Q = torch.unique(places_Q, return_inverse=True)
    sum_PD = gradient_QD.new_zeros(len(places_P), gradient_QD.shape[1])
    return places_P, sum_PD.index_add_(0, inverse_Q, gradient_QD)


def _segment_by_segment(places_Q: Tensor, gradient_QD: Tensor) -> tuple[Tensor, Tensor]:
    """Stable sort, then one thread per row and column adds that row's gradients in order.

    So segment_reduce does on a GPU for data of two dimensions, also of width 1; for one dimension
    it would add in a tree.
    """
    if len(places_Q) == 0:
        return places_Q.clone(), gradient_QD.clone()
    sorted_Q, order_Q = torch.sort(places_Q, stable=True)
    places_P, counts_P = torch.unique_consecutive(sorted_Q, return_counts=True)
    sum_PD = torch.segment_reduce(
        gradient_QD.index_select(0, order_Q), "sum", lengths=counts_P, initial=0, unsafe=True
    )
    return places_P, sum_PD
