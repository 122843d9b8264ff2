"""Killed at any moment, a load, a publish or a landing loses nothing and breaks nothing."""

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from analytics.landing import landed
from analytics.warehouse import load, publish
from tests.analytics.landed import START, S, land_records, sample, tables
from tests.conftest import PaperRuns

OLD = "20261130T140000Z-1a2b"
NEW = "20261130T150000Z-ffff"
# What a child does; it says when it begins, and then goes on for ever so that any delay meets it.
WORK = """
    import sys
    from pathlib import Path
    from analytics import materialising
    from analytics.warehouse import load, publish
    from tests.analytics.landed import land_records, sample
    runs_dir = Path(sys.argv[1])
    what = sys.argv[2]
    rows = [sample(n / 10, interval_s=0.1, power_w=float(n)) for n in range(500)]
    print("begun", flush=True)
    number = 0
    while True:
        if what == "land":
            land_records(runs_dir, f"again-{number}", *rows)
            number += 1
        if what == "load":
            for name in ("warehouse.duckdb.wal", "warehouse.duckdb"):
                (runs_dir / ".work" / name).unlink(missing_ok=True)
        if what in ("load", "reload"):
            load(runs_dir)
        if what == "materialise":
            materialising.MANY_SAMPLES = 1
        if what in ("publish", "materialise"):
            publish(runs_dir)
"""


def make_runs(runs_dir: Path) -> None:
    """Two pipelines and three imports of which two share samples."""
    paper = PaperRuns(runs_dir)
    paper.pipeline(OLD)
    land_records(runs_dir, "a", *(sample(n) for n in range(0, 200, 2)))
    load(runs_dir)
    publish(runs_dir)
    paper.pipeline(NEW)
    land_records(runs_dir, "b", *(sample(n, power_w=1.0) for n in range(300)))
    land_records(runs_dir, "c", *(sample(n, device_id="GPU-b") for n in range(300)),
                 imported_unix_ns=START + S)  # fmt: skip


def kill_at(runs_dir: Path, what: str, delay_s: float) -> None:
    """Start a child at its work and kill it so many seconds after it began."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORK), str(runs_dir), what],
        stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "begun\n"
        time.sleep(delay_s)  # the random point; there is no state to wait for
        assert child.poll() is None, "it was to be killed, but ended by itself"
        os.kill(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    runs_dir = tmp_path_factory.mktemp("crashes") / "runs"
    make_runs(runs_dir)
    return runs_dir


@pytest.fixture(scope="module")
def reference(made, tmp_path_factory) -> dict[str, list[tuple]]:
    runs_dir = tmp_path_factory.mktemp("reference") / "runs"
    shutil.copytree(made, runs_dir)
    load(runs_dir)
    publish(runs_dir)
    return tables(runs_dir)


def check_kills(made: Path, folder: Path, reference, what: str, delays: list[float]) -> None:
    """After every kill the published copy opens, whole and old or whole and new; nothing is lost.

    The same folder is killed again and again: what is left behind must not add up either.
    """
    runs_dir = folder / what
    shutil.copytree(made, runs_dir)
    published = tables(runs_dir)
    for delay_s in delays:
        kill_at(runs_dir, what, delay_s)
        assert tables(runs_dir) in (published, reference)
    extra = {path.name for path in landed(runs_dir)} - {"a", "b", "c"}
    for name in extra:  # landed in the meantime: whole, or not there at all
        assert {p.name for p in (runs_dir / "telemetry" / name).iterdir()} == {
            "fact_device_sample.parquet", "manifest.json"
        }  # fmt: skip
        shutil.rmtree(runs_dir / "telemetry" / name)
    load(runs_dir)
    publish(runs_dir)
    assert tables(runs_dir) == reference
    assert {p.name for p in (runs_dir / ".work").iterdir()} == {"warehouse.duckdb", "load.lock"}
    land_records(runs_dir, "last", sample(0))
    left = {p.name for p in (runs_dir / "telemetry").iterdir()}
    assert left == {"a", "b", "c", "last"}


def delays_of(what: str, number: int, longest_s: float) -> list[float]:
    drawn = random.Random(f"{what} killed")
    return [drawn.uniform(0, longest_s) for _ in range(number)]


@pytest.mark.parametrize(
    ("what", "longest_s"), [("load", 1.5), ("publish", 0.3), ("materialise", 0.6), ("land", 0.5)]
)
def test_two_kills_lose_nothing(made, reference, tmp_path, what, longest_s):
    check_kills(made, tmp_path, reference, what, delays_of(what, 2, longest_s))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "number", "longest_s"),
    [
        ("load", 20, 1.5),
        ("reload", 10, 1.0),
        ("publish", 6, 0.3),
        ("materialise", 6, 0.6),
        ("land", 8, 0.5),
    ],
)
def test_fifty_kills_lose_nothing(made, reference, tmp_path, what, number, longest_s):
    check_kills(made, tmp_path, reference, what, delays_of(what, number, longest_s))
