"""One start of the pipeline, as one record: what to read, what to train, where, at which price.

Before: flows/cli.py, from options.   After: flows/steps.py; as JSON, the parameter of the flow.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import secrets
import shutil
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analytics.catalogue import CATALOGUE, default_cache_dir, fetch
from analytics.errors import ConfigError
from analytics.group_size import MIN_GROUP_USERS, check_group_users
from analytics.interactions import TO_FILL, Naming, SplitFiles
from analytics.preparation import Preparation
from analytics.schema import DimPrice
from analytics.sources.options import ReadingOptions
from flows.private import FOLDER_MODE
from training.config import RunConfig

if typing.TYPE_CHECKING:
    from flows.options import NamingFlags, ReadingFlags

DEFAULT_DATASET = "ml-100k"
_PIPELINE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
# names of the runs folder's own; its files all have a dot
_TAKEN = ("erasures", "export", "mlartifacts")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Everything that one start of `seqscale run` was asked for. Paths are absolute."""

    pipeline_id: str
    runs_dir: str
    interactions: str
    config: RunConfig
    price: DimPrice
    dataset_name: str | None = None  # None: the file's name
    terms: str = "unknown"
    reading: ReadingOptions = dataclasses.field(default_factory=ReadingOptions)
    preparation: Preparation = dataclasses.field(default_factory=Preparation)
    validation_file: str | None = None  # of a given split, with test_file
    test_file: str | None = None
    purpose: str = TO_FILL  # for the data sheet
    lawful_basis: str = TO_FILL
    keep_user_ids: bool = False  # False: pseudonyms; the key is found by whoever prepares
    min_group_users: int = MIN_GROUP_USERS  # no published figure tells of fewer users
    num_train_retries: int = 0  # further attempts after a training that ended badly
    train_timeout_s: float = 86_400.0

    def __post_init__(self) -> None:
        check_group_users(self.min_group_users)
        if not _PIPELINE_ID.fullmatch(self.pipeline_id) or self.pipeline_id in _TAKEN:
            raise ConfigError(
                f"The pipeline id '{self.pipeline_id}' cannot name a folder here; use up to 100 "
                "letters, digits, '-' and '_', the first a letter or digit, and none of "
                f"{', '.join(_TAKEN)}."
            )

    @property
    def naming(self) -> Naming:
        """What the store is called and what its data sheet says."""
        return Naming(
            dataset_name=self.dataset_name,
            terms=self.terms,
            purpose=self.purpose,
            lawful_basis=self.lawful_basis,
        )

    @property
    def split_files(self) -> SplitFiles | None:
        """The files of a given split."""
        if self.validation_file is None or self.test_file is None:
            return None
        return SplitFiles(validation=self.validation_file, test=self.test_file)

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return Path(self.runs_dir)

    @property
    def work(self) -> Path:
        """What may be deleted at any time: stores, plans, calibrations, Prefect's own files."""
        return self.runs / ".work"

    @property
    def pipeline_dir(self) -> Path:
        """The folder of this start alone."""
        return self.runs / self.pipeline_id

    @property
    def journal_dir(self) -> Path:
        """The flow's own records."""
        return self.pipeline_dir / "journal"

    @property
    def sequences_per_rank(self) -> int:
        """Mean sequences of a rank in a full global batch, at least 1."""
        return max(1, self.config.train.global_batch_sequences // self.config.num_ranks)


def new_pipeline_id() -> str:
    """A name no other start has: the time in UTC and four random hex digits."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def source_of(
    interactions: str | None, reading: ReadingFlags, naming: NamingFlags
) -> dict[str, Any]:
    """What is read and how, as fields of a request: the given files, or the catalogue's
    MovieLens-100K, whose ids are public already.
    """
    if interactions is not None:
        return {
            "interactions": str(Path(interactions).resolve()),
            "reading": reading.reading(),
            "dataset_name": naming.name,
            "terms": naming.terms,
            "keep_user_ids": naming.keep_user_ids,
        }
    entry = CATALOGUE[DEFAULT_DATASET]
    said = {name: value for name, value in dataclasses.asdict(reading).items() if value is not None}
    return {
        "interactions": str(fetch(DEFAULT_DATASET, default_cache_dir())),
        "reading": dataclasses.replace(entry.reading, **said),
        "dataset_name": naming.name or DEFAULT_DATASET,
        "terms": entry.terms,
        "keep_user_ids": True,
    }


def configure(
    base: RunConfig,
    *,
    ranks: int | None = None,
    batch: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    lookahead: int | None = None,
    cut_giants: bool | None = None,
    max_tokens_per_rank: int | None = None,
    schedule: str | None = None,
    train: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A recipe with what the command line says otherwise.

    schedule: of every arm but the first, which is what the others are compared with. train:
    further settings of TrainConfig by name.
    Raises ConfigError when a value is out of its bounds.
    """
    changes: dict[str, Any] = {"global_batch_sequences": batch, "num_epochs": epochs, "seed": seed}
    changes |= {"lookahead_batches": lookahead, "split_giants": cut_giants}
    changes |= {"max_tokens_per_rank": max_tokens_per_rank}
    given = {name: value for name, value in changes.items() if value is not None}
    given |= train or {}
    first, *others = base.arms
    if schedule is not None:
        others = [dataclasses.replace(arm, schedule=schedule) for arm in others]
    return dataclasses.replace(
        base,
        arms=(first, *others),
        train=dataclasses.replace(base.train, **given),
        num_ranks=base.num_ranks if ranks is None else ranks,
    )


def check_device(config: RunConfig) -> None:
    """Raise ConfigError when GPUs are asked for on a host without an NVIDIA driver."""
    if config.train.device != "cuda" or Path("/proc/driver/nvidia/version").exists():
        return
    if shutil.which("nvidia-smi") is None:
        raise ConfigError(
            "device is 'cuda', but this host has no NVIDIA driver. Install it and torch's CUDA "
            "build, or leave --device out to train on CPU."
        )


def check_free(request: RunRequest) -> None:
    """Raise ConfigError when the folder of this start is already there."""
    if request.pipeline_dir.exists():
        raise ConfigError(
            f"{request.pipeline_dir} is already there: a run never writes into the folder of "
            "another. Leave --pipeline-id out or give a name that is free."
        )


def claim(request: RunRequest) -> Path:
    """Make the folder of this start; it belongs to nobody else, and nobody else can enter it.

    Raises ConfigError when it is already there.
    """
    try:
        request.pipeline_dir.mkdir(parents=True, exist_ok=False, mode=FOLDER_MODE)
    except FileExistsError:
        check_free(request)
        raise
    return request.pipeline_dir
