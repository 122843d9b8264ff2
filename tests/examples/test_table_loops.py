"""The examples with sharded tables run as their heads say, and train the same on any ranks."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("TableConfig", "OverlappedTables", "keyed", "tables.")


def losses(example: str, num_ranks: int, folder: Path) -> list[float]:
    """What the example prints on so many ranks."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(num_ranks), str(ROOT / "examples" / example), "--steps", "40",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return [float(text) for text in re.findall(r"loss ([\d.]+)", done.stdout)]


def test_the_loop_with_tables_trains_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    alone, both = tmp_path / "one", tmp_path / "two"
    alone.mkdir()
    both.mkdir()
    one, two = losses("tables_loop.py", 1, alone), losses("tables_loop.py", 2, both)
    assert len(one) == 4
    assert one[-1] < one[0]
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="TorchRec is missing")
def test_the_torchrec_loop_trains_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    one, two = losses("torchrec_loop.py", 1, tmp_path), losses("torchrec_loop.py", 2, tmp_path)
    assert len(one) == 4
    assert one[-1] < one[0]
    assert two == pytest.approx(one, rel=1e-4)


def test_without_torchrec_the_loop_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torchrec.py").write_text("raise ImportError('not here')\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "torchrec_loop.py")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    assert "torchrec is not installed: pip install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("example", ["tables_loop.py", "torchrec_loop.py"])
def test_what_seqscale_adds_is_ten_lines_or_fewer_and_marked(example: str) -> None:
    lines = (ROOT / "examples" / example).read_text().splitlines()
    marked = [line for line in lines if "# seqscale" in line]
    assert 0 < len(marked) <= 10
    assert not any(word in line for line in lines for word in ("noqa", "fmt:"))
    for line in lines:
        assert line in marked or not any(name in line for name in NAMES), line
