"""Any two runs: pairs where they ran the same batches, and no difference inside the interval."""

import dataclasses
import json

import numpy as np
import pytest

from analytics.compare_runs import compare_runs, run_pairs
from analytics.errors import WarehouseError

PIPELINE = "20261130T140000Z-1a2b"
OTHER = "20261201T140000Z-1a2b"


def run_of(paper, filled, pipeline, windows, *, arm="baseline", targets=16, **about):
    """A run on one rank whose steps take so long, half of it its own work."""
    steps = [
        paper.step(
            arm, 0, s, pipeline_id=pipeline, window_s=w, busy_s=w / 2, straggler_wait_s=0.0,
            exposed_comm_s=w / 2, exposed_comm_total_s=w / 2, data_wait_s=0.0, unattributed_s=0.0,
            num_targets=targets,
        )
        for s, w in enumerate(windows)
    ]  # fmt: skip
    run = paper.run(arm, pipeline_id=pipeline, **({"world_size": 1} | about))
    filled.write([run, *steps])
    return run.run_id


def test_arms_of_one_pipeline_are_paired_and_their_figures_are_ratios_of_sums(paper, filled):
    filled.write(paper.arm("baseline", num_steps=24) + paper.arm("balanced", num_steps=24))
    found = compare_runs(filled.con, f"{PIPELINE}-balanced", f"{PIPELINE}-baseline")
    assert (found.kind, found.num_steps_a, found.num_steps_b) == ("paired", 24, 24)
    step = found.figures["step_s"]
    # windows 2.5 s against 4 s, bubbles 0.5 s against 2 s, the same sequences in less time
    assert (step.a, step.b, step.ratio.value) == (2.5, 4.0, 0.625)
    assert (step.ratio.lower, step.ratio.upper) == (pytest.approx(0.625), pytest.approx(0.625))
    assert step.verdict == "lower"
    assert found.figures["bubble_s"].ratio.value == pytest.approx(0.25)
    assert found.figures["bubble_share"].ratio.value == pytest.approx(0.2 / 0.5)
    assert found.figures["samples_per_s"].ratio.value == pytest.approx(1.6)
    assert found.figures["samples_per_s"].verdict == "higher"
    assert found.figures["host_wait_s"].verdict == "not told"
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_runs_of_the_same_batches_are_paired_across_pipelines(paper, filled):
    # a slow drift that both share would hide 2 % from anyone who does not pair
    rng = np.random.default_rng(1)
    shared = 2 + np.cumsum(rng.normal(0, 0.05, 200)).clip(-1, 1)
    first = run_of(paper, filled, PIPELINE, shared * 1.02)
    second = run_of(paper, filled, OTHER, shared)
    found = compare_runs(filled.con, first, second)
    assert found.kind == "paired"
    assert found.figures["step_s"].ratio.value == pytest.approx(1.02)
    assert found.figures["step_s"].verdict == "higher"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": 2}, "seed is 1 and 2"),
        ({"seed": None}, "seed is 1 and None"),
        ({"dataset_id": "d1"}, "dataset_id is d0 and d1"),
        ({"global_batch_sequences": 16}, "global_batch_sequences is 8 and 16"),
        ({"targets": 15}, "step 0 had 16 and 15 targets"),
        ({"targets": None}, "step 0 had 16 and None targets"),
    ],
)
def test_other_batches_are_not_paired_and_it_is_told_why(paper, filled, change, reason):
    first = run_of(paper, filled, PIPELINE, [4.0] * 6)
    second = run_of(paper, filled, OTHER, [2.0] * 5, **change)
    found = compare_runs(filled.con, first, second)
    assert (found.kind, found.num_steps_a, found.num_steps_b) == ("unpaired", 6, 5)
    assert reason in found.reason
    assert found.figures["step_s"].ratio.value == pytest.approx(2.0)


