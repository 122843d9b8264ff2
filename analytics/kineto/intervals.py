"""Sets of time as arrays of disjoint, sorted intervals, in whole nanoseconds.

Before: reading.py tells when each kernel ran.   After: breakdown.py and parts.py measure them.
Price: a sort for each union; everything else is a binary search.
"""

from __future__ import annotations

import numpy as np

NOTHING = np.empty((0, 2), np.int64)


def union(spans: np.ndarray) -> np.ndarray:
    """The times covered by any of these intervals, touching ones joined.

    spans: int64, shape (N, 2), start and end [ns]; may overlap, unsorted; empty ones count nothing.
    """
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return NOTHING
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    is_first = np.append(True, spans[1:, 0] > reach[:-1])
    first = np.flatnonzero(is_first)
    last = np.append(first[1:] - 1, len(spans) - 1)
    return np.stack([spans[first, 0], reach[last]], axis=1)


def length_ns(spans: np.ndarray) -> int:
    """How much time disjoint intervals cover [ns]."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def covers(spans: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Whether each time lies in one of these disjoint, sorted, half-open intervals."""
    if not len(spans):
        return np.zeros(len(times), bool)
    place = np.searchsorted(spans[:, 0], times, side="right") - 1
    return np.asarray((place >= 0) & (times < spans[np.maximum(place, 0), 1]))


def overlap(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The times in both of two sets of disjoint, sorted intervals."""
    return _where(ones, others, lambda a, b: a & b)


def without(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The times in the first set and not in the second."""
    return _where(ones, others, lambda a, b: a & ~b)


def distinct(values: np.ndarray) -> np.ndarray:
    """The different values, sorted. np.unique imports numpy.ma, which takes 10 ms of a start."""
    ordered = np.sort(values)
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(ordered[is_first])


def gaps(spans: np.ndarray) -> np.ndarray:
    """The times between disjoint, sorted intervals, shape (N - 1, 2)."""
    return np.stack([spans[:-1, 1], spans[1:, 0]], axis=1) if len(spans) else NOTHING


def _where(ones: np.ndarray, others: np.ndarray, rule) -> np.ndarray:  # type: ignore[no-untyped-def]
    points = distinct(np.concatenate([ones.ravel(), others.ravel()]))
    if len(points) < 2:
        return NOTHING
    picked = rule(covers(ones, points[:-1]), covers(others, points[:-1]))
    return union(np.stack([points[:-1], points[1:]], axis=1)[picked])
