"""`seqscale profile`: what imbalance would cost on many GPUs, from a file or a store.

Before: files of interactions, or a sequence store.   After: the console.
Needs the base install only: the cost of a sequence is not measured but stated, by the named model
and device in training/planning/cost.py, and the output says so.
Price: reading and sorting the file; it is kept in a temporary folder (TMPDIR) and removed. A store
is opened as it is. `kill -9` leaves that folder, so the store in it has pseudonyms of a throw-away
key that is written nowhere; only what DuckDB spills while it reads holds ids. The key is drawn from
the files' own bytes rather than by chance: users stand in the order of their pseudonyms, and a file
is to be profiled the same each time. That is one more reading of the files, 2.1 s a GiB measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analytics.errors import ConfigError
from analytics.forecasts import SEQUENCES_PER_RANK
from analytics.group_size import MIN_GROUP_USERS
from analytics.interactions import PreparedData, SplitFiles, prepare
from analytics.preparation import Preparation
from analytics.prepared import prepared_of, published
from analytics.profile import Profile, profile_store
from analytics.profile_report import profile_markdown
from analytics.pseudonyms import PseudonymKey
from analytics.rules import HistoryRules
from analytics.schema import DimPrice
from analytics.sources.files import find_files, unreadable
from analytics.sources.scan import ReadingOptions
from analytics.store import SequenceStore, open_store
from flows.preparing import MAX_HISTORY, MIN_HISTORY
from flows.recording import record_profile
from flows.steps import check_for_store, is_store, writing_under
from training.config import TrainConfig
from training.planning.cost import NAMED_COSTS, CostModel
from training.planning.forecast import FORECAST_RANKS

LOGGER = logging.getLogger("seqscale.profile")
MAX_BATCH = 4_194_304  # sequences of a global batch; the forecast holds twenty of them
DEFAULT_PREPARATION = Preparation(
    history=HistoryRules(min_history=MIN_HISTORY, max_history=MAX_HISTORY)
)
# hashed before the bytes: the SHA-256 of these alone, which a store tells, says nothing of the key
_keyed = functools.partial(hashlib.sha256, b"seqscale profile, throw-away key")


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
    split_files: SplitFiles | None = None,
    for_files: Sequence[str] = (),
    min_group_users: int = MIN_GROUP_USERS,
    sizes_per_rank: tuple[int, ...] = SEQUENCES_PER_RANK,
    record_in: Path | None = None,
) -> FileProfile:
    """Profile a sequence store where it lies, or files, prepared in a temporary folder.

    source: a store's folder, else a file, a folder or a glob of interactions; `reading`,
    `preparation` and `split_files` are for these alone, and so is what the options named in
    for_files say. sizes_per_rank: further sequences per rank to forecast. record_in: a runs folder
    whose warehouse is to have the profile.
    Raises InputError for a file that cannot be used, StoreError for a damaged store, ConfigError
    for an unknown cost model and for options that a store cannot follow.
    """
    check_for_store(source, for_files)
    cost = named_cost(cost_name)
    if num_gpus * sequences_per_rank > MAX_BATCH:
        raise ConfigError(
            f"{num_gpus} GPUs x {sequences_per_rank} sequences make a global batch of "
            f"{num_gpus * sequences_per_rank:,}; at most {MAX_BATCH:,} are forecast. Lower --gpus "
            "or --sequences-per-rank: shares change little beyond that."
        )
    with _opened(source, reading, preparation, split_files) as (prepared, store):
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
        if record_in is not None:
            name = record_profile(
                prepared, made, price, runs_dir=record_in, min_group_users=min_group_users
            )
            LOGGER.info("profile: in the warehouse of %s as %s", record_in, name)
    del dataset["store_dir"]  # a temporary one is gone by now
    return FileProfile(prepared=prepared, profile=made, num_gpus=num_gpus, dataset=dataset)


@contextlib.contextmanager
def _opened(
    source: Path | str,
    reading: ReadingOptions | None,
    preparation: Preparation | None,
    split_files: SplitFiles | None,
) -> Iterator[tuple[PreparedData, SequenceStore]]:
    """The store that is there, or one that is made for the time of the profile."""
    if is_store(source):
        LOGGER.info("profile: opening the store %s", source)
        store = open_store(Path(source))
        yield prepared_of(store), store
        return
    place = Path(tempfile.gettempdir())
    parts = [source] if split_files is None else [source, split_files.validation, split_files.test]
    with (
        writing_under(place, otherwise="choose another place with TMPDIR"),
        tempfile.TemporaryDirectory(prefix="seqscale-profile-") as folder,
    ):
        LOGGER.info("profile: reading %s", source)
        prepared = prepare(
            source,
            Path(folder),
            reading=reading,
            preparation=preparation or DEFAULT_PREPARATION,
            key=throwaway_key(parts),
            split_files=split_files,
        )
        yield prepared, open_store(Path(prepared.store_dir))


def throwaway_key(parts: Sequence[Path | str]) -> PseudonymKey:
    """A key that only who has all these files can make again, and who has them has the ids.

    Raises InputError when a file cannot be read.
    """
    digest = _keyed()
    for part in parts:
        try:
            for path in find_files(part).files:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, _keyed).digest())
        except OSError as error:
            raise unreadable(part, error) from error
    return PseudonymKey(secret=digest.digest(), where="the files' own bytes")


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
