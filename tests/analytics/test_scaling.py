"""What more ranks are worth, of runs that differ in scale alone; and steps out of the ordinary."""

import pytest

from analytics import measures
from training.config import ArmConfig, RunConfig, TrainConfig


def name(number):
    return f"2026113{number}T140000Z-1a2b"


def run_of(paper, filled, number, *, ranks, batch, window_s, **changes):
    """A run of two steps on so many ranks, which share the batch evenly."""
    pipeline = name(number)
    about = dict(scaling_sha256="5" * 64, world_size=ranks, global_batch_sequences=batch)
    steps = [
        paper.step(
            "baseline", rank, step, pipeline_id=pipeline, window_s=window_s,
            num_sequences=batch // ranks,
        )
        for step in range(2) for rank in range(ranks)
    ]  # fmt: skip
    run = paper.run("baseline", pipeline_id=pipeline, **(about | changes))
    filled.write([run, *steps])


def efficiencies(filled, number):
    rows = measures.scaling(filled.con, f"{name(number)}-baseline")
    return [
        (r["scaling_kind"], r["world_size"], r["baseline_world_size"], r["scaling_efficiency"],
         r["scaling_cost"])
        for r in rows
    ]  # fmt: skip


def test_strong_scaling_is_the_time_at_one_global_batch(paper, filled):
    run_of(paper, filled, 1, ranks=1, batch=8, window_s=4.0)
    run_of(paper, filled, 2, ranks=2, batch=8, window_s=2.5)
    # T1 / (N TN) = 4 / (2 x 2.5); a run's only batch of a rank has no other to be held against
    assert efficiencies(filled, 2) == [
        ("strong", 1, 1, pytest.approx(1.0), None),
        ("strong", 2, 1, pytest.approx(0.8), None),
        ("weak", 2, None, None, None),
    ]


def test_weak_scaling_is_the_rate_at_one_batch_of_a_rank(paper, filled):
    run_of(paper, filled, 1, ranks=1, batch=4, window_s=4.0)
    run_of(paper, filled, 2, ranks=2, batch=8, window_s=5.0)
    # rates 1 and 1.6 a second: thr_N / (N thr_1) = 1.6 / 2
    weak = [row for row in efficiencies(filled, 2) if row[0] == "weak"]
    assert weak == [
        ("weak", 1, 1, pytest.approx(1.0), pytest.approx(0.0)),
        ("weak", 2, 1, pytest.approx(0.8), pytest.approx(0.2)),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"scaling_sha256": "6" * 64}, {"scaling_sha256": None}, {"dataset_id": "d1"},
        {"schedule": "ids_ahead"}, {"device": "cuda"}, {"seqscale_version": "1"},
    ],
)  # fmt: skip
def test_other_configurations_are_no_baseline(paper, filled, change):
    run_of(paper, filled, 1, ranks=1, batch=8, window_s=4.0, **change)
    run_of(paper, filled, 2, ranks=2, batch=8, window_s=2.5)
    assert [row[2:4] for row in efficiencies(filled, 2)] == [(None, None), (None, None)]


def test_the_hash_for_scaling_leaves_out_scale_alone():
    plain = RunConfig(recipe="r")
    larger = RunConfig(
        recipe="r", num_ranks=4, train=TrainConfig(global_batch_sequences=64, seed=2)
    )
    other = RunConfig(recipe="r", train=TrainConfig(num_negatives=64))
    arms = (ArmConfig(name="a", placement="lpt_free", schedule="split"),)
    assert plain.scaling_sha256() == larger.scaling_sha256()
    assert plain.sha256() != larger.sha256()
    assert plain.scaling_sha256() != other.scaling_sha256()
    assert plain.scaling_sha256() != RunConfig(recipe="r", arms=arms).scaling_sha256()


def test_a_step_beyond_the_median_and_three_mad_is_anomalous(paper, filled):
    windows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 30.0, 17.0]
    steps = [paper.step("baseline", 0, s, window_s=w) for s, w in enumerate(windows)]
    filled.write([paper.run("baseline", world_size=1), *steps])
    [row] = measures.step_deviation(filled.con, "20261130T140000Z-1a2b-baseline")
    # median 6; distances 5 4 3 2 1 0 1 2 3 24 11 have the median 3; beyond 15 are 30 and 17
    assert (row["median_step_s"], row["mad_step_s"]) == (6.0, 3.0)
    assert (row["num_anomalous_steps"], row["num_complete_steps"]) == (2, 11)
    assert row["anomalous_s"] == pytest.approx(24.0 + 11.0)
    assert row["longest_step_s"] == 30.0
