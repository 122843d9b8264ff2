"""`seqscale profile`: what imbalance would cost on many GPUs, from a file alone.

Before: a file of interactions.   After: the console.
Needs the base install only: the cost of a sequence is not measured but stated, by the named model
and device in training/planning/cost.py, and the output says so.
Price: reading and sorting the file; it is kept in a temporary folder (TMPDIR) and removed.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

from analytics.errors import ConfigError, InputError
from analytics.interactions import InteractionColumns, PreparedData, prepare
from analytics.profile import Profile, profile_store
from analytics.profile_report import profile_markdown
from analytics.schema import DimPrice
from analytics.store import open_store
from flows.steps import writing_under
from training.config import RunConfig, TrainConfig
from training.planning.cost import NAMED_COSTS, CostModel
from training.planning.forecast import FORECAST_RANKS

LOGGER = logging.getLogger("seqscale.profile")
MAX_BATCH = 4_194_304  # sequences of a global batch; the forecast holds twenty of them
MAX_HISTORY = 16_384  # events kept of a user; the longest training length that is in use today


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileProfile:
    """What a file holds and what its imbalance would cost."""

    prepared: PreparedData
    profile: Profile
    num_gpus: int

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        data = dataclasses.asdict(self.prepared)
        del data["store_dir"]  # it is gone by now
        return {
            "dataset": data,
            "num_gpus": self.num_gpus,
            "profile": dataclasses.asdict(self.profile),
        }


def named_cost(name: str) -> CostModel:
    """Stated cost coefficients.

    Raises ConfigError that lists the known names.
    """
    if name not in NAMED_COSTS:
        raise ConfigError(
            f"There is no cost model '{name}'; known are {', '.join(sorted(NAMED_COSTS))}. "
            "Name one of these with --cost-model."
        )
    return NAMED_COSTS[name]


def profile_file(
    source: Path,
    *,
    columns: InteractionColumns,
    price: DimPrice,
    num_gpus: int,
    sequences_per_rank: int,
    cost_name: str,
    seed: int,
    drop_unparsable_times: bool = False,
) -> FileProfile:
    """Prepare a file in a temporary folder and profile it.

    Raises InputError for a file that cannot be used, ConfigError for an unknown cost model.
    """
    cost = named_cost(cost_name)
    if num_gpus * sequences_per_rank > MAX_BATCH:
        raise ConfigError(
            f"{num_gpus} GPUs x {sequences_per_rank} sequences make a global batch of "
            f"{num_gpus * sequences_per_rank:,}; at most {MAX_BATCH:,} are forecast. Lower --gpus "
            "or --sequences-per-rank: shares change little beyond that."
        )
    if not source.is_file():
        raise InputError(f"{source} is not a file; give a CSV or Parquet file of interactions.")
    place = Path(tempfile.gettempdir())
    with writing_under(place), tempfile.TemporaryDirectory(prefix="seqscale-profile-") as folder:
        LOGGER.info("profile: reading %s", source)
        prepared = prepare(
            source,
            Path(folder),
            columns=columns,
            min_history=RunConfig.min_history,
            max_history=MAX_HISTORY,
            drop_unparsable_times=drop_unparsable_times,
        )
        LOGGER.info("profile: %d users, %d items", prepared.num_users, prepared.num_items)
        made = profile_store(
            open_store(Path(prepared.store_dir)),
            cost,
            price=price,
            sequences_per_rank=sequences_per_rank,
            global_batch_sequences=num_gpus * sequences_per_rank,
            ranks=tuple(sorted({*FORECAST_RANKS, num_gpus})),
            seed=seed,
            num_negatives=TrainConfig.num_negatives,
        )
    return FileProfile(prepared=prepared, profile=made, num_gpus=num_gpus)


def show(result: FileProfile) -> None:
    """Print the profile on standard output."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    text = profile_markdown(result.profile)
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
