"""Carries ids, rows and gradients between the rank that needs a row and the rank that owns it.

All tables of a batch travel in one exchange, whatever their widths. A `Request` is one batch's
agreement between all ranks: who wants which rows of whom. A rank groups its ids by owner
(`group_by_owner`, its own work), all agree (`exchange_ids`), and the request then serves for the
rows (owner to asker) and for the gradients (asker to owner), whole or in parts (`Part`): those rows
that the next batch touches too, and the others.

A replicated table lies on every rank as a whole: its rows are looked up where they are needed, its
gradients go to every rank, and every rank applies them in the same order.

`exchange_ids` and `send_...` are collectives of the transport they are given.

Shape letters: T tables, U distinct rows this rank needs of a table, A rows it asks for (U, or R U
of a replicated table), Q rows asked of this rank, R ranks, D width. Grouped order: by owner, and
within an owner as the ids were given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from training.comm.reduce import all_to_all_in_chunks, num_chunks_for
from training.comm.transport import Transport
from training.embeddings.packing import Counts, kept_counts, pack, unpack
from training.embeddings.table import ShardedTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped:
    """The rows one rank needs, by owner."""

    num_rows_T: list[int]  # distinct rows needed of each table
    order_T: list[Tensor]  # places of the ids after grouping by owner, each (A,)
    places_T: list[Tensor]  # the rows' places at their owners, grouped, each (A,)
    asked_RT: Tensor  # rows asked of each rank, by table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Who asks whom for which rows in one batch."""

    num_rows_T: list[int]
    order_T: list[Tensor]  # each (A,), as in Grouped
    places_T: list[Tensor]  # places in this rank's tables, asker by asker, each (Q,)
    asked_RT: Counts  # rows this rank asks of each rank
    wanted_RT: Counts  # rows each rank asks of this rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Some rows of a request, on both sides, in the request's order."""

    asked_at_T: list[Tensor]  # which of the A, ascending
    places_T: list[Tensor]  # places in this rank's tables
    asked_RT: Counts
    wanted_RT: Counts
    num_chunks: int  # in how many pieces it travels; the same on every rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """What consecutive batches have in common, and what not; see `Exchange.compare`."""

    exclusive_rows: Part  # of the coming batch: the running one does not touch them
    colliding_rows: Part
    exclusive_gradients: Part  # of the running batch: the coming one does not touch them
    colliding_gradients: Part


