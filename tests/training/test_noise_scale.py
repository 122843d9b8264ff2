"""The gradient noise scale: unbiased for ranks of unequal size, and what follows from it."""

import math

import numpy as np
import pytest

from training.planning.noise_scale import (
    NoiseScale,
    adam_rate,
    adascale_gain,
    fastest_batch,
    noise_and_signal,
    samples_ratio,
    sgd_rate,
    steps_ratio,
)


def drawn(sizes, true_gradient, sigmas, repeats, seed=0):
    """Mean (tr(S), |G|^2) over many steps of drawn gradients."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(repeats):
        means = [
            true_gradient + sigmas * rng.standard_normal((size, len(sigmas))).mean(0)
            for size in sizes
        ]
        whole = sum(size * mean for size, mean in zip(sizes, means, strict=True)) / sum(sizes)
        norms = [float(mean @ mean) for mean in means]
        found.append(noise_and_signal(sizes, norms, float(whole @ whole)))
    return np.mean(found, 0)


def test_two_ranks_of_unequal_size_on_paper():
    # g_0 = 2 over one sample, g_1 = 0 over three: g = 0.5; (1 x 4 + 0 - 4 x 0.25) / 1 = 3
    noise, signal = noise_and_signal([1, 3], [4.0, 0.0], 0.25)
    assert (noise, signal) == (3.0, 0.25 - 3 / 4)


@pytest.mark.parametrize("sizes", [[8, 8, 8, 8], [1, 2, 13, 48], [3, 61]])
def test_the_estimate_is_unbiased_whatever_ranks_hold(sizes):
    sigmas = np.array([0.5, 1.0, 2.0, 4.0])
    true_gradient = np.array([1.0, -0.5, 0.25, 0.0])
    noise, signal = drawn(sizes, true_gradient, sigmas, 4000)
    assert noise == pytest.approx(float(sigmas @ sigmas), rel=0.05)
    assert signal == pytest.approx(float(true_gradient @ true_gradient), rel=0.1)


def test_equal_ranks_give_the_papers_estimate_of_two_batch_sizes():
    norms, whole, small = [3.0, 5.0, 4.0, 6.0], 2.5, 8
    noise, signal = noise_and_signal([small] * 4, norms, whole)
    mean, big = sum(norms) / 4, 4 * small
    assert signal == pytest.approx((big * whole - small * mean) / (big - small))
    assert noise == pytest.approx((mean - whole) / (1 / small - 1 / big))


@pytest.mark.parametrize(("sizes", "norms"), [([4], [1.0]), ([4, 0], [1.0, 0.0]), ([4, 4], [1.0])])
def test_what_tells_no_noise_is_refused(sizes, norms):
    with pytest.raises(ValueError, match="two ranks"):
        noise_and_signal(sizes, norms, 1.0)


def test_averages_are_kept_apart_and_tell_nothing_while_negative():
    scale = NoiseScale(decay=0.5)
    assert scale.samples is None
    scale.add(10.0, -1.0)
    assert scale.samples is None
    scale.add(20.0, 4.0)  # averages 12.5 and 1.75; the mean of the ratios would be negative
    assert scale.samples == pytest.approx(12.5 / 1.75)
    with pytest.raises(ValueError, match="decay"):
        NoiseScale(decay=1.0)


@pytest.mark.parametrize("batch", [1, 64, 1000, 1e6])
def test_steps_and_samples_trade_off_on_the_hyperbola(batch):
    steps, samples = steps_ratio(batch, 1000), samples_ratio(batch, 1000)
    assert (steps - 1) * (samples - 1) == pytest.approx(1)


def test_no_other_batch_is_faster_than_the_fastest():
    critical, fixed_s, rate = 500.0, 0.02, 10_000.0

    def seconds(batch):
        return steps_ratio(batch, critical) * (fixed_s + batch / rate)

    best = fastest_batch(critical, fixed_s, rate)
    assert best == pytest.approx(math.sqrt(500 * 200))
    assert all(seconds(best) <= seconds(best * factor) for factor in (0.5, 0.9, 1.1, 2))


def test_learning_rates_follow_the_batch():
    assert adam_rate(1e-3, 4) == pytest.approx(2e-3)
    assert sgd_rate(0.1, 100, 4, critical_batch=1000) == pytest.approx(0.4)
    assert sgd_rate(0.1, 100, 40, critical_batch=1000) == pytest.approx(1.0)  # no further
    assert sgd_rate(0.1, 2000, 2, critical_batch=1000) == pytest.approx(0.1)


def test_adascales_gain_lies_between_one_and_the_scale():
    assert adascale_gain(0.0, 1.0, 8) == 1.0
    assert adascale_gain(1.0, 0.0, 8) == 8.0
    assert adascale_gain(3.0, 1.0, 4) == pytest.approx(4 / 1.75)
