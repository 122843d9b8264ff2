"""A very small run of the benches of the exchange: their rows, and that our arms end alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import link, sparsedist

ROOT = Path(__file__).resolve().parents[2]
DIFFERENCES = ("table", "table_state", "dense", "dense_state", "loss")
SMALL = {
    "forward_s": 0.004,
    "activations_s": 0.004,
    "weights_s": 0.004,
    "num_rows": 2000,
    "rows_per_rank": 128,
}
pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]


def rows_of(folder: Path, script: str, *arguments: str) -> list[dict[str, Any]]:
    """The rows that a bench writes."""
    path = folder / "rows.json"
    argv = [sys.executable, f"bench/{script}", *arguments, "--json", str(path)]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=380)
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return found


def test_overlap_on_an_emulated_link(tmp_path: Path) -> None:
    small = ("--repeats", "1", "--steps", "4", "--load", json.dumps(SMALL))
    rows = rows_of(
        tmp_path, "overlap.py", "--emulated-link", "--rates", "1gbit", "--no-unlimited", *small
    )
    assert [row["arm"] for row in rows] == ["synchronous", "ids_ahead", "prioritised", "split"]
    for row in rows:
        assert [row[f"difference_{kind}"] for kind in DIFFERENCES] == [0.0] * 5
        assert "emulated" in row["link"]
        parts = sum(row[f"exposed_{kind}_s"] for kind in ("ids", "rows", "gradients", "dense"))
        assert parts > 0 and row["step_s"] > 0.012  # the sleeps are in it
        assert row["over_floor_s"] == pytest.approx(row["step_s"] - row["floor_s"])
        assert row["collision_share"] == pytest.approx(0.3, abs=0.01)
    assert [row["rows_ahead_share"] > 0.5 for row in rows] == [False, False, True, True]


def bubble_rows(folder: Path, model: str) -> list[dict[str, Any]]:
    """The rows of bench/bubble.py, checked for what holds of either model."""
    small = ("--repeats", "1", "--steps", "4", "--load", json.dumps(SMALL))
    rows = rows_of(folder, "bubble.py", "--ranks", "2", "--link", "1gbit", "--model", model, *small)
    arms = ["random + ids_ahead", "+ balance", "+ prioritised", "+ split"]
    assert [row["arm"] for row in rows] == arms
    for row in rows:
        assert [row[f"difference_{kind}"] for kind in DIFFERENCES] == [0.0] * 5
        assert "emulated" in row["link"]
        assert row["straggler_wait_s"] >= 0 and row["exposed_comm_s"] >= 0
        assert "removed_share" not in row  # nothing mixes the two
    return rows


def test_bubble_under_emulated_compute(tmp_path: Path) -> None:
    rows = bubble_rows(tmp_path, "emulated")
    assert {row["compared_with"] for row in rows} == {"random + ids_ahead"}


def test_bubble_of_the_real_model(tmp_path: Path) -> None:
    rows = bubble_rows(tmp_path, "real")
    assert [row["compared_with"] for row in rows] == ["random + ids_ahead"] + ["+ balance"] * 3


def test_sparsedist_trains_as_our_synchronous_schedule(tmp_path: Path) -> None:
    reason = link.missing() or sparsedist.missing()
    if reason is not None:
        pytest.skip(reason)
    for model in ("emulated", "real"):
        path = tmp_path / f"{model}.json"
        argv = [sys.executable, "bench/sparsedist.py", "--model", model, "--json", str(path)]
        argv += ["--repeats", "1", "--steps", "5"]
        subprocess.run(argv, cwd=ROOT, check=True, timeout=380)
        theirs, ours = json.loads(path.read_text(encoding="utf-8"))
        assert (theirs["arm"], ours["arm"]) == ("torchrec", "synchronous")
        assert all(theirs[f"difference_{kind}"] <= 1e-5 for kind in DIFFERENCES)
        assert any(theirs[f"difference_{kind}"] > 0 for kind in DIFFERENCES)  # other code
