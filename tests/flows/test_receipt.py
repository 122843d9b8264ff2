"""The receipt shows what was measured, a dash for what was not, and both arms beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flows.receipt import dataset_line, markdown, place_lines, show
from flows.receipt_lines import comparison_lines, next_steps, table_cells
from flows.request import RunRequest

Request = Callable[..., RunRequest]


def arm(name: str, **changes: Any) -> dict[str, Any]:
    row = {
        "arm": name,
        "schedule": "auto" if name == "balanced" else "synchronous",
        "chosen_schedule": "split" if name == "balanced" else "synchronous",
        "transport": "gloo, 100 mbit/s, emulated",
        "step_s": 0.1234,
        "straggler_share": 0.05,
        "bubble_share": 0.25,
        "hr_at_10": 0.16,
        "popularity_hr_at_10": 0.086,
        "num_cold_targets": 3,
        "cost": 0.012345,
        "bubble_cost_per_1000_device_hours": 1720.0,  # 0.25 x 1,000 h x 6.88
        "currency": "USD",
    }
    return {**row, **changes}


def estimate(value: float | None, lower: float | None, upper: float | None) -> dict[str, Any]:
    return {"value": value, "lower": lower, "upper": upper}


@pytest.fixture
def receipt(request_for: Request) -> dict[str, Any]:
    return {
        "pipeline_id": "p1",
        "dataset": {
            "dataset_name": "small.csv",
            "num_users": 60,
            "num_items": 120,
            "num_rows_kept": 1900,
            "num_rows_read": 1959,
            "dropped_rows": {"user_too_short": 59, "missing_user": 0},
            "min_length": 8,
            "median_length": 31.5,
            "max_length": 60,
            "terms": "unknown",
        },
        "arms": [arm("baseline"), arm("balanced", step_s=0.1, straggler_share=None)],
        "comparison": {
            "num_blocks": 15,
            "straggler_wait_ratio": estimate(0.31, 0.25, 0.40),
            "cpu_imbalance_ratio": estimate(0.2, None, None),
            "step_time_ratio": estimate(0.9, 0.85, 0.95),
            "bubble_reduction_share": estimate(None, None, None),
        },
        "price": {
            "instance_type": "p5.48xlarge",
            "device_name": "H100",
            "region": "us-east-1",
            "device_hour_cost": 6.88,
            "currency": "USD",
            "source": "AWS on-demand list price",
        },
        "transport_trials": [
            {
                "transport": "gloo",
                "label": "gloo, 100 mbit/s, emulated",
                "is_chosen": True,
                "reason": "the only one that can work here",
            },
            {"transport": "nccl", "label": "gloo", "is_chosen": False, "reason": "no GPU"},
        ],
        "schedule_trials": [
            {
                "arm": "balanced",
                "schedule": "split",
                "step_s": 0.0412,
                "is_chosen": True,
                "reason": "taken, with an error of 2.0%, against synchronous 60.0 ms",
            },
            {
                "arm": "balanced",
                "schedule": "prioritised",
                "step_s": None,
                "is_chosen": False,
                "reason": "it cannot clip",
            },
        ],
        "cost_fits": [
            {
                "arm": "balanced",
                "step": 19,
                "num_measured": 40,
                "residual_ratio": 0.041,
                "reason": "the old model stays",
            }
        ],
        "recording_share": 0.0012,
        "reporting": [
            {"label": "load", "duration_s": 1.26},
            {"label": "publish", "duration_s": 0.08},
        ],
        "devices": [
            {
                "host": "h",
                "device_id": "cpu",
                "utilization_share": 0.87,
                "memory_used_bytes": 3 * 2**30,
                "sampler_cpu_share": 0.004,
            }
        ],
        "mlflow": {
            "tracking_uri": "sqlite:////runs/mlflow.db",
            "parent_run_id": "m0",
            "runs": {"p1-baseline": "m1", "p1-balanced": "m2"},
            "model_name": "seqscale",
            "model_version": "4",
            "model_alias": "challenger",
        },
        "paths": {"warehouse": "/runs/warehouse.duckdb"},
        "next": next_steps(request_for()),
    }


def test_a_figure_that_one_arm_lacks_is_a_dash_and_one_that_both_lack_is_left_out() -> None:
    cells = {line[0]: line[1:] for line in table_cells([arm("a"), arm("b", straggler_share=None)])}
    assert cells["straggler share, measured"] == ["5.0 %", "-"]
    assert "  copies" not in cells


def test_figures_carry_their_units() -> None:
    cells = {line[0]: line[1] for line in table_cells([arm("a")])}
    assert cells["step time"] == "123.4 ms"
    assert cells["bubble"] == "25.0 %"
    assert cells["HR@10"] == "0.160"
    assert cells["cost of this run"] == "0.012345 USD"
    assert cells["bubble's cost per 1,000 device-hours"] == "1,720.00 USD"


def test_nought_is_not_missing() -> None:
    cells = {line[0]: line[1] for line in table_cells([arm("a", bubble_share=0.0)])}
    assert cells["bubble"] == "0.0 %"


def test_intervals_are_shown_where_there_are_any(receipt: dict[str, Any]) -> None:
    wait, imbalance, _, bubble, _ = comparison_lines(receipt["comparison"])
    assert wait.endswith("0.310 (0.250 to 0.400)")
    assert imbalance.endswith("0.200 (too few blocks for an interval)")
    assert "not measurable" in bubble
    assert "15 blocks" in bubble


def test_one_arm_is_not_compared() -> None:
    assert comparison_lines(None) == ["only one arm was run, so there is nothing to compare"]


def test_what_came_after_the_job_is_told_in_seconds(receipt: dict[str, Any]) -> None:
    line = "after the job: load 1.3 s, publish 0.1 s"
    assert line in markdown(receipt)
    assert "after the job" not in markdown({**receipt, "reporting": []})


def test_dropped_rows_are_told_by_reason(receipt: dict[str, Any]) -> None:
    line = dataset_line(receipt)
    assert "1,900 of 1,959 rows kept (dropped: 59 user_too_short)" in line


def test_markdown_and_console_hold_the_same_figures(
    receipt: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = markdown(receipt)
    assert "| figure | baseline | balanced |" in text
    assert "| step time | 123.4 ms | 100.0 ms |" in text
    show(receipt, width=200)
    shown = capsys.readouterr().out
    for cells in table_cells(receipt["arms"]):
        for cell in cells:
            assert cell.strip() in text
            assert cell.strip() in shown
    for line in (*comparison_lines(receipt["comparison"]), *place_lines(receipt)):
        assert line in text
        assert line in shown
    assert "6,880.00 USD per 1,000 device-hours" in text
    assert "cpu of h: in use 87.0 % of the time, at most 3.0 GiB" in text


def test_the_registered_version_and_every_run_are_named(receipt: dict[str, Any]) -> None:
    lines = "\n".join(place_lines(receipt))
    assert "seqscale version 4, alias challenger" in lines
    assert "p1-baseline: m1" in lines
    receipt["mlflow"] = None
    assert "no run was registered" in "\n".join(place_lines(receipt))


def test_commands_to_run_next_quote_their_paths(request_for: Request) -> None:
    commands = [command for command, _ in next_steps(request_for(runs_dir="/a b/runs"))]
    assert commands[0] == "seqscale dashboard --runs-dir '/a b/runs'"
    assert any("--gpus 64 --instance p5.48xlarge" in command for command in commands)


def test_what_a_run_chose_is_told_with_its_reason(receipt: dict[str, Any]) -> None:
    text = markdown(receipt)
    for line in (
        "# Receipt of p1 (gloo, 100 mbit/s, emulated)",
        "transport gloo, 100 mbit/s, emulated, the only one that can work here",
        "baseline: schedule synchronous, as given",
        "balanced: schedule split, picked by auto",
        "balanced, schedule split: 41.2 ms a step, taken, with an error of 2.0%, against",
        "balanced, schedule prioritised: it cannot clip",
        "after step 19 a cost model was fitted to 40 measured steps of ranks, which it misses by "
        "4.1 %: the old model stays",
        "recording the steps took 0.12 % of their time",
    ):
        assert line in text
