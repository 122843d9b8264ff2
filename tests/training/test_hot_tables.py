"""Replicating the hottest rows changes no bit of what an engine trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.training.hot_programs import train_hot
from tests.training.schedule_programs import SCHEDULES


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hot_rows_train_to_the_same_bits(on_ranks: Any, world_size: int, schedule: str) -> None:
    for plain, hot in on_ranks(train_hot, world_size, schedule):
        assert set(plain) == set(hot)
        for name, value in plain.items():
            np.testing.assert_array_equal(value, hot[name], err_msg=name)
