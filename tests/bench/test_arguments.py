"""What a bench cannot read on its command line is named in one line, not as a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench/regimes.py", "--cells", "2:x"], "'2:x' is no cell"),
        (["bench/regimes.py", "--cells", "2:0.3:x"], "'2:0.3:x' is no cell"),
        (["bench/overlap.py", "--rates", "foo"], "foo"),
    ],
)
def test_an_unreadable_argument_is_named(arguments, said):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_one_draw_of_a_length_law_has_no_deviation():
    done = subprocess.run(
        [sys.executable, "bench/balance.py", "--draws", "1", "--repeats", "0"], cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| bound | " in done.stdout and "±" not in done.stdout
