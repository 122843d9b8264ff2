"""Training windows: what a plan deals out. A sequence is one window, unless it is a giant.

A sequence that costs more than a whole rank's share of a mean global batch defeats every placement:
all other ranks wait for it. It is cut into overlapping windows; each later window begins with
events that are context only, so every target is trained exactly once, after at least half a window
of what came before it. Targets far into a long history thus see fewer events than in one piece,
each at the position it has there.

The cut depends on data, cost model, batch and ranks alone: it is made before any arm places
anything and is the same for every arm. It is not the same for another number of ranks.

Before: the store's lengths and a cost model.   After: plan.py deals windows; feed.py reads them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.planning.cost import CostModel

Ints = npt.NDArray[np.int64]
WINDOWS_NAME = "windows.npy"
_COLUMNS = ("sequence", "begin", "end", "first_target")
_ABOVE = 1.0 + 1e-9
_LEAST_EVENTS = 2  # of a window: one to know, one to tell
CONTEXT_SHARE = 0.5  # of a window's events, when a later one of a giant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """Parts of training histories, each of shape (num_windows,), events counted from the oldest.

    Window w holds events begin..end-1 of its sequence; events first_target..end-1 are its targets,
    those before are context. Window s < num_sequences is sequence s itself or a giant's first part,
    so cutting renumbers nothing; further parts follow, sequence by sequence.
    """

    sequence: Ints
    begin: Ints
    end: Ints
    first_target: Ints

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def lengths(self) -> Ints:
        """Events of each window, the last target included; shape (num_windows,)."""
        return self.end - self.begin

    @property
    def num_targets(self) -> Ints:
        """Targets of each window; shape (num_windows,)."""
        counts: Ints = np.maximum(self.end - self.first_target, 0)
        return counts

    @property
    def num_sequences(self) -> int:
        """Sequences that were cut or not."""
        return int(self.sequence.max(initial=-1)) + 1

    @property
    def is_cut(self) -> bool:
        """Whether any sequence is more than one window."""
        return len(self) > 0 and bool(self.begin[-1] > 0)  # later parts stand at the end


def whole_sequences(training_length_N: npt.ArrayLike) -> Windows:
    """Every sequence as one window.

    training_length_N: events of each sequence that are trained on, shape (N,).
    """
    length_N = np.asarray(training_length_N, dtype=np.int64)
    return Windows(
        sequence=np.arange(len(length_N), dtype=np.int64),
        begin=np.zeros_like(length_N),
        end=length_N,
        first_target=np.ones_like(length_N),
    )


def training_windows(
    training_length_N: npt.ArrayLike,
    cost: CostModel,
    *,
    num_ranks: int,
    batch_sequences: int,
    max_events: int | None = None,
    context_share: float = CONTEXT_SHARE,
) -> Windows:
    """Cut the giants; every other sequence is one window, unchanged.

    training_length_N: events of each sequence that are trained on, shape (N,). A giant costs more
    than a rank's share of a mean global batch of an epoch of whole sequences, or has more than
    max_events; its windows do not, are as few and as even as that allows, and overlap by
    context_share (0..0.9) of the longest window allowed. Windows of two events are never too dear.
    Raises ValueError when context_share is out of bounds or max_events below 2.
    """
    if not 0.0 <= context_share <= 0.9:
        raise ValueError(f"context_share is {context_share}; it must lie between 0 and 0.9")
    if max_events is not None and max_events < _LEAST_EVENTS:
        raise ValueError(f"max_events is {max_events}; a window needs at least {_LEAST_EVENTS}")
    whole = whole_sequences(training_length_N)
    if len(whole) == 0:
        return whole
    num_batches = -(-len(whole) // batch_sequences)
    longest = _longest_window(whole.end, cost, len(whole) / num_batches / num_ranks)
    if max_events is not None:
        longest = min(longest, max_events)
    giants = np.flatnonzero(whole.end > longest)
    if len(giants) == 0:
        return whole
    overlap = min(max(1, int(longest * context_share)), longest - 1)
    return _with_parts(whole, giants, longest, overlap)


def _longest_window(length_N: Ints, cost: CostModel, sequences_per_rank: float) -> int:
    """Events of the longest window within a rank's share; the longest sequence if all are."""
    share_s = float(cost.sequence_cost_s(length_N).mean()) * sequences_per_rank * _ABOVE
    longest = int(length_N.max())
    cost_of_length = cost.sequence_cost_s(np.arange(longest + 1))  # rises with length
    return max(int(np.searchsorted(cost_of_length, share_s, side="right")) - 1, _LEAST_EVENTS)


def _with_parts(whole: Windows, giants: Ints, longest: int, overlap: int) -> Windows:
    """Replace each giant by even windows of at most `longest` events."""
    end_N = whole.end.copy()
    more: list[tuple[int, int, int, int]] = []
    for sequence in giants.tolist():
        length = int(whole.end[sequence])
        step = longest - overlap
        num_parts = 1 + -(-(length - longest) // step)
        # even: num_parts windows of `size`, each sharing `overlap` events with the one before
        size = -(-(length + (num_parts - 1) * overlap) // num_parts)
        end_N[sequence] = size
        for part in range(1, num_parts):
            first_target = size + (part - 1) * (size - overlap)
            end = min(first_target + size - overlap, length)
            if first_target < end:
                more.append((sequence, first_target - overlap, end, first_target))
    parts = np.array(more, dtype=np.int64).reshape(-1, 4)
    return Windows(
        sequence=np.concatenate([whole.sequence, parts[:, 0]]),
        begin=np.concatenate([whole.begin, parts[:, 1]]),
        end=np.concatenate([end_N, parts[:, 2]]),
        first_target=np.concatenate([whole.first_target, parts[:, 3]]),
    )


def write_windows(windows: Windows, directory: Path) -> None:
    """Write windows.npy: int32 (num_windows, 4), columns as the fields of Windows."""
    table = np.stack([getattr(windows, name) for name in _COLUMNS], axis=1)
    np.save(directory / WINDOWS_NAME, table.astype(np.int32))


def read_windows(directory: Path) -> Windows:
    """Read windows.npy.

    Raises OSError or ValueError when it is missing or not such a table.
    """
    table = np.load(directory / WINDOWS_NAME, mmap_mode="r", allow_pickle=False)
    if table.ndim != 2 or table.shape[1] != len(_COLUMNS):
        raise ValueError(f"{WINDOWS_NAME} has shape {table.shape}, expected (windows, 4)")
    return Windows(**{name: table[:, at].astype(np.int64) for at, name in enumerate(_COLUMNS)})
