"""The gradient noise scale: up to which batch size more samples a step still pay.

A gradient over a few samples is the true one plus noise; while noise rules, a step of twice the
batch is worth nearly two steps, afterwards hardly more than one. Ranks hold different numbers of
samples here, so the estimate weighs them by what they hold.

Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"; the estimate for ranks
of unequal size follows from E|g_i|^2 = |G|^2 + tr(S) / b_i, learning rates from CowClip (2022) and
AdaScale (Johnson et al. 2020).
Before: squared norms of gradients, which arms with random placement record (pipeline/dense.py);
analytics/sql/035_step_noise.sql and 036_run_noise.sql say the same of a run in the warehouse.
After: whoever chooses a batch size. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def noise_and_signal(
    rank_sizes: Sequence[int], rank_norms_sq: Sequence[float], norm_sq: float
) -> tuple[float, float]:
    """(tr(S), |G|^2) from one step: the variance of a sample's gradient, and the true gradient's
    squared norm. Both are unbiased, so one step alone may tell negative ones.

    rank_sizes: samples b_i of each rank, ranks without any left out. rank_norms_sq: |g_i|^2, g_i
    the mean gradient over the rank's samples. norm_sq: |g|^2, g = sum(b_i g_i) / sum(b_i).
    The ranks' samples must be drawn at random: ranks that were balanced by length are not.
    Raises ValueError for fewer than two ranks, a rank without samples or unequal lengths.
    """
    if len(rank_sizes) != len(rank_norms_sq) or len(rank_sizes) < 2 or min(rank_sizes) < 1:
        raise ValueError("needed: at least two ranks, each with samples and one squared norm")
    total = sum(rank_sizes)
    weighed = math.fsum(b * sq for b, sq in zip(rank_sizes, rank_norms_sq, strict=True))
    noise = (weighed - total * norm_sq) / (len(rank_sizes) - 1)
    return noise, norm_sq - noise / total


class NoiseScale:
    """B_simple = tr(S) / |G|^2 from step to step, of averages kept apart.

    decay: weight of the past in both exponential averages, 0 to 1.
    """

    def __init__(self, decay: float = 0.99) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; expected 0 up to, but not, 1")
        self._decay = decay
        self._noise = self._signal = self._weight = 0.0

    def add(self, noise: float, signal: float) -> None:
        """Take up what one step tells, see noise_and_signal."""
        self._noise = self._decay * self._noise + (1 - self._decay) * noise
        self._signal = self._decay * self._signal + (1 - self._decay) * signal
        self._weight = self._decay * self._weight + 1 - self._decay

    @property
    def samples(self) -> float | None:
        """B_simple in samples; None before a step, and while the averages are not positive."""
        if self._noise <= 0 or self._signal <= 0:
            return None
        return self._noise / self._signal


def steps_ratio(batch: float, critical_batch: float) -> float:
    """S / S_min: steps needed at a batch size over the fewest possible."""
    return 1 + critical_batch / batch


def samples_ratio(batch: float, critical_batch: float) -> float:
    """E / E_min: samples needed at a batch size over the fewest possible."""
    return 1 + batch / critical_batch


def fastest_batch(critical_batch: float, fixed_s: float, samples_per_s: float) -> float:
    """The batch size with the least time to a goal, for steps of fixed_s + batch / samples_per_s.

    The time is in proportion to (1 + critical_batch / batch) x (fixed_s + batch / samples_per_s).
    """
    return math.sqrt(critical_batch * fixed_s * samples_per_s)


def adam_rate(rate: float, factor: float) -> float:
    """The learning rate of Adam-like dense parameters when the batch grows by a factor."""
    return rate * math.sqrt(factor)


def sgd_rate(rate: float, batch: float, factor: float, critical_batch: float) -> float:
    """The learning rate of SGD then: in proportion, as far as the critical batch reaches.

    Row-wise Adagrad keeps its rate at any batch.
    """
    return rate * min(factor, max(1.0, critical_batch / batch))


def adascale_gain(variance: float, signal: float, scale: float) -> float:
    """AdaScale's gain of a step over `scale` times the batch: 1 (no noise) to `scale`.

    variance: of the gradient at the small batch, tr(S) / batch. signal: |G|^2.
    """
    return (variance + signal) / (variance / scale + signal)
