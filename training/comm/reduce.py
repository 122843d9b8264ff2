"""Collectives built from all-to-all and all-gather, with a sum whose order is fixed.

A library's all-reduce sums in an order that depends on the position in the buffer, so cutting a
buffer into other pieces changes the last bits (9e-8 seen with gloo). Here every element is summed
rank by rank, 0 first, whatever the pieces: schedules that cut differently agree to the bit. The
bytes are those of a ring: 2 (R-1)/R of the buffer from each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.comm.transport import Transport


def ordered_sum(transport: Transport, flat_N: Tensor) -> Tensor:
    """Sum of everybody's flat tensor, rank by rank; the same bits on every rank; shape (N,)."""
    world_size = transport.world_size
    if world_size == 1:
        return flat_N.clone()
    share = -(-len(flat_N) // world_size)
    sent = flat_N.new_zeros(share * world_size)
    sent[: len(flat_N)] = flat_N
    received = torch.empty_like(sent)
    transport.all_to_all(received, sent)
    received_RS = received.view(world_size, share)
    total_S = received_RS[0].clone()
    for rank in range(1, world_size):
        total_S += received_RS[rank]
    return transport.all_gather(total_S).view(-1)[: len(flat_N)]


def all_to_all_in_chunks(
    transport: Transport,
    output: Tensor,
    data: Tensor,
    output_R: Sequence[int],
    data_R: Sequence[int],
    num_chunks: int,
) -> None:
    """An all-to-all as `num_chunks` smaller ones, one in flight, so that others can pass between.

    num_chunks must be the same on every rank. Chunk c carries the c-th part of what each pair of
    ranks has for each other; entries are those of the first dimension.
    """
    if num_chunks <= 1:
        transport.all_to_all(output, data, output_R, data_R)
        return
    data_parts = torch.split(data, list(data_R))
    output_parts = torch.split(output, list(output_R))
    for chunk in range(num_chunks):
        sent = [_part(part, chunk, num_chunks) for part in data_parts]
        wanted = [_part(part, chunk, num_chunks) for part in output_parts]
        received = torch.empty_like(torch.cat(wanted))
        counts = [len(part) for part in wanted]
        transport.all_to_all(received, torch.cat(sent), counts, [len(part) for part in sent])
        for part, got in zip(wanted, torch.split(received, counts), strict=True):
            part.copy_(got)


def num_chunks_for(largest_bytes: int, chunk_bytes: int) -> int:
    """Chunks for a transfer whose dearest rank sends `largest_bytes`; at least one."""
    return max(1, -(-largest_bytes // chunk_bytes))


def _part(entries: Tensor, chunk: int, num_chunks: int) -> Tensor:
    """The chunk-th of num_chunks nearly equal parts; a view."""
    begin = len(entries) * chunk // num_chunks
    return entries[begin : len(entries) * (chunk + 1) // num_chunks]
