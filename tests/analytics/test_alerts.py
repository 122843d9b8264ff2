"""The newest run of a configuration against those before: worse beyond noise, with the evidence."""

import dataclasses
import json

import pytest

from analytics.alerts import find_alerts, judge
from tests.analytics.paper_warehouse import rank_of

DAY_NS = 86_400 * 10**9


def a_run(paper, filled, day, window_s, *, hr_at_10=0.16, **about):
    """One run a day: two ranks, two steps of so many seconds."""
    pipeline = f"202612{day:02d}T140000Z-1a2b"
    changes = dict(window_s=window_s, busy_s=window_s / 2)
    steps = [
        paper.step("baseline", r, s, pipeline_id=pipeline, **changes)
        for s in range(2)
        for r in range(2)
    ]
    started = 1_796_047_200_000_000_000 + day * DAY_NS
    run = paper.run("baseline", pipeline_id=pipeline, started_unix_ns=started, **about)
    quality = paper.evaluation("baseline", "test", "model", hr_at_10, pipeline_id=pipeline)
    filled.write([run, *steps, quality])
    return run.run_id


def test_a_slower_run_is_told_with_the_runs_it_is_held_against(paper, filled):
    earlier = [a_run(paper, filled, day, w) for day, w in enumerate([4.0, 4.1, 3.9, 4.0], start=1)]
    newest = a_run(paper, filled, 9, 5.0)
    found = find_alerts(filled.con)
    assert found.judged == [newest]
    alerts = {alert.figure: alert for alert in found.alerts}
    # median 4.0, MAD 0.05: 3 MAD are 0.15, the least share of 5 % is 0.2
    assert set(alerts) == {"step_s", "samples_per_s"}
    assert (alerts["step_s"].value, alerts["step_s"].median) == (5.0, pytest.approx(4.0))
    assert alerts["step_s"].bound == pytest.approx(4.2)
    assert list(alerts["step_s"].earlier) == earlier
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_worse_quality_is_told_and_a_faster_run_is_not(paper, filled):
    for day in range(1, 4):
        a_run(paper, filled, day, 4.0)
    a_run(paper, filled, 9, 2.0, hr_at_10=0.12)
    assert {alert.figure for alert in find_alerts(filled.con).alerts} == {"hr_at_10", "ndcg_at_10"}


def test_fewer_than_three_earlier_runs_judge_nothing_and_it_is_said(paper, filled):
    a_run(paper, filled, 1, 4.0)
    a_run(paper, filled, 2, 4.0)
    newest = a_run(paper, filled, 3, 400.0)
    found = find_alerts(filled.con)
    assert (found.alerts, found.judged) == ([], [])
    assert [(left.run_id, left.num_earlier) for left in found.unjudged] == [(newest, 2)]


@pytest.mark.parametrize(
    "change", [{"config_sha256": "1" * 64}, {"world_size": 3}, {"dataset_id": "d1"}]
)
def test_runs_of_other_configurations_are_not_held_against(paper, filled, change):
    for day in range(1, 4):
        a_run(paper, filled, day, 1.0, **change)
    a_run(paper, filled, 9, 4.0)
    found = find_alerts(filled.con)
    assert found.alerts == []
    assert len(found.unjudged) == 2


def test_runs_on_other_devices_are_not_held_against(paper, filled):
    for day, device in enumerate(["NVIDIA H200"] * 3 + ["NVIDIA L4"], start=1):
        run_id = a_run(paper, filled, day, 1.0 if device == "NVIDIA H200" else 4.0)
        ranks = [rank_of(run_id, rank, device_name=device) for rank in range(2)]
        filled.write(ranks)
    found = find_alerts(filled.con)
    assert found.alerts == []
    assert len(found.unjudged) == 2


def test_only_the_last_runs_count(paper, filled):
    for day, window_s in enumerate([1.0, 1.0, 1.0, 4.0, 4.0, 4.0], start=1):
        a_run(paper, filled, day, window_s)
    a_run(paper, filled, 9, 4.0)
    assert find_alerts(filled.con, num_last=3).alerts == []
    # of six the median is 2.5 and the MAD 1.5, of five it is 4
    assert find_alerts(filled.con, num_last=6).alerts == []
    with pytest.raises(ValueError, match="at least 3"):
        find_alerts(filled.con, num_last=2)


@pytest.mark.parametrize(
    ("earlier", "value", "is_worse"),
    [
        # noisy runs: median 3, MAD 1, so up to 6 is usual
        ([1.0, 2.0, 3.0, 4.0, 5.0], 5.9, False),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 6.1, True),
        # runs that are all alike: the least share of 5 %
        ([2.0, 2.0, 2.0], 2.09, False),
        ([2.0, 2.0, 2.0], 2.11, True),
        ([2.0, 2.0, 2.0], 0.1, False),
    ],
)
def test_worse_is_beyond_three_mad_or_the_least_share(earlier, value, is_worse):
    told = {str(n): v for n, v in enumerate(earlier)}
    assert (judge("r", "step_s", value, told) is not None) == is_worse


def test_lower_is_worse_for_rates_and_quality():
    told = {"a": 2.0, "b": 2.0, "c": 2.0}
    assert judge("r", "samples_per_s", 1.8, told) is not None
    assert judge("r", "samples_per_s", 9.0, told) is None
