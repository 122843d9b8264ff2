"""The exactness part of gpu_check.py, tried on the CPU through the same door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_every_schedule_is_exact_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "gpu_check.py"), "--cpu", "--small"]
    done = subprocess.run(
        [*command, "--parts", "exactness"],
        capture_output=True, text=True, timeout=380, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if "from synchronous" in line]
    assert len(rows) == 16
    assert all("| 0 |" in row and row.endswith("| ok |") for row in rows), rows
