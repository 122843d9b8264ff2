"""Balance without a plan: samples that arrive as a stream are placed batch by batch.

Each rank has an iterator of its own. For every global batch the ranks tell each other how long
their next samples are (one all-gather), each works out the same placement from that, and the
samples move (one all-to-all). All of it, the reading too, happens in a lane's thread while the step
before is computed, so it costs the step loop nothing as long as it is shorter than a step.

Ranks end together: a rank whose stream is at its end goes on receiving until the last one is; what
fails on one rank ends all of them with the reason; a rank that closes early ends the others at
their next batch. Nothing is dropped or doubled before that. Given the streams, every batch is
determined.

Before: a user's iterator on each rank.   After: a training loop; divide losses by global_targets.
Price: one batch of host memory, a thread and a process group of its own. Two ranks of 64 samples:
5 ms a batch in the thread; a loop with steps of 50 ms waited 0.3 ms (median) for it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from analytics.errors import ConfigError, InputError
from training.comm.lanes import Lane
from training.comm.transport import Transport
from training.config import PLACEMENTS
from training.planning.cost import CostModel
from training.planning.plan import Dealing

Ids = npt.NDArray[np.int64]
_RUNNING, _FAILED, _CLOSED = 0, 1, 2  # what a rank says of itself
_REASON_BYTES = 2048  # of an error's message, as it travels
_CLOSE_PATIENCE_S = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One sequence of events."""

    events: Ids  # item ids, oldest first; shape (L,), L may be 0
    sample_id: int = -1  # the user's own; travels along, means nothing here


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamBatch:
    """What one rank holds of one global batch; it may be nothing."""

    step: int
    samples: tuple[Sample, ...]  # by the rank they came from, then in the order of its stream
    num_samples: int  # over all ranks
    num_targets: int  # on this rank: events that have one before them
    global_targets: int  # over all ranks: what every loss sum is divided by
    cost_s: float  # of this rank's samples by cost model [s]


class BalancedStream(Iterator[StreamBatch]):
    """This rank's share of one global batch after another, read and exchanged one batch ahead.

    samples: this rank's stream, of Sample or of int64 arrays; it is read in another thread.
    transport: this stream's own, of a group no one else uses. samples_per_rank: how many each rank
    reads for a global batch, the same everywhere. max_tokens_per_rank: events a rank may hold.
    A collective, and so is every batch; ranks ask for equally many batches, or all to the end.
    Raises ConfigError for a setting out of its bounds, InputError on every rank when a stream fails
    on one or is closed by one, PlanError on every rank when a batch does not fit.
    """

    def __init__(
        self,
        samples: Iterable[Sample | Ids],
        transport: Transport,
        *,
        samples_per_rank: int,
        cost: CostModel,
        placement: str = "lpt_free",
        max_tokens_per_rank: int | None = None,
        seed: int = 0,
    ) -> None:
        if samples_per_rank < 1:
            raise ConfigError(
                f"samples_per_rank is {samples_per_rank}; each rank must read at least 1."
            )
        if placement not in PLACEMENTS:
            raise ConfigError(f"placement is {placement!r}; known are {', '.join(PLACEMENTS)}.")
        self._samples = iter(samples)
        self._per_rank = samples_per_rank
        self._cost = cost
        self._placement = placement
        self._max_tokens = max_tokens_per_rank
        self._seed = seed
        self._step = 0
        self._is_over = False  # the lane's: nothing is sent any more
        self._is_closed = False  # the reader's
        self._lane = Lane("stream", transport)
        self._following: concurrent.futures.Future[StreamBatch | None]
        self._following = self._lane.submit(self._next_batch)

    def __next__(self) -> StreamBatch:
        """The next batch; waits only when it is not there yet."""
        if self._is_closed:
            raise StopIteration
        try:
            batch = self._following.result()
        except BaseException:
            self._is_closed = True
            self._lane.close()
            raise
        if batch is None:
            self._is_closed = True
            self._lane.close()
            raise StopIteration
        self._following = self._lane.submit(self._next_batch)
        return batch

    def close(self) -> None:
        """Leave the stream before its end; the other ranks are told at their next batch.

        Waits at most 5 s for them to hear it. Samples read ahead are lost.
        """
        if self._is_closed:
            return
        self._is_closed = True
        told = self._lane.submit(self._tell_closed)
        with contextlib.suppress(Exception):  # it is over either way
            told.result(timeout=_CLOSE_PATIENCE_S)
        self._lane.close()

    def __enter__(self) -> BalancedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_batch(self, transport: Transport) -> StreamBatch | None:
        """Read, tell, place, exchange; None at the common end. In the lane's thread."""
        if self._is_over:
            return None
        failure: Exception | None = None
        mine: list[Sample] = []
        try:
            mine = [_checked(s) for s in itertools.islice(self._samples, self._per_rank)]
        except Exception as error:
            failure, mine = error, []
        status = _FAILED if failure else _RUNNING
        length_RB = self._told(transport, status, [len(s.events) for s in mine], failure)
        if not any(map(len, length_RB)):
            self._is_over = True
            return None
        try:
            return self._exchanged(transport, mine, length_RB)
        except BaseException:
            self._is_over = True
            raise

    def _tell_closed(self, transport: Transport) -> None:
        if not self._is_over:
            with contextlib.suppress(InputError):
                self._told(transport, _CLOSED, [], None)
            self._is_over = True

    def _told(
        self, transport: Transport, status: int, lengths: list[int], failure: Exception | None
    ) -> list[Ids]:
        """Every rank's lengths; raises InputError when one has failed or closed. A collective."""
        said = torch.zeros(2 + self._per_rank, dtype=torch.int64)
        said[0], said[1] = status, len(lengths)
        said[2 : 2 + len(lengths)] = torch.tensor(lengths, dtype=torch.int64)
        heard = transport.all_gather(said).numpy()
        status_R, count_R = heard[:, 0], heard[:, 1]
        if (status_R == _FAILED).any():
            self._is_over = True
            reasons = _gathered_text(transport, f"{type(failure).__name__}: {failure}")
            rank = int(np.argmax(status_R == _FAILED))
            raise InputError(
                f"The stream of rank {rank} failed at global batch {self._step} "
                f"({reasons[rank]}), so all ranks end. Mend that rank's input and start again."
            ) from failure
        if (status_R == _CLOSED).any():
            self._is_over = True
            rank = int(np.argmax(status_R == _CLOSED))
            raise InputError(
                f"Rank {rank} closed its stream before global batch {self._step}. Close it on all "
                "ranks after the same number of batches."
            )
        return [heard[rank, 2 : 2 + count] for rank, count in enumerate(count_R)]

    def _exchanged(
        self, transport: Transport, mine: list[Sample], length_RB: list[Ids]
    ) -> StreamBatch:
        """Place the global batch and send every sample where it belongs. A collective."""
        length_N = np.concatenate(length_RB)
        source_N = np.repeat(np.arange(len(length_RB)), [len(n) for n in length_RB])
        cost_N = self._cost.sequence_cost_s(length_N)
        dealing = Dealing(
            cost_W=cost_N,
            token_W=length_N,
            num_ranks=transport.world_size,
            seed=self._seed,
            max_tokens=self._max_tokens,
        )
        rank_N = dealing.ranks(self._placement, np.arange(len(length_N)), self._step)
        is_mine_N = rank_N == transport.rank
        received = _moved(transport, mine, rank_N[source_N == transport.rank], length_N[is_mine_N],
                          source_N[is_mine_N])  # fmt: skip
        self._step += 1
        return StreamBatch(
            step=self._step - 1,
            samples=received,
            num_samples=len(length_N),
            num_targets=int(np.maximum(length_N[is_mine_N] - 1, 0).sum()),
            global_targets=int(np.maximum(length_N - 1, 0).sum()),
            cost_s=float(cost_N[is_mine_N].sum()),
        )


