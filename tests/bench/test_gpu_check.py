"""The script's own laws, at small sizes on the CPU; what it finds on a GPU is its own to say."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"
CPU = torch.device("cpu")


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script as a module; it finds its parts beside itself, as when it is run."""
    monkeypatch.syspath_prepend(str(BENCH))
    threads = torch.get_num_threads()
    yield importlib.import_module("gpu_check")
    torch.set_num_threads(threads)
    for name in ("gpu_check", "checked", "check_attention", "check_precision", "check_contention"):
        sys.modules.pop(name, None)


@pytest.mark.full
def test_everything_a_cpu_can_is_checked_and_published(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu_check.json"
    parts = ["attention", "precision", "contention"]
    assert gpu_check.main(["--cpu", "--small", "--out", str(out), "--parts", *parts]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["facts"]["device"] == "cpu"
    assert [(part["name"], part["status"]) for part in report["parts"]] == [
        (name, "ok") for name in parts
    ]
    figures = {f["what"]: f for part in report["parts"] for f in part["figures"]}
    assert figures["loop float32: largest difference forward"]["value"] == 0.0
    assert 0 < figures["padded float32: largest difference backward"]["value"] < 1e-5
    assert "needs an NVIDIA GPU" in figures["flex float32"]["note"]
    # items follow each other 9 times out of 10; without learning 10 of 40 items are a quarter
    assert figures["fp32: HR@10"]["value"] > 0.7
    assert figures["bf16: HR@10"]["value"] > 0.7
    curves = report["parts"][1]["curves"]
    assert len(curves["loss_fp32"]) == len(curves["loss_bf16"]) == 40
    assert curves["loss_bf16"] != curves["loss_fp32"]
    shown = capsys.readouterr().out
    assert shown.count("\n") == 5 + len(parts) + sum(len(p["figures"]) for p in report["parts"])
    assert "| attention | padded float32: largest difference forward |" in shown


def test_a_part_that_fails_is_recorded_and_stops_no_other(
    gpu_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: torch.device, small: bool) -> Any:
        raise ZeroDivisionError("nothing to divide by")

    def off(device: torch.device, small: bool) -> Any:
        figure = gpu_check.Figure(what="too much", value=2.0, unit="s", at_most=1.0)
        return gpu_check.Checked(figures=[figure])

    monkeypatch.setattr(gpu_check, "PARTS", {"broken": broken, "off": off})
    found = gpu_check.check(CPU, True, ["broken", "off"], 60.0)
    assert [(f.status, f.reason) for f in found] == [
        ("failed", "ZeroDivisionError: nothing to divide by"),
        ("failed", "out of bounds: too much"),
    ]


def test_no_part_begins_after_the_time_is_used_up(gpu_check: Any) -> None:
    found = gpu_check.check(CPU, True, ["attention", "precision"], -1.0)
    assert [f.status for f in found] == ["absent", "absent"]
    assert "time was used up" in found[0].reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_so(gpu_check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    assert "sees no NVIDIA GPU" in capsys.readouterr().err


PROGRAM = """
import os
def differences(rank, world_size, init_method, device, small):
    assert init_method.startswith("file://") and device.type == "cpu" and small
    {body}
"""


def with_program(gpu_check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> Any:
    """The outcome of the exactness part with this program in place of the schedules'."""
    (tmp_path / "program_of_a_test.py").write_text(PROGRAM.format(body=body), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gpu_check, "EXACTNESS_PROGRAM", "program_of_a_test")
    return gpu_check.outcome("exactness", gpu_check.exactness_part, CPU, True)


def test_exactness_without_its_program_is_absent(
    gpu_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "EXACTNESS_PROGRAM", "no_such_program")
    done = gpu_check.outcome("exactness", gpu_check.exactness_part, CPU, True)
    assert (done.status, done.reason) == (
        "absent",
        "bench/no_such_program.py is not in this checkout",
    )


@pytest.mark.full
def test_a_schedule_that_is_not_exact_fails_by_name(
    gpu_check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "return {'split': 0.0, 'prioritised': 1e-9 * world_size}"
    done = with_program(gpu_check, monkeypatch, tmp_path, body)
    assert (done.status, done.reason) == (
        "failed",
        "out of bounds: prioritised from synchronous",
    )
    assert [figure.value for figure in done.checked.figures] == [0.0, 2e-9]


@pytest.mark.full
def test_a_dead_rank_ends_the_others_and_is_named(
    gpu_check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "os._exit(3) if rank == 1 else __import__('time').sleep(600)"
    done = with_program(gpu_check, monkeypatch, tmp_path, body)
    assert done.status == "failed"
    assert "rank 0 was still running, rank 1 ended with 3" in done.reason
    assert done.wall_s < 60
