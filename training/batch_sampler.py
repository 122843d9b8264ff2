"""Placement for somebody else's loop: a PyTorch batch sampler that balances the ranks.

Every rank makes the same sampler with its own `rank`. Global batches are a seeded permutation of
the data set, as a DistributedSampler's are; only which rank holds which sample is balanced.

    sampler = BalancedBatchSampler(lengths, num_ranks=4, rank=rank, batch_size=256, cost=cost)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=2)
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            (loss_mean(batch) * sampler.loss_scale(step)).backward()  # then the all-reduce's mean

A rank may hold more samples than another, so a mean loss must be scaled (`loss_scale`); a loss sum
divided by the global count needs no scale. A rank may even hold none: its batch is `[]`, for which
torch's default collate raises, so give a `collate_fn` that takes an empty list and let the loss be
a zero that hangs on the parameters; or set `at_least_one=True`.

Before: lengths and a cost model.   After: torch.utils.data.DataLoader.
Price: about half a millisecond a global batch of 512 samples, in the loader's process.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data import Sampler

from analytics.errors import ConfigError
from training.config import PLACEMENTS
from training.planning.balance import Ranks, load_of_ranks
from training.planning.cost import CostModel
from training.planning.plan import Dealing

Ints = npt.NDArray[np.int64]


EVENTS = CostModel(t_step_s=0.0, c0_s=0.0, a_s=1.0, b_s=0.0, source="one unit an event")


class BalancedBatchSampler(Sampler[list[int]]):
    """Yields this rank's sample indices of one global batch after another; equally many on all.

    lengths: events of every sample of the data set, shape (N,). batch_size: samples of a global
    batch, over all ranks. num_ranks, rank: those of torch.distributed when left out. cost: what a
    sample costs (training/calibrate.py, or fit_cost_model on measured steps); its number of events
    when left out. lookahead_batches: global batches whose samples are dealt anew together, 1: none.
    drop_last: leave out an epoch's last, short batch. max_tokens: events a rank may hold.
    at_least_one: give every rank a sample wherever a batch has enough; costs balance.
    Raises ConfigError for a setting out of its bounds, PlanError where a batch does not fit.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        *,
        batch_size: int,
        num_ranks: int | None = None,
        rank: int | None = None,
        cost: CostModel = EVENTS,
        placement: str = "lpt_free",
        seed: int = 0,
        lookahead_batches: int = 1,
        drop_last: bool = False,
        max_tokens: int | None = None,
        at_least_one: bool = False,
    ) -> None:
        length_N = np.asarray(lengths, dtype=np.int64)
        num_ranks = dist.get_world_size() if num_ranks is None else num_ranks
        rank = dist.get_rank() if rank is None else rank
        _check(length_N, num_ranks, rank, batch_size, placement, lookahead_batches)
        self._length_N = length_N
        self._rank = rank
        self._num_ranks = num_ranks
        self._batch_size = batch_size
        self._placement = placement
        self._seed = seed
        self._window = lookahead_batches
        self._drop_last = drop_last
        self._at_least_one = at_least_one
        self._dealing = Dealing(
            cost_W=cost.sequence_cost_s(length_N),
            token_W=length_N,
            num_ranks=num_ranks,
            seed=seed,
            max_tokens=max_tokens,
        )
        self._epoch = 0
        # of each batch begun in this epoch: (samples, targets) of this rank, and of all
        self._held: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def __len__(self) -> int:
        """Global batches of an epoch, the same on every rank."""
        num_samples = len(self._length_N)
        if self._drop_last:
            return num_samples // self._batch_size
        return -(-num_samples // self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's indices, batch by batch, in ascending order; some may be empty."""
        self._held = held = []
        epoch, first_step = self._epoch, self._epoch * len(self)
        for number, batch in enumerate(self._batches(epoch)):
            rank_B = self._dealing.ranks(self._placement, batch, first_step + number)
            if self._at_least_one:
                fill_empty_ranks(rank_B, self._dealing.cost_W[batch], self._num_ranks)
            mine = np.sort(batch[rank_B == self._rank])
            held.append((self._counts(mine), self._counts(batch)))
            yield mine.tolist()

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next pass is; the same on every rank."""
        self._epoch = epoch

    def loss_scale(self, step: int, *, mean_over: str = "sequences") -> float:
        """What this rank's mean loss is multiplied by before the ranks' gradients are averaged.

        num_ranks b_r / B with b_r of the B things that the mean is over on this rank: `sequences`,
        or `targets` (events that have one before them). step: the batch, from 0 in this epoch.
        0 where the rank holds nothing. Raises ConfigError for another mean or a batch not begun.
        """
        if mean_over not in ("sequences", "targets"):
            raise ConfigError(f"mean_over is {mean_over!r}; known are sequences, targets.")
        if not 0 <= step < len(self._held):
            raise ConfigError(
                f"Batch {step} of epoch {self._epoch} has not been yielded yet "
                f"({len(self._held)} have); ask for its loss scale after the loader gave it."
            )
        which = 0 if mean_over == "sequences" else 1
        mine, everybody = (counts[which] for counts in self._held[step])
        return self._num_ranks * mine / max(everybody, 1)

    def _batches(self, epoch: int) -> list[Ints]:
        """The global batches of an epoch; the same on every rank."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._length_N))
        starts = np.arange(len(self)) * self._batch_size
        batches = [(epoch, order[start : start + self._batch_size]) for start in starts]
        return self._dealing.look_ahead(batches, self._window)

    def _counts(self, samples: Ints) -> tuple[int, int]:
        return len(samples), int(np.maximum(self._length_N[samples] - 1, 0).sum())


def fill_empty_ranks(rank_B: Ranks, cost_B: npt.NDArray[np.float64], num_ranks: int) -> None:
    """Give each empty rank the cheapest sample of the dearest rank that has two; changes rank_B.

    A batch of fewer samples than ranks fills as many ranks as it can.
    """
    for empty in np.flatnonzero(np.bincount(rank_B, minlength=num_ranks) == 0):
        count_R = np.bincount(rank_B, minlength=num_ranks)
        if count_R.max() < 2:
            return
        load_R = load_of_ranks(cost_B, rank_B, num_ranks)
        giver = int(np.argmax(np.where(count_R >= 2, load_R, -1.0)))
        theirs = np.flatnonzero(rank_B == giver)
        rank_B[theirs[np.argmin(cost_B[theirs])]] = empty


def _check(
    length_N: Ints, num_ranks: int, rank: int, batch_size: int, placement: str, window: int
) -> None:
    if length_N.ndim != 1 or len(length_N) == 0 or length_N.min() < 0:
        raise ConfigError(
            f"lengths must be a flat list of at least one length, none negative; found shape "
            f"{length_N.shape}, least {length_N.min() if length_N.size else 'none'}."
        )
    if not 0 <= rank < num_ranks:
        raise ConfigError(f"rank is {rank}; it must lie between 0 and num_ranks - 1 ({num_ranks}).")
    if batch_size < num_ranks:
        raise ConfigError(
            f"batch_size is {batch_size}, fewer than the {num_ranks} ranks. It counts the samples "
            f"of all ranks together; raise it to at least {num_ranks}."
        )
    if placement not in PLACEMENTS:
        raise ConfigError(f"placement is {placement!r}; known are {', '.join(PLACEMENTS)}.")
    if window < 1:
        raise ConfigError(f"lookahead_batches is {window}; it must be at least 1 (no look-ahead).")