def _moved(
    transport: Transport, mine: list[Sample], to_B: Ids, length_M: Ids, source_M: Ids
) -> tuple[Sample, ...]:
    """Send sample b to rank to_B[b]; the samples received, by source rank. A collective.

    length_M, source_M: events and source of each sample that will come, by source rank. A sample
    travels as its id and its events.
    """
    ranks = range(transport.world_size)
    order = np.argsort(to_B, kind="stable")
    parts = [part for b in order for part in ([mine[b].sample_id], mine[b].events)]
    data = np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
    size_B = np.array([1 + len(sample.events) for sample in mine], dtype=np.int64)
    sent_R = [int(size_B[to_B == rank].sum()) for rank in ranks]
    wanted_R = [int((1 + length_M[source_M == rank]).sum()) for rank in ranks]
    output = torch.empty(sum(wanted_R), dtype=torch.int64)
    transport.all_to_all(output, torch.from_numpy(data), wanted_R, sent_R)
    pieces = np.split(output.numpy(), np.cumsum(1 + length_M)[:-1]) if len(length_M) else []
    return tuple(Sample(sample_id=int(piece[0]), events=piece[1:]) for piece in pieces)


def _checked(sample: Sample | Ids) -> Sample:
    """Raises InputError unless it is a sample or a flat int64 array."""
    sample = sample if isinstance(sample, Sample) else Sample(events=sample)
    events = sample.events
    if not isinstance(events, np.ndarray) or events.dtype != np.int64 or events.ndim != 1:
        kind = f"{events.dtype} {events.shape}" if isinstance(events, np.ndarray) else type(events)
        raise InputError(f"a sample's events must be a flat int64 array, found {kind}")
    return sample


def _gathered_text(transport: Transport, text: str) -> list[str]:
    """Every rank's text, cut at 2,048 bytes. A collective."""
    said = torch.zeros(_REASON_BYTES, dtype=torch.uint8)
    raw = torch.frombuffer(bytearray(text.encode("utf-8")[:_REASON_BYTES]), dtype=torch.uint8)
    said[: len(raw)] = raw
    heard = transport.all_gather(said)
    return [bytes(row.tolist()).rstrip(b"\0").decode("utf-8", "replace") for row in heard]
