"""One rank's sequences, one after another without padding; moved to a device and cut into parts.

Shape letters: N events of all sequences of a rank; B sequences; D embedding_dim; K negatives a
sequence; S dropout sites. Events of targets only are counted in N of `targets_N`.

Before: training/feed.py fills it on the host.   After: training/model.py reads it on its device.
Price: a batch for a GPU passes through page-locked host memory, once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; itself when it is there already.

    To a GPU it goes over page-locked memory without making the host wait: what is launched later on
    the same stream finds it there. torch keeps the page-locked copy until the transfer is done.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def positions(lengths: Sequence[int], begins: Sequence[int] | None, device: torch.device) -> Tensor:
    """Position of each event in its history; int64 of shape (N,), made in one transfer.

    begins: position of each sequence's first event; None: 0 for all. At least one sequence.
    """
    starts = begins or (0,) * len(lengths)
    runs = [torch.arange(b, b + n) for b, n in zip(starts, lengths, strict=True)]
    return moved(torch.cat(runs), device)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JaggedBatch:
    """One rank's share of a global batch; ids are places in the batch's list of distinct rows."""

    lengths: tuple[int, ...]  # events of each sequence; may be empty
    inputs_N: Tensor  # int64, row of each input event
    targets_N: Tensor  # int64, row of the event that follows it; of targets only, see num_targets
    negatives_BK: Tensor  # int64, rows of each sequence's negatives
    keep_SND: Tensor | None  # bool, units kept at each dropout site; None without dropout
    # targets of each sequence, those of its last events; earlier events are context, which no loss
    # is taken of. None: every event has a target.
    num_targets: tuple[int, ...] | None = None
    begins: tuple[int, ...] | None = None  # position of each sequence's first event; None: all 0

    def to(self, device: torch.device) -> JaggedBatch:
        """The batch with its tensors on `device`; itself when they are there already."""
        if self.inputs_N.device == device:
            return self
        return dataclasses.replace(
            self,
            inputs_N=moved(self.inputs_N, device),
            targets_N=moved(self.targets_N, device),
            negatives_BK=moved(self.negatives_BK, device),
            keep_SND=None if self.keep_SND is None else moved(self.keep_SND, device),
        )

    def split(self, num_parts: int) -> list[JaggedBatch]:
        """The batch as up to num_parts batches of whole sequences, in order, with views of it.

        Every cut lies between two sequences, where the events before it are nearest to an even
        share. Parts without a sequence are left out, so a batch without one gives none. The
        parts' losses sum to the batch's; ids stay places in the batch's list of distinct rows.
        Raises ValueError when num_parts is less than 1.
        """
        if num_parts < 1:
            raise ValueError(f"A batch cannot be cut into {num_parts} parts; ask for 1 or more.")
        ends = [0, *itertools.accumulate(self.lengths)]
        shares = [ends[-1] * part / num_parts for part in range(1, num_parts)]
        cuts = [min(range(len(ends)), key=lambda i: abs(ends[i] - share)) for share in shares]
        bounds = itertools.pairwise([0, *cuts, len(self.lengths)])
        return [self._part(first, end) for first, end in bounds if first < end]

    def _part(self, first: int, end: int) -> JaggedBatch:
        """Sequences first to end - 1 as a batch of their own."""
        events = slice(sum(self.lengths[:first]), sum(self.lengths[:end]))
        targets = self.lengths if self.num_targets is None else self.num_targets
        return JaggedBatch(
            lengths=self.lengths[first:end],
            inputs_N=self.inputs_N[events],
            targets_N=self.targets_N[sum(targets[:first]) : sum(targets[:end])],
            negatives_BK=self.negatives_BK[first:end],
            keep_SND=None if self.keep_SND is None else self.keep_SND[:, events],
            num_targets=None if self.num_targets is None else self.num_targets[first:end],
            begins=None if self.begins is None else self.begins[first:end],
        )