class Exchange:
    """The collectives that carry a batch's rows of these tables; `self` holds no state."""

    def __init__(self, tables: Sequence[ShardedTable], *, rank: int, world_size: int) -> None:
        self.tables = list(tables)
        self._rank = rank
        self._world_size = world_size
        self._replicated_T = [table.placement.replicated for table in self.tables]
        self._width_T = [table.config.width for table in self.tables]

    def group_by_owner(self, ids_T: Sequence[Tensor]) -> Grouped:
        """Sort a batch's rows by the rank that owns them; ids_T: distinct ids of each table."""
        order_T, places_T, counts = [], [], []
        for table, given_U in zip(self.tables, ids_T, strict=True):
            ids_U = given_U.to(torch.int64)  # what travels must be the same on every rank
            places_U = table.placement.place(ids_U)
            if table.placement.replicated:
                order = torch.arange(len(ids_U), device=ids_U.device).repeat(self._world_size)
                count_R = torch.full((self._world_size,), len(ids_U), device=ids_U.device)
            else:
                owner_U = table.placement.owner(ids_U)
                order = torch.argsort(owner_U, stable=True)
                count_R = torch.bincount(owner_U, minlength=self._world_size)
            order_T.append(order)
            places_T.append(places_U[order])
            counts.append(count_R)
        return Grouped(
            num_rows_T=[len(ids_U) for ids_U in ids_T],
            order_T=order_T,
            places_T=places_T,
            asked_RT=torch.stack(counts, dim=1),
        )

    def exchange_ids(self, transport: Transport, grouped: Grouped) -> Request:
        """Tell every owner which of its rows this rank needs, and hear what is asked of it."""
        mine = grouped.asked_RT.contiguous()
        theirs = torch.empty_like(mine)
        transport.all_to_all(theirs, mine)
        asked_RT, wanted_RT = mine.tolist(), theirs.tolist()
        sent, sent_R = pack(grouped.places_T, asked_RT)
        wanted_R = [sum(row) for row in wanted_RT]
        received = sent.new_empty(sum(wanted_R))
        transport.all_to_all(received, sent, wanted_R, sent_R)
        return Request(
            num_rows_T=grouped.num_rows_T,
            order_T=grouped.order_T,
            places_T=unpack(received, wanted_RT, [0] * len(self.tables)),
            asked_RT=asked_RT,
            wanted_RT=wanted_RT,
        )

    def whole(self, request: Request) -> Part:
        """All rows of a request, in one piece."""
        return Part(
            asked_at_T=[torch.arange(len(o), device=o.device) for o in request.order_T],
            places_T=request.places_T,
            asked_RT=request.asked_RT,
            wanted_RT=request.wanted_RT,
            num_chunks=1,
        )

    def compare(
        self, transport: Transport, running: Request, coming: Request, *, chunk_bytes: int
    ) -> Split:
        """Which rows of two consecutive batches collide. A collective.

        The owner sees what all ranks ask of it in both batches, and tells each asker about its
        rows in one message: two numbers (how many bytes this owner has to send and to receive of
        exclusive rows and gradients, so that all ranks cut them into the same number of chunks),
        one byte a coming row, one byte a running row.
        """
        coming_T, running_T = self._collisions(running, coming)
        header = torch.tensor(
            [
                self._exclusive_bytes(coming_T, rows=True),
                self._exclusive_bytes(running_T, rows=False),
            ],
            dtype=torch.int64,
        ).view(torch.uint8)
        header = header.to(coming.order_T[0].device)
        told_R = self._messages(header, coming_T, coming.wanted_RT, running_T, running.wanted_RT)
        heard_R = [
            len(header) + sum(c) + sum(r)
            for c, r in zip(coming.asked_RT, running.asked_RT, strict=True)
        ]
        received = torch.empty(sum(heard_R), dtype=torch.uint8, device=header.device)
        transport.all_to_all(received, torch.cat(told_R), heard_R, [len(told) for told in told_R])
        coming_heard_T, running_heard_T, bytes_R2 = self._heard(
            torch.split(received, heard_R), coming.asked_RT, running.asked_RT, len(header)
        )
        row_chunks, gradient_chunks = (
            num_chunks_for(int(most), chunk_bytes) for most in bytes_R2.max(dim=0).values.tolist()
        )
        return Split(
            exclusive_rows=_part(coming, _not(coming_heard_T), _not(coming_T), row_chunks),
            colliding_rows=_part(coming, coming_heard_T, coming_T, 1),
            exclusive_gradients=_part(
                running, _not(running_heard_T), _not(running_T), gradient_chunks
            ),
            colliding_gradients=_part(running, running_heard_T, running_T, 1),
        )

    def send_rows(self, transport: Transport, part: Part) -> list[Tensor]:
        """Owner to asker: the part's rows as they are now; each (asked, D), grouped order.

        Rows of a replicated table do not travel: shape (0, D), see `fill`.
        """
        rows_T = [
            table.lookup(places_Q if not replicated else places_Q[:0])
            for table, places_Q, replicated in zip(
                self.tables, part.places_T, self._replicated_T, strict=True
            )
        ]
        wanted_RT, asked_RT = self._travelling(part.wanted_RT), self._travelling(part.asked_RT)
        return self._carry(transport, rows_T, wanted_RT, asked_RT, part.num_chunks)

    def send_gradients(
        self, transport: Transport, part: Part, request: Request, gradient_T: Sequence[Tensor]
    ) -> list[Tensor]:
        """Asker to owner; gradient_T: of each row needed, (U, D); gives those of `part.places_T`.

        The order of the result is the same for equal requests: by asker, then as asked.
        """
        grouped_T = [
            gradient_UD[order_A[at]]
            for gradient_UD, order_A, at in zip(
                gradient_T, request.order_T, part.asked_at_T, strict=True
            )
        ]
        return self._carry(transport, grouped_T, part.asked_RT, part.wanted_RT, part.num_chunks)

    def empty_rows(self, request: Request) -> list[Tensor]:
        """Room for every row needed, to be filled part by part; each (U, D)."""
        return [
            table.weight_MD.new_empty(num_rows, table.config.width)
            for table, num_rows in zip(self.tables, request.num_rows_T, strict=True)
        ]

    def fill(
        self, rows_T: list[Tensor], request: Request, part: Part, received_T: Sequence[Tensor]
    ) -> None:
        """Put what `send_rows` gave where the batch's ids are."""
        for t, received in enumerate(received_T):
            if not self._replicated_T[t]:
                rows_T[t][request.order_T[t][part.asked_at_T[t]]] = received

    def fill_replicated(self, rows_T: list[Tensor], ids_T: Sequence[Tensor]) -> None:
        """Look up the rows of the replicated tables as they are now, on this rank."""
        for t, table in enumerate(self.tables):
            if self._replicated_T[t]:
                rows_T[t][:] = table.lookup(table.placement.place(ids_T[t]))

    def apply(self, part: Part, gradient_T: Sequence[Tensor], step: int) -> None:
        """One optimiser step of the part's rows on this rank."""
        for table, places_Q, gradient_QD in zip(
            self.tables, part.places_T, gradient_T, strict=True
        ):
            table.apply(places_Q, gradient_QD, step)

    def _collisions(self, running: Request, coming: Request) -> tuple[list[Tensor], list[Tensor]]:
        """Per table: which places of the coming request collide, and which of the running one.

        Rows of a replicated table count as colliding: every rank must have applied them before it
        looks one up.
        """
        coming_T, running_T = [], []
        for replicated, now_Q, next_Q in zip(
            self._replicated_T, running.places_T, coming.places_T, strict=True
        ):
            if replicated:
                coming_T.append(torch.ones_like(next_Q, dtype=torch.bool))
                running_T.append(torch.ones_like(now_Q, dtype=torch.bool))
            else:
                coming_T.append(torch.isin(next_Q, now_Q))
                running_T.append(torch.isin(now_Q, next_Q))
        return coming_T, running_T

    def _exclusive_bytes(self, colliding_T: list[Tensor], *, rows: bool) -> int:
        """Bytes of this owner's exclusive rows, or of the gradients it is sent."""
        entries = [
            int((~colliding_Q).sum()) * width
            for colliding_Q, width, replicated in zip(
                colliding_T, self._width_T, self._replicated_T, strict=True
            )
            if not (rows and replicated)
        ]
        return 4 * sum(entries)

    def _messages(
        self,
        header: Tensor,
        coming_T: list[Tensor],
        coming_RT: Counts,
        running_T: list[Tensor],
        running_RT: Counts,
    ) -> list[Tensor]:
        """What this owner tells each asker."""
        coming, coming_R = pack([flag.to(torch.uint8) for flag in coming_T], coming_RT)
        running, running_R = pack([flag.to(torch.uint8) for flag in running_T], running_RT)
        return [
            torch.cat([header, c, r])
            for c, r in zip(
                torch.split(coming, coming_R), torch.split(running, running_R), strict=True
            )
        ]

    def _heard(
        self,
        message_R: Sequence[Tensor],
        coming_RT: Counts,
        running_RT: Counts,
        header_bytes: int,
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The flags of this rank's coming and running rows, and each owner's two numbers."""
        num_coming_R = [sum(row) for row in coming_RT]
        headers, coming, running = [], [], []
        for message, num_coming in zip(message_R, num_coming_R, strict=True):
            headers.append(message[:header_bytes].cpu())
            coming.append(message[header_bytes : header_bytes + num_coming])
            running.append(message[header_bytes + num_coming :])
        no_width = [0] * len(self.tables)
        return (
            [flag.bool() for flag in unpack(torch.cat(coming), coming_RT, no_width)],
            [flag.bool() for flag in unpack(torch.cat(running), running_RT, no_width)],
            torch.stack(headers).view(torch.int64),
        )

    def _travelling(self, count_RT: Counts) -> Counts:
        """Counts without the rows of replicated tables."""
        return [
            [0 if r else n for n, r in zip(row, self._replicated_T, strict=True)]
            for row in count_RT
        ]

    def _carry(
        self,
        transport: Transport,
        values_T: Sequence[Tensor],
        sent_RT: Counts,
        received_RT: Counts,
        num_chunks: int,
    ) -> list[Tensor]:
        """An all-to-all of rows of all tables; values_T: grouped by the rank they go to."""
        sent, sent_R = pack(values_T, sent_RT)
        received_R = [
            sum(n * width for n, width in zip(row, self._width_T, strict=True))
            for row in received_RT
        ]
        received = sent.new_empty(sum(received_R))
        all_to_all_in_chunks(transport, received, sent, received_R, sent_R, num_chunks)
        return unpack(received, received_RT, self._width_T)


def _part(request: Request, asked_T: list[Tensor], wanted_T: list[Tensor], num_chunks: int) -> Part:
    """The rows marked on the asker's and on the owner's side."""
    return Part(
        asked_at_T=[keep_A.nonzero().flatten() for keep_A in asked_T],
        places_T=[
            places_Q[keep_Q] for places_Q, keep_Q in zip(request.places_T, wanted_T, strict=True)
        ],
        asked_RT=kept_counts(asked_T, request.asked_RT),
        wanted_RT=kept_counts(wanted_T, request.wanted_RT),
        num_chunks=num_chunks,
    )


def _not(flag_T: list[Tensor]) -> list[Tensor]:
    return [~flag for flag in flag_T]
