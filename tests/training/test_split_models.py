"""Whatever a model does with its parameters, `split` trains it to the bit or says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from analytics.errors import ConfigError
from tests.training.model_zoo import MODELS, train_model
from training.config import TableConfig
from training.engine import EngineOptions
from training.pipeline.two_passes import LayerOutputs, used_outside

EARLY = ("synchronous", "prioritised", "split")


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "Reentrant"])
def test_a_model_of_any_shape_is_trained_to_the_bit(on_ranks: Any, kind: str) -> None:
    for found in on_ranks(train_model, 2, kind, EARLY):
        losses, table, dense = found["synchronous"]
        assert losses[-1] != losses[0] or not losses[0]
        for name in EARLY[1:]:
            assert not isinstance(found[name], str), found[name]
            assert found[name][0] == losses, name
            np.testing.assert_array_equal(found[name][1], table, err_msg=name)
            for parameter, value in dense.items():
                np.testing.assert_array_equal(found[name][2][parameter], value, err_msg=name)


def test_a_backward_pass_that_cannot_be_taken_apart_is_refused_on_every_rank(on_ranks: Any) -> None:
    for found in on_ranks(train_model, 2, "Reentrant", ("synchronous", "split", "auto")):
        assert found["split"].startswith("SplitRefusedError: ")
        assert found["auto"][0] == found["synchronous"][0]  # auto goes on without it


def test_a_use_outside_the_layer_is_read_off_the_graph_not_off_the_gradient() -> None:
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    outputs = LayerOutputs([layer, other])
    owners = {p: m for m in (layer, other) for p in m.parameters()}

    def outside(before: bool, after: bool) -> set[nn.Parameter]:
        with outputs.recorded() as recorded:
            first = layer(x) + (0.0 * (x @ other.weight) if before else 0.0)
            loss = (other(first) + (0.0 * (x @ other.weight) if after else 0.0)).sum()
        return used_outside(loss, recorded, outputs.spans, owners)

    assert outside(before=False, after=False) == set()
    assert outside(before=False, after=True) == {other.weight}
    # here every way to the loss passes the layer's output: it is the moment of use that tells
    assert outside(before=True, after=False) == {other.weight}


@pytest.mark.parametrize(
    "setting",
    [{"precision": "fp8"}, {"clip_norm": -1.0}, {"micro_batches": 0}, {"chunk_bytes": 0}],
)
def test_an_engines_options_have_bounds(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        EngineOptions(**setting)


def test_a_table_has_at_least_one_row() -> None:
    with pytest.raises(ConfigError, match="num_rows"):
        TableConfig(name="item", num_rows=0, width=4)
