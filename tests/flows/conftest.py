"""A small file of interactions, a request for it, and an environment that is put back."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analytics.sources.options import ReadingOptions
from flows.request import RunRequest
from infra.prices import price
from training.recipes import recipe

NUM_USERS = 60
NUM_ITEMS = 120
Request = Callable[..., RunRequest]


@pytest.fixture(autouse=True)
def _environment_is_put_back() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def user_id(user: int) -> str:
    """An id that nothing else looks like, so that a trace of it is found."""
    return f"klara.{user:03d}@example.org"


@pytest.fixture(scope="session")
def interactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 users with 8 to 60 events each over 120 items; columns uid, sku, ts."""
    draw = random.Random(3)
    path = tmp_path_factory.mktemp("data") / "small.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["uid", "sku", "ts"])
        for user in range(NUM_USERS):
            items = draw.sample(range(NUM_ITEMS), draw.randint(8, 60))
            for place, item in enumerate(items):
                time = 1_700_000_000 + user * 10_000 + place * 60
                lines.writerow([user_id(user), f"i{item}", time])
    return path


@pytest.fixture
def request_for(interactions: Path, tmp_path: Path) -> Request:
    """A request on the small file in a fresh runs folder; keyword arguments change it."""

    def make(**changes: object) -> RunRequest:
        values: dict[str, object] = {
            "pipeline_id": "p1",
            "runs_dir": str(tmp_path / "runs"),
            "interactions": str(interactions),
            "config": recipe("smoke_cpu"),
            "price": price("p5.48xlarge", pipeline_id="p1"),
            "reading": ReadingOptions(user="uid", item="sku", time="ts"),
            "keep_user_ids": True,  # so that no key is needed
        }
        return RunRequest(**{**values, **changes})  # type: ignore[arg-type]

    return make
