"""The example runs as its head says, and its loss does not depend on who holds which history."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analytics import warehouse

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plain_loop.py"


def losses(num_ranks: int, runs_dir: Path) -> list[float]:
    """What the example prints on so many ranks."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(num_ranks), str(EXAMPLE), "--users", "96", "--epochs", "2", "--runs-dir", str(runs_dir),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=runs_dir, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return [float(text) for text in re.findall(r"loss of the last batch ([\d.]+)", done.stdout)]


def test_the_loop_runs_records_and_trains_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    alone, both = tmp_path / "one", tmp_path / "two"
    alone.mkdir()
    both.mkdir()
    one, two = losses(1, alone), losses(2, both)
    assert len(one) == 2
    assert two == pytest.approx(one, rel=1e-3)
    report = warehouse.load(both)
    # 96 users in batches of 32: 3 steps an epoch, 2 epochs, 2 ranks
    assert (report.rows["fact_step"], report.rows["dim_run"]) == (12, 1)


def test_what_seqscale_adds_is_ten_lines_or_fewer_and_marked() -> None:
    lines = EXAMPLE.read_text().splitlines()
    marked = [line for line in lines if "# seqscale" in line]
    assert 0 < len(marked) <= 10
    assert not any(word in line for line in lines for word in ("noqa", "fmt:"))
    names = ("BalancedBatchSampler", "StepRecording", "recording.", "loss_scale")
    for line in lines:
        assert line in marked or not any(name in line for name in names), line
