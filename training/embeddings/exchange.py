"""Carries ids, rows and gradients between the rank that needs a row and the rank that owns it.

A `Request` is one batch's agreement between all ranks: who wants which rows of whom. A rank groups
its ids by owner (`group_by_owner`, its own work), all agree (`exchange_ids`), and the request is
then used for the rows (owner to asker) and for the gradients (asker to owner). `exchange_...` and
`send_...` are collectives: all ranks call them, in the same order within one process group.

Shape letters: U distinct rows this rank asks for, Q rows asked of this rank, R ranks, D width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped:
    """The rows one rank needs, by owner."""

    order_U: Tensor  # places of the ids after grouping by owner
    num_asked_R: Tensor  # rows asked of each rank
    places_U: Tensor  # the rows' places at their owners, in grouped order


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Who asks whom for which rows in one batch."""

    order_U: Tensor  # places of the asked ids after grouping by owner
    asked_R: list[int]  # rows this rank asks of each rank
    wanted_R: list[int]  # rows each rank asks of this rank
    places_Q: Tensor  # places in this rank's table, asker by asker

    def ungrouped(self, grouped_UD: Tensor) -> Tensor:
        """Rows in the order of the batch's ids, from the order in which owners sent them."""
        rows_UD = torch.empty_like(grouped_UD)
        rows_UD[self.order_U] = grouped_UD
        return rows_UD

    def split_asked(self, keep_U: Tensor) -> list[int]:
        """How many of the kept ids (in grouped order) lie at each owner."""
        return _counts(keep_U, self.asked_R)

    def split_wanted(self, keep_Q: Tensor) -> list[int]:
        """How many of the kept requests come from each asker."""
        return _counts(keep_Q, self.wanted_R)


class Exchange:
    """The collectives of one process group.

    Counts what this rank sends to others and, when it has a `clock`, keeps when each collective was
    in flight.
    """

    def __init__(self, group: dist.ProcessGroup, clock: Callable[[], int] | None = None) -> None:
        self._group = group
        self._clock = clock
        self._in_flight: list[tuple[int, int]] = []
        self._rank = dist.get_rank(group)
        self._world_size = dist.get_world_size(group)
        self.sent_bytes = 0

    def take_in_flight(self) -> list[tuple[int, int]]:
        """When collectives were in flight since the last call, as (begin, end) of the clock."""
        taken, self._in_flight = self._in_flight, []
        return taken

    def group_by_owner(self, row_ids_U: Tensor) -> Grouped:
        """Sort a batch's rows by the rank that owns them; row_ids_U: distinct ids, ascending."""
        owner_U = row_ids_U % self._world_size
        order_U = torch.argsort(owner_U, stable=True)
        return Grouped(
            order_U=order_U,
            num_asked_R=torch.bincount(owner_U, minlength=self._world_size),
            places_U=(row_ids_U // self._world_size)[order_U],
        )

    def exchange_ids(self, grouped: Grouped) -> Request:
        """Tell every owner which of its rows this rank needs, and hear what is asked of it."""
        wanted = torch.empty_like(grouped.num_asked_R)
        self._all_to_all(wanted, grouped.num_asked_R, None, None)
        asked_R, wanted_R = grouped.num_asked_R.tolist(), wanted.tolist()
        places_Q = torch.empty(sum(wanted_R), dtype=torch.int64)
        self._all_to_all(places_Q, grouped.places_U, wanted_R, asked_R)
        return Request(
            order_U=grouped.order_U, asked_R=asked_R, wanted_R=wanted_R, places_Q=places_Q
        )

    def send_rows(self, rows_QD: Tensor, wanted_R: list[int], asked_R: list[int]) -> Tensor:
        """Owner to asker; returns the rows in grouped order, shape (sum(asked_R), D)."""
        received = torch.empty(sum(asked_R), rows_QD.shape[1])
        self._all_to_all(received, rows_QD, asked_R, wanted_R)
        return received

    def send_gradients(self, gradient_UD: Tensor, request: Request) -> Tensor:
        """Asker to owner, in grouped order; returns the gradients of places_Q, shape (Q, D)."""
        received = torch.empty(sum(request.wanted_R), gradient_UD.shape[1])
        self._all_to_all(received, gradient_UD, request.wanted_R, request.asked_R)
        return received

    def send_flags(self, flag_Q: Tensor, request: Request) -> Tensor:
        """Owner to asker: one bool per requested row; shape (U,) in grouped order."""
        received = torch.empty(sum(request.asked_R), dtype=torch.uint8)
        self._all_to_all(received, flag_Q.to(torch.uint8), request.asked_R, request.wanted_R)
        return received.bool()

    def _all_to_all(
        self, output: Tensor, data: Tensor, output_R: list[int] | None, data_R: list[int] | None
    ) -> None:
        begin = self._clock() if self._clock else 0
        dist.all_to_all_single(output, data.contiguous(), output_R, data_R, group=self._group)
        if self._clock:
            self._in_flight.append((begin, self._clock()))
        to_others = data.numel()
        if data.numel():
            own = data_R[self._rank] if data_R else data.shape[0] // self._world_size
            to_others -= own * (data.numel() // data.shape[0])
        self.sent_bytes += to_others * data.element_size()


def _counts(keep: Tensor, parts: list[int]) -> list[int]:
    return [int(part.sum()) for part in torch.split(keep, parts)]
