"""Complete run configurations by name; a recipe is a function that returns one.

Standard library only. A recipe is the place for numbers that were found by trying; each says where
they come from.
"""

from __future__ import annotations

from collections.abc import Callable

from analytics.errors import ConfigError
from training.config import ModelConfig, RunConfig, TrainConfig

# After how many steps a run refits its cost model, and again after how many more: twenty steps of
# two ranks are enough rows to fit, and a hundred steps are some seconds of training.
REFIT_STEPS = (20, 100)


def demo_cpu() -> RunConfig:
    """The main job: two CPU ranks, MovieLens-sized data, a minute and a half of training."""
    return RunConfig(
        recipe="demo_cpu",
        train=TrainConfig(refit_first_step=REFIT_STEPS[0], refit_interval_steps=REFIT_STEPS[1]),
    )


def smoke_cpu() -> RunConfig:
    """The main job cut down for tests: one epoch of a tiny model, seconds of training."""
    return RunConfig(
        recipe="smoke_cpu",
        model=ModelConfig(embedding_dim=16, num_blocks=1, num_heads=2, ffn_dim=32),
        train=TrainConfig(num_epochs=1, block_steps=3, num_negatives=16),
    )


RECIPES: dict[str, Callable[[], RunConfig]] = {"demo_cpu": demo_cpu, "smoke_cpu": smoke_cpu}


def recipe(name: str) -> RunConfig:
    """The recipe called `name`.

    Raises ConfigError that lists the known names.
    """
    if name not in RECIPES:
        raise ConfigError(f"There is no recipe '{name}'; known are {', '.join(sorted(RECIPES))}.")
    return RECIPES[name]()
