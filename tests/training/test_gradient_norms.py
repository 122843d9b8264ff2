"""The norms that tell the noise of gradients: right, in their turn, and without any effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analytics.errors import ConfigError
from tests.training.norm_programs import measured, worked_out
from training.engine import EngineOptions

WHOLE = ["synchronous", "ids_ahead", "prioritised"]


@pytest.mark.parametrize("world_size", [2, 4])
def test_norms_are_those_of_plain_autograd(on_ranks: Any, world_size: int) -> None:
    # at the first step rank 0 holds no sequence: its own norm is 0
    [(means, whole)] = on_ranks(worked_out, 1, world_size)
    assert means[0] == 0 < whole
    for rank, found in enumerate(on_ranks(measured, world_size, WHOLE, 1)):
        for name in WHOLE:
            own_sq, whole_sq = found[name][0][0]
            assert own_sq == pytest.approx(means[rank], rel=1e-4), name
            assert whole_sq == pytest.approx(whole, rel=1e-4), name


def test_norms_come_in_their_turn_and_change_no_bit(on_ranks: Any) -> None:
    [measuring], [silent] = (on_ranks(measured, 1, [*WHOLE, "split"], n) for n in (3, 0))
    for name in (*WHOLE, "split"):
        turns = [norms is not None for norms in measuring[name][0]]
        assert turns == ([False] * 6 if name == "split" else [True, False, False] * 2), name
        assert all(norms is None for norms in silent[name][0])
        for key, value in silent[name][1].items():
            np.testing.assert_array_equal(measuring[name][1][key], value, err_msg=f"{name} {key}")


def test_one_rank_alone_is_all_ranks(on_ranks: Any) -> None:
    [found] = on_ranks(measured, 1, ["synchronous"], 1)
    for norms in found["synchronous"][0]:
        assert norms is not None and norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_a_negative_turn_is_refused() -> None:
    with pytest.raises(ConfigError, match="norms_every is -1"):
        EngineOptions(norms_every=-1)
