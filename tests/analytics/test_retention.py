"""What a purge takes away it has counted before: no total changes, and nothing comes back."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics.errors import ConfigError, WarehouseError
from analytics.purging import purge
from analytics.retention import remember_purge
from analytics.warehouse import load, publish, rebuild
from tests.analytics.landed import MINUTE, START, S, land_records, loaded, query, sample, tables
from tests.analytics.test_device_views import event

PIPELINE = "20261130T140000Z-1a2b"
DAY = 86_400 * S
USE = "SELECT * FROM device_use ORDER BY ALL"
ENERGY = (
    "SELECT pipeline_id, host, device_id, metered_energy_j, power_energy_j, power_observed_s "
    "FROM device_energy ORDER BY ALL"
)
STATES = (
    "SELECT host, device_id, state, num_minutes, state_s, cost FROM device_state ORDER BY ALL",
    "SELECT device_id, cause, seconds, cost FROM allocation_state ORDER BY ALL",
    "SELECT host, device_id, minute_unix_ns, is_idle FROM device_activity ORDER BY ALL",
    "SELECT run_id, rank, host, device_id, sample_pipeline_id FROM rank_device ORDER BY ALL",
)


def purged(runs_dir: Path, minutes: int):
    """Purge all samples of before so many minutes after START, and publish."""
    report = purge(runs_dir, older_than_days=1, now_ns=START + minutes * MINUTE + DAY)
    publish(runs_dir)
    return report


def totals(runs_dir: Path) -> list[tuple]:
    return [row for question in (USE, ENERGY, *STATES) for row in query(runs_dir, question)]


def close(ours: list[tuple], theirs: list[tuple]) -> bool:
    """Equal but for the order in which floats were added up."""
    return len(ours) == len(theirs) and all(
        a == (pytest.approx(b, rel=1e-9) if isinstance(b, float) else b)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_a_purge_turns_old_samples_into_minutes_that_say_the_same(tmp_path):
    told = [
        sample(10 * n, interval_s=10.0, utilization_share=0.5, power_w=100.0,
               memory_used_bytes=n, memory_total_bytes=99)
        for n in range(12)
    ]  # fmt: skip
    land_records(tmp_path, "a", *told)
    loaded(tmp_path)
    before = totals(tmp_path)
    report = purged(tmp_path, minutes=1)
    # seconds 0..50 lie before the first full minute
    assert (report.num_samples_purged, report.num_samples_kept, report.num_minutes) == (6, 6, 1)
    assert query(
        tmp_path,
        "SELECT minute_unix_ns, num_samples, observed_s, utilized_s, energy_j, "
        "max_memory_used_bytes FROM fact_device_minute",
    ) == [(START, 6, 60.0, 30.0, 6000.0, 5)]
    assert close(totals(tmp_path), before)


# seconds, interval, utilisation, power, counter: with and without each of them
FIGURES = st.tuples(
    st.integers(0, 240),
    st.sampled_from([None, None, 1.0, 7.0]),
    st.sampled_from([None, 0.0, 0.25, 1.0]),
    st.sampled_from([None, 90.0, 310.5]),
    st.sampled_from([None, 0.0, 1e3, 2e3, 1e9]),
)


def as_sample(row, device: str):
    at_s, interval_s, share, power_w, energy_j = row
    return sample(
        at_s, device_id=device, interval_s=interval_s, utilization_share=share, power_w=power_w,
        energy_j=energy_j, sm_active_share=share, memory_used_bytes=at_s,
    )  # fmt: skip


ANY = (st.lists(FIGURES, min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 5))
SLOWLY = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(max_examples=2, **SLOWLY)
@given(*ANY)
def test_no_total_changes_however_often_it_is_purged(rows, first, second):
    check_totals(rows, first, second)


@pytest.mark.full
@pytest.mark.timeout(900)
@settings(max_examples=12, **SLOWLY)
@given(*ANY)
def test_no_total_of_many_changes_however_often_it_is_purged(rows, first, second):
    check_totals(rows, first, second)


def check_totals(rows, first: int, second: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        land_records(
            runs_dir, "a", *(as_sample(row, f"GPU-{row[0] % 2}") for row in rows),
            event(0, "allocated", device_id="GPU-0"), event(200, "released", device_id="GPU-0"),
        )  # fmt: skip
        loaded(runs_dir)
        before = totals(runs_dir)
        for minutes in (first, second):
            purged(runs_dir, minutes)
            assert close(totals(runs_dir), before)
        kept = tables(runs_dir)
        rebuild(runs_dir)
        publish(runs_dir)
        assert tables(runs_dir) == kept


def test_a_purge_takes_no_run_its_device(paper):
    # no dim_rank tells the device: it is the only accelerator that was sampled
    paper.write([
        paper.run("baseline", world_size=1, device="cuda"), paper.step("baseline", 0, 0),
        *(sample(n, pipeline_id=PIPELINE, host="paper", interval_s=1.0, utilization_share=0.5)
          for n in range(120)),
    ])  # fmt: skip
    loaded(paper.runs_dir)
    before = totals(paper.runs_dir)
    assert [row[3] for row in query(paper.runs_dir, STATES[-1])] == ["GPU-a"]
    purged(paper.runs_dir, minutes=5)
    assert close(totals(paper.runs_dir), before)


def test_neither_a_load_nor_making_anew_brings_purged_samples_back(paper):
    paper.pipeline()
    own = [sample(20 * n, pipeline_id=PIPELINE, interval_s=20.0, power_w=50.0) for n in range(9)]
    paper.write(own, writer="sampler")
    land_records(paper.runs_dir, "a", *(sample(30 * n, power_w=50.0) for n in range(6)))
    loaded(paper.runs_dir)
    before = totals(paper.runs_dir)
    purged(paper.runs_dir, minutes=2)
    kept = tables(paper.runs_dir)
    assert {row[5] >= START + 2 * MINUTE for row in kept["fact_device_sample"]} == {True}
    assert loaded(paper.runs_dir) == kept
    rebuild(paper.runs_dir)
    publish(paper.runs_dir)
    assert tables(paper.runs_dir) == kept
    assert close(totals(paper.runs_dir), before)


def test_late_samples_of_a_purged_minute_count_once(tmp_path):
    early = [sample(n, interval_s=1.0, power_w=10.0) for n in range(0, 60, 2)]
    late = [sample(n, interval_s=1.0, power_w=10.0) for n in range(60)]  # half of them again
    one, other = tmp_path / "one", tmp_path / "other"
    land_records(one, "early", *early)
    load(one)
    purged(one, minutes=5)
    assert query(one, "SELECT num_samples, energy_j FROM fact_device_minute") == [(30, 300.0)]
    land_records(one, "late", *late)
    land_records(other, "early", *early)
    land_records(other, "late", *late)
    load(other)
    purged(other, minutes=5)
    for runs_dir in (one, one, other):  # loading twice changes nothing either
        loaded(runs_dir)
        assert query(runs_dir, "SELECT num_samples, energy_j FROM fact_device_minute") == [
            (60, 600.0)
        ]
        assert query(runs_dir, "SELECT count(*) FROM fact_device_sample") == [(0,)]


def test_a_purge_that_was_killed_is_finished_by_the_next_load(tmp_path):
    land_records(tmp_path, "a", *(sample(10 * n, power_w=10.0) for n in range(12)))
    loaded(tmp_path)
    before = totals(tmp_path)
    remember_purge(tmp_path, 1, START + MINUTE + DAY, 10.0)  # and here it was killed
    loaded(tmp_path)
    assert close(totals(tmp_path), before)
    assert query(tmp_path, "SELECT count(*) FROM fact_device_sample") == [(6,)]


def test_the_moment_never_goes_back(tmp_path):
    land_records(tmp_path, "a", *(sample(10 * n) for n in range(12)))
    purged(tmp_path, minutes=1)
    assert purged(tmp_path, minutes=0).raw_since_unix_ns == START + MINUTE
    said = json.loads((tmp_path / "telemetry" / "retention.json").read_text())
    assert said["raw_since_utc"] == "2026-11-30T14:01:00+00:00"


def test_a_broken_retention_file_and_a_wrong_number_are_named(tmp_path):
    land_records(tmp_path, "a", sample(0))
    with pytest.raises(ConfigError, match="--older-than-days is -1"):
        purge(tmp_path, older_than_days=-1)
    (tmp_path / "telemetry" / "retention.json").write_text('{"raw_since_unix_ns": "soon"}')
    with pytest.raises(WarehouseError, match=r"retention.json: this does not tell.*--rebuild"):
        load(tmp_path)


def test_a_dry_run_tells_what_the_purge_then_does_and_does_nothing(tmp_path):
    land_records(tmp_path, "a", *(sample(10 * n, interval_s=10.0) for n in range(12)))
    loaded(tmp_path)
    before = tables(tmp_path)
    asked = purge(tmp_path, older_than_days=1, is_dry_run=True, now_ns=START + MINUTE + DAY)
    publish(tmp_path)
    assert tables(tmp_path) == before
    assert (asked.num_samples_purged, asked.num_samples_kept, asked.num_minutes) == (6, 6, 0)
    done = purged(tmp_path, minutes=1)
    assert (done.raw_since_utc, done.num_samples_purged) == (asked.raw_since_utc, 6)
    # what was purged before stays so: an earlier moment changes nothing
    again = purge(tmp_path, older_than_days=2, is_dry_run=True, now_ns=START + MINUTE + DAY)
    assert (again.raw_since_utc, again.num_samples_purged) == (asked.raw_since_utc, 0)