def test_a_difference_inside_the_interval_is_not_called_one(paper, filled):
    rng = np.random.default_rng(0)
    first = run_of(paper, filled, PIPELINE, rng.uniform(1, 3, 60))
    second = run_of(paper, filled, OTHER, rng.uniform(1, 3, 60), seed=2)
    step = compare_runs(filled.con, first, second).figures["step_s"]
    assert step.ratio.lower < 1 < step.ratio.upper
    assert step.verdict == "no difference told"


def test_runs_that_are_alike_do_not_differ_by_rounding(paper, filled):
    first = run_of(paper, filled, PIPELINE, [0.1] * 30)
    second = run_of(paper, filled, OTHER, [0.1] * 50, seed=2)
    assert compare_runs(filled.con, first, second).figures["step_s"].verdict == "no difference told"


def test_the_interval_covers_as_often_as_it_says_where_steps_hang_together():
    from analytics.compare_runs import _COLUMNS, _compared, _figure, _means, _resampled

    rng = np.random.default_rng(7)
    inside = 0
    for trial in range(100):
        tables = []
        for _ in range(2):  # AR(1) noise around the same mean: the true ratio is 1
            noise = rng.normal(0, 0.1, 300)
            for at in range(1, 300):
                noise[at] += 0.5 * noise[at - 1]
            tables.append(np.full((300, len(_COLUMNS)), 1.0) + noise[:, None])
        drawn = _resampled((tables[0], tables[1]), is_paired=False, seed=trial)
        figures = [_figure(_means(table), "step_s") for table in tables]
        found = _compared(figures, [_figure(mean, "step_s") for mean in drawn])
        inside += found.ratio.lower <= 1 <= found.ratio.upper
    # single steps instead of stretches would cover about 75 of 100
    assert inside >= 84


def test_few_steps_give_a_figure_but_no_interval_and_none_gives_nothing(paper, filled):
    first = run_of(paper, filled, PIPELINE, [4.0] * 20)
    second = run_of(paper, filled, OTHER, [2.0] * 19)
    lone = paper.run("lone", world_size=1, seed=3)
    filled.write([lone])
    step = compare_runs(filled.con, first, second).figures["step_s"]
    assert (step.ratio.value, step.ratio.lower, step.verdict) == (2.0, None, "not told")
    nothing = compare_runs(filled.con, first, lone.run_id)
    assert all(figure.ratio.value is None for figure in nothing.figures.values())


def test_what_was_set_differently_is_told(paper, filled):
    first = run_of(paper, filled, PIPELINE, [4.0] * 3)
    second = run_of(paper, filled, OTHER, [2.0] * 3, transport="nccl", world_size=1)
    assert compare_runs(filled.con, first, second).differs == {"transport": ["gloo", "nccl"]}


def test_a_seed_repeats_the_interval(paper, filled):
    first = run_of(paper, filled, PIPELINE, np.arange(1.0, 30.0))
    second = run_of(paper, filled, OTHER, np.arange(2.0, 31.0))
    assert compare_runs(filled.con, first, second, seed=5) == compare_runs(
        filled.con, first, second, seed=5
    )


def test_names_of_pipelines_stand_for_their_arms(paper, filled):
    for pipeline in (PIPELINE, OTHER):
        filled.write(paper.arm("baseline", pipeline) + paper.arm("balanced", pipeline))
    assert run_pairs(filled.con, PIPELINE, OTHER) == [
        (f"{PIPELINE}-baseline", f"{OTHER}-baseline"),
        (f"{PIPELINE}-balanced", f"{OTHER}-balanced"),
    ]
    assert run_pairs(filled.con, f"{PIPELINE}-baseline", OTHER) == [
        (f"{PIPELINE}-baseline", f"{OTHER}-baseline")
    ]
    with pytest.raises(WarehouseError, match="cannot be compared with itself"):
        run_pairs(filled.con, PIPELINE, PIPELINE)
    with pytest.raises(WarehouseError, match=rf"'nosuch' is no run and no pipeline.*{OTHER}"):
        run_pairs(filled.con, "nosuch", PIPELINE)
