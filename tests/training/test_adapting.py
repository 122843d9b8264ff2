"""What a run finds out about itself while it trains: schedule, cost model, transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics.errors import ConfigError
from analytics.journal import read_journal
from analytics.schema import DimRun, FactCostFit, FactScheduleTrial, FactStep, FactTransportTrial
from tests.training.rank_programs import make_job, make_store, train, train_with_a_bad_step
from tests.training.test_exactness import LENGTHS, losses
from training.config import BALANCED, BASELINE, ArmConfig, RunConfig, TrainConfig
from training.pipeline.choose import CANDIDATES, make_schedule, refusal
from training.pipeline.synchronous import WholeGradient

AUTO = ArmConfig(name="auto", placement="random_equal", schedule="auto")


def test_auto_tries_every_schedule_says_why_and_changes_no_bit(
    tmp_path: Path, on_ranks: Any
) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    job = make_job(tmp_path, store, (BASELINE, AUTO), num_ranks=2, num_epochs=12, dropout=0.2)
    on_ranks(train, 2, job)
    trials = read_journal(job.journal_dir, FactScheduleTrial).records
    assert [trial.schedule for trial in trials] == list(CANDIDATES)
    # two to five turns of four steps, the first of each not timed
    assert all(trial.run_id == "p-auto" for trial in trials)
    assert {trial.num_steps for trial in trials} <= {6, 9, 12, 15}
    (chosen,) = [trial for trial in trials if trial.is_chosen]
    assert "taken" in chosen.reason and "ms" in chosen.reason
    best = min(trial.step_s for trial in trials if trial.step_s is not None)
    assert chosen.step_s is not None and chosen.step_s >= best
    assert losses(job)["auto"] == losses(job)["baseline"]


def test_auto_leaves_out_what_cannot_clip(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    job = make_job(tmp_path, store, (AUTO,), num_ranks=2, num_epochs=6, train={"clip_norm": 0.01})
    on_ranks(train, 2, job)
    trials = read_journal(job.journal_dir, FactScheduleTrial).records
    refused = {trial.schedule: trial.reason for trial in trials if trial.step_s is None}
    assert set(refused) == {"prioritised", "split"}
    assert all("global norm" in reason for reason in refused.values())


@pytest.mark.parametrize("name", ["prioritised", "split"])
def test_a_schedule_that_updates_early_refuses_what_needs_the_whole_gradient(name: str) -> None:
    assert refusal(name, WholeGradient()) is None
    whole = WholeGradient(clip_norm=1.0)
    with pytest.raises(ConfigError, match=f"'{name}'.*clip.*'synchronous', 'ids_ahead' or 'auto'"):
        make_schedule(name, None, None, None, None, whole)  # type: ignore[arg-type]
    arm = ArmConfig(name="early", placement="lpt_free", schedule=name)
    with pytest.raises(ConfigError, match=f"Arm early.*'{name}'"):
        RunConfig(recipe="test", arms=(BASELINE, arm), train=TrainConfig(skip_non_finite=True))


def test_a_step_that_is_left_out_counts_no_target_and_no_loss(
    tmp_path: Path, on_ranks: Any
) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    arms = (ArmConfig(name="ids", placement="lpt_free", schedule="ids_ahead"),)
    job = make_job(tmp_path, store, arms, num_ranks=2, train={"skip_non_finite": True})
    on_ranks(train_with_a_bad_step, 2, job, 3)
    steps = read_journal(job.journal_dir, FactStep).records
    left_out = [step for step in steps if step.was_skipped]
    assert sorted((step.step, step.rank) for step in left_out) == [(3, 0), (3, 1)]
    assert all(step.num_targets == 0 and step.loss_sum == 0.0 for step in left_out)
    assert all(step.loss_sum > 0 for step in steps if not step.was_skipped)


def test_a_refitted_run_trains_the_same_batches_to_the_same_losses(
    tmp_path: Path, on_ranks: Any
) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    found = []
    for name, refit in (("plain", {}), ("refit", {"refit_first_step": 4})):
        job = make_job(
            tmp_path / name,
            store,
            (BASELINE, BALANCED),
            num_ranks=2,
            num_epochs=4,
            train=refit | ({"refit_interval_steps": 8} if refit else {}),
        )
        on_ranks(train, 2, job)
        found.append(losses(job)["balanced"])
        fits = read_journal(job.journal_dir, FactCostFit).records
        assert bool(fits) == bool(refit)
        for fit in fits:
            assert fit.run_id == "p-balanced" and fit.num_measured >= 16 and fit.reason
        steps = read_journal(job.journal_dir, FactStep).records
        for epoch in range(4):
            held = sum(
                s.num_sequences for s in steps if s.epoch == epoch and s.run_id == "p-balanced"
            )
            assert held == len(LENGTHS)
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5)


def test_an_emulated_link_changes_times_only_and_is_named(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    found, wire_s = [], []
    for name, link in (("free", None), ("slow", 20.0)):
        job = make_job(
            tmp_path / name, store, (BASELINE,), num_ranks=2, train={"link_mbit_per_s": link}
        )
        on_ranks(train, 2, job)
        found.append(losses(job)["baseline"])
        (run,) = read_journal(job.journal_dir, DimRun).records
        assert run.transport == ("gloo" if link is None else "gloo, 20 mbit/s, emulated")
        (trial,) = [
            t for t in read_journal(job.journal_dir, FactTransportTrial).records if t.is_chosen
        ]
        assert trial.transport == "gloo"
        steps = read_journal(job.journal_dir, FactStep).records
        sent = sum(step.sent_bytes for step in steps if step.rank == 0)
        wire_s.append(sent * 8 / 20e6)
        if link is not None:
            waited = sum(step.exposed_comm_total_s for step in steps if step.rank == 0)
            assert waited > 0.5 * wire_s[-1]
    assert found[0] == found[1]


def test_the_parts_of_a_wait_sum_to_it_and_recording_is_told(tmp_path: Path, on_ranks: Any) -> None:
    store = make_store(tmp_path / "store", LENGTHS, 200)
    split = ArmConfig(name="split", placement="lpt_free", schedule="split")
    job = make_job(tmp_path, store, (BASELINE, split), num_ranks=2, num_epochs=2)
    on_ranks(train, 2, job)
    for step in read_journal(job.journal_dir, FactStep).records:
        parts = [
            step.exposed_ids_s,
            step.exposed_rows_s,
            step.exposed_gradients_s,
            step.exposed_dense_s,
        ]
        assert sum(part or 0.0 for part in parts) == pytest.approx(step.exposed_comm_total_s)
        assert step.recorder_cpu_s is not None and step.recorder_cpu_s > 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("precision", "fp8"),
        ("transport", "mpi"),
        ("transport", "nccl"),
        ("table_optimizer", "adam"),
        ("table_placement", "replicated"),
        ("micro_batches", 0),
        ("clip_norm", 0.0),
        ("link_mbit_per_s", -1.0),
        ("device", "tpu"),
    ],
)
def test_a_setting_out_of_bounds_names_itself(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        TrainConfig(**{setting: value})
