from __future__ import annotations

import pytest
import torch

from analytics.errors import ConfigError
from training.calibrate import batches_to_time, calibrate, step_s, synthetic_batch
from training.config import ModelConfig, RunConfig, TrainConfig
from training.model import SASRec

CONFIG = RunConfig(
    recipe="test",
    model=ModelConfig(embedding_dim=16, num_blocks=1, ffn_dim=16, max_length=64),
    train=TrainConfig(num_negatives=4),
)


def test_short_sequences_are_timed_alone_and_together() -> None:
    # up to 1,500 events and 16 sequences together: 1500 // 100 = 15 of 100, one of 800
    assert batches_to_time([10, 100, 800]) == [(10,), (100,), (800,), (10,) * 16, (100,) * 15]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_takes_time_and_leaves_a_gradient(precision: str) -> None:
    model = SASRec(CONFIG.model)
    batch = synthetic_batch(model, (8, 3), 4, 20)
    assert step_s(model, batch, 20, precision=precision) > 0
    assert all(p.grad is not None for p in model.parameters())


def test_a_calibration_names_where_it_was_made() -> None:
    cost = calibrate(CONFIG, [4, 16, 64], 100)
    assert "one thread, 6 batches" in cost.source
    assert min(cost.t_step_s, cost.c0_s, cost.a_s, cost.b_s) >= 0


def test_attention_that_is_not_there_is_refused_before_anything_is_timed() -> None:
    config = RunConfig(recipe="test", model=ModelConfig(attention="varlen"))
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        calibrate(config, [4, 16, 64], 100)


@pytest.mark.gpu
def test_a_calibration_on_a_gpu_names_the_gpu() -> None:
    cost = calibrate(CONFIG, [4, 16, 64], 100, torch.device("cuda", 0))
    assert torch.cuda.get_device_name(0) in cost.source
