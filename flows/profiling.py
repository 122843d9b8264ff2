"""`seqscale profile`: what imbalance would cost on many GPUs, from a file or a store.

Before: files of interactions, or a sequence store.   After: the console.
Needs the base install only: the cost of a sequence is not measured but stated, by the named model
and device in training/planning/cost.py, and the output says so.
Price: reading and sorting the file; it is kept in a temporary folder (TMPDIR) and removed. A store
is opened as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analytics.errors import ConfigError
from analytics.forecasts import SEQUENCES_PER_RANK
from analytics.group_size import MIN_GROUP_USERS
from analytics.interactions import PreparedData, prepare
from analytics.preparation import Preparation
from analytics.prepared import prepared_of, published
from analytics.profile import Profile, profile_store
from analytics.profile_report import profile_markdown
from analytics.rules import HistoryRules
from analytics.schema import DimPrice
from analytics.sources.scan import ReadingOptions
from analytics.store import HEADER_NAME, SequenceStore, open_store
from flows.steps import writing_under
from training.config import RunConfig, TrainConfig
from training.planning.cost import NAMED_COSTS, CostModel
from training.planning.forecast import FORECAST_RANKS

LOGGER = logging.getLogger("seqscale.profile")
MAX_BATCH = 4_194_304  # sequences of a global batch; the forecast holds twenty of them
MAX_HISTORY = 16_384  # events kept of a user; the longest training length that is in use today


DEFAULT_PREPARATION = Preparation(
    history=HistoryRules(min_history=RunConfig.min_history, max_history=MAX_HISTORY)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileProfile:
    """What a file holds and what its imbalance would cost."""

    prepared: PreparedData
    profile: Profile
    num_gpus: int
    dataset: dict[str, Any]  # what may be told of `prepared`

    def plain(self) -> dict[str, Any]:
        """As plain values that tell of no single user."""
        return {
            "dataset": self.dataset,
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
    source: Path | str,
    *,
    price: DimPrice,
    num_gpus: int,
    sequences_per_rank: int,
    cost_name: str,
    seed: int,
    reading: ReadingOptions | None = None,
    preparation: Preparation | None = None,
    min_group_users: int = MIN_GROUP_USERS,
    sizes_per_rank: tuple[int, ...] = SEQUENCES_PER_RANK,
) -> FileProfile:
    """Profile a sequence store where it lies, or files, prepared in a temporary folder.

    source: a store's folder, else a file, a folder or a glob of interactions; `reading` and
    `preparation` are for these alone. sizes_per_rank: further sequences per rank to forecast.
    Raises InputError for a file that cannot be used, StoreError for a damaged store, ConfigError
    for an unknown cost model.
    """
    cost = named_cost(cost_name)
    if num_gpus * sequences_per_rank > MAX_BATCH:
        raise ConfigError(
            f"{num_gpus} GPUs x {sequences_per_rank} sequences make a global batch of "
            f"{num_gpus * sequences_per_rank:,}; at most {MAX_BATCH:,} are forecast. Lower --gpus "
            "or --sequences-per-rank: shares change little beyond that."
        )
    with _opened(source, reading, preparation) as (prepared, store):
        LOGGER.info("profile: %d users, %d items", prepared.num_users, prepared.num_items)
        made = profile_store(
            store,
            cost,
            price=price,
            sequences_per_rank=sequences_per_rank,
            global_batch_sequences=num_gpus * sequences_per_rank,
            ranks=tuple(sorted({*FORECAST_RANKS, num_gpus})),
            seed=seed,
            num_negatives=TrainConfig.num_negatives,
            min_group_users=min_group_users,
            sizes_per_rank=sizes_per_rank,
        )
        dataset = published(prepared, min_group_users)
    del dataset["store_dir"]  # a temporary one is gone by now
    return FileProfile(prepared=prepared, profile=made, num_gpus=num_gpus, dataset=dataset)


@contextlib.contextmanager
def _opened(
    source: Path | str, reading: ReadingOptions | None, preparation: Preparation | None
) -> Iterator[tuple[PreparedData, SequenceStore]]:
    """The store that is there, or one that is made for the time of the profile."""
    if (Path(source) / HEADER_NAME).is_file():
        LOGGER.info("profile: opening the store %s", source)
        store = open_store(Path(source))
        yield prepared_of(store), store
        return
    place = Path(tempfile.gettempdir())
    with writing_under(place), tempfile.TemporaryDirectory(prefix="seqscale-profile-") as folder:
        LOGGER.info("profile: reading %s", source)
        prepared = prepare(
            source,
            Path(folder),
            reading=reading,
            preparation=preparation or DEFAULT_PREPARATION,
        )
        yield prepared, open_store(Path(prepared.store_dir))


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
