import dataclasses
import json

import numpy as np
import pytest

from analytics.compare import compare_arms, ratio_of_sums
from analytics.errors import WarehouseError
from analytics.warehouse import open_published

PIPELINE = "20261130T140000Z-1a2b"


def compare(paper, **options):
    paper.publish()
    con = open_published(paper.runs_dir)
    try:
        return compare_arms(con, PIPELINE, **options)
    finally:
        con.close()


def test_the_figures_are_ratios_of_sums_over_the_common_blocks(published):
    found = compare(published)
    assert (found.num_blocks, found.num_steps) == (2, 4)
    # windows 2.5 s against 4 s; bubbles 1 s against 4 s of both ranks; no wait against 2 s
    assert found.step_time_ratio.value == pytest.approx(0.625)
    assert found.bubble_reduction_share.value == pytest.approx(0.75)
    assert found.straggler_wait_ratio.value == 0.0
    # CPU time 1.5 s and 0.5 s: largest less mean is 0.5 s; the balanced arm's is 0
    assert found.cpu_imbalance_ratio.value == 0.0
    # both blocks are equal, so every resample gives the same
    assert found.step_time_ratio.lower == pytest.approx(0.625)
    assert found.step_time_ratio.upper == pytest.approx(0.625)
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_blocks_that_only_one_arm_finished_do_not_count(paper):
    paper.pipeline(num_steps=4)
    more = [paper.step("baseline", r, 4, window_s=400.0) for r in range(2)]
    lone = [paper.step("balanced", 0, 4, window_s=300.0)]  # rank 1 was killed
    paper.write([*more, *lone], writer="later")
    found = compare(paper)
    assert (found.num_blocks, found.num_steps) == (2, 4)
    assert found.step_time_ratio.value == pytest.approx(0.625)


def test_a_block_that_holds_other_steps_is_no_pair(paper):
    paper.pipeline(num_steps=3)  # block 1 has step 2 only
    paper.write([paper.step("baseline", r, 3) for r in range(2)], writer="later")
    assert compare(paper).num_blocks == 1


def test_one_block_gives_a_figure_but_no_interval(paper):
    paper.pipeline(num_steps=2)
    found = compare(paper).step_time_ratio
    assert found.value == pytest.approx(0.625)
    assert (found.lower, found.upper) == (None, None)


def test_what_was_not_measured_has_no_ratio(paper):
    paper.pipeline(num_steps=4)
    unsplit = dict(straggler_wait_s=None, exposed_comm_s=None)
    paper.write([paper.step("balanced", 0, 0, **unsplit)], writer="zz")
    found = compare(paper)
    assert found.straggler_wait_ratio.value is None
    assert found.step_time_ratio.value is not None


def test_one_rank_has_no_imbalance_to_compare(paper):
    for arm in ("baseline", "balanced"):
        steps = [paper.step(arm, 0, s) for s in range(4)]
        paper.write([paper.run(arm, world_size=1), *steps], writer=arm)
    assert compare(paper).cpu_imbalance_ratio.value is None


def test_an_unknown_arm_is_named_with_the_known_ones(published):
    with pytest.raises(WarehouseError, match=r"no arm 'turbo'.*balanced, baseline"):
        compare(published, candidate="turbo")


def test_the_interval_is_that_of_a_plain_bootstrap():
    rng = np.random.default_rng(3)
    base, ours = rng.uniform(1, 2, 40), rng.uniform(0.5, 1.5, 40)
    found = ratio_of_sums(ours, base, seed=0)
    drawn = rng.integers(0, 40, size=(20_000, 40))  # the textbook way, other random numbers
    plain = np.quantile(ours[drawn].sum(1) / base[drawn].sum(1), [0.025, 0.975])
    assert [found.lower, found.upper] == pytest.approx(plain.tolist(), abs=0.01)
    assert found.lower < found.value < found.upper


def test_a_seed_repeats_the_interval():
    base, ours = np.arange(1.0, 9.0), np.arange(2.0, 10.0)
    assert ratio_of_sums(ours, base, seed=5) == ratio_of_sums(ours, base, seed=5)
    assert ratio_of_sums(ours, base, seed=5) != ratio_of_sums(ours, base, seed=6)


def test_a_baseline_that_may_sum_to_zero_has_no_interval():
    ones = np.ones(4)
    assert ratio_of_sums(ones, np.zeros(4), seed=0).value is None
    rare = np.array([1.0, 0.0, 0.0, 0.0])  # missed by (3/4)^4 = 32 % of resamples
    found = ratio_of_sums(ones, rare, seed=0)
    assert (found.value, found.lower, found.upper) == (4.0, None, None)
