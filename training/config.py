"""What a run is: data, model, training and price, each a frozen record with its bounds.

Standard library only, so that the flow, the command line and the ranks read the same record.
A configuration travels as JSON; its hash names it in caches and in the warehouse.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from pathlib import Path
from typing import Any, TypeVar

from analytics.errors import ConfigError

PLACEMENTS = (
    "random_equal",
    "serpentine",
    "lpt_equal",
    "lpt_free",
    "lpt_fast",
    "karmarkar_karp",
)
SCHEDULES = ("synchronous", "ids_ahead", "prioritised", "split", "auto")
TABLE_OPTIMIZERS = ("rowwise_adagrad", "adagrad", "lazy_adam", "sgd")
ROW_PLACEMENTS = ("round_robin", "hash", "replicated")
PRECISIONS = ("fp32", "bf16")
ATTENTIONS = ("auto", "loop", "padded", "varlen", "flex")
TRANSPORTS = ("auto", "gloo", "nccl", "host_staged")
DEVICES = ("cpu", "cuda")

Config = TypeVar("Config")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; known are {', '.join(known)}.")


def _bounded(name: str, value: float, lower: float, upper: float) -> None:
    if not lower <= value <= upper:
        raise ConfigError(
            f"{name} is {value!r}; it must lie between {lower:g} and {upper:g}. "
            f"Change {name} in the recipe or on the command line."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """SASRec: causal attention over a user's history, scores by cosine with the item table."""

    embedding_dim: int = 64  # width of item rows and of the hidden state
    num_blocks: int = 2
    num_heads: int = 2
    ffn_dim: int = 128  # width inside the feed-forward part
    dropout: float = 0.2  # share of hidden units dropped, on inputs and on both residual branches
    max_length: int = 4096  # longest training history [events]; longer ones keep the newest
    temperature: float = 0.05  # divides the cosine before the softmax
    attention: str = "auto"  # back end, training/attention.py; all compute the same

    def __post_init__(self) -> None:
        _bounded("embedding_dim", self.embedding_dim, 4, 4096)
        _bounded("num_blocks", self.num_blocks, 1, 64)
        _bounded("num_heads", self.num_heads, 1, 64)
        _bounded("ffn_dim", self.ffn_dim, 4, 65536)
        _bounded("dropout", self.dropout, 0.0, 0.9)
        _bounded("max_length", self.max_length, 2, 1_000_000)
        _bounded("temperature", self.temperature, 1e-3, 10.0)
        _one_of("attention", self.attention, ATTENTIONS)
        if self.embedding_dim % self.num_heads or self.embedding_dim % 4:
            raise ConfigError(
                f"embedding_dim is {self.embedding_dim}; it must be a multiple of 4 and of "
                f"num_heads ({self.num_heads})."
            )

    @property
    def max_trained_events(self) -> int:
        """Events of a history that are trained on: max_length inputs and the last one's target."""
        return self.max_length + 1

    @property
    def max_history(self) -> int:
        """Events of a history worth keeping: those trained on and the two held out."""
        return self.max_trained_events + 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig:
    """One embedding table, its rows spread over the ranks."""

    name: str
    num_rows: int
    width: int  # entries of a row
    optimizer: str = "rowwise_adagrad"
    learning_rate: float = 0.1
    eps: float = 1e-8  # beside the root in the optimiser's denominator
    beta1: float = 0.9  # lazy Adam's
    beta2: float = 0.999  # lazy Adam's
    placement: str = "round_robin"  # which rank owns which row; replicated: every rank all rows

    def __post_init__(self) -> None:
        _bounded(f"table {self.name}: num_rows", self.num_rows, 1, 2**40)
        _bounded(f"table {self.name}: width", self.width, 1, 65536)
        _bounded(f"table {self.name}: learning_rate", self.learning_rate, 0.0, 100.0)
        _bounded(f"table {self.name}: eps", self.eps, 0.0, 1.0)
        _bounded(f"table {self.name}: beta1", self.beta1, 0.0, 0.999999)
        _bounded(f"table {self.name}: beta2", self.beta2, 0.0, 0.999999)
        _one_of(f"table {self.name}: optimizer", self.optimizer, TABLE_OPTIMIZERS)
        _one_of(f"table {self.name}: placement", self.placement, ROW_PLACEMENTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the model is trained; the same for every arm."""

    num_epochs: int = 10
    global_batch_sequences: int = 32  # sequences in one optimiser step over all ranks
    block_steps: int = 10  # steps that an arm runs before the next arm takes its turn
    lookahead_batches: int = 1  # global batches whose sequences are dealt anew together; 1: none
    split_giants: bool = True  # cut a history that costs more than a rank's share of a mean batch
    max_tokens_per_rank: int | None = None  # events that a rank may hold in one step; None: any
    num_negatives: int = 128  # negatives a sequence, shared by its positions
    micro_batches: int = 1  # parts of a rank's batch inside one optimiser step; bounds memory
    precision: str = "fp32"  # of the dense part's products; tables, sums and states stay fp32
    clip_norm: float | None = None  # greatest global norm of a step's gradient; None: any
    skip_non_finite: bool = False  # leave out a step whose gradient is not finite, and count it
    table_optimizer: str = "rowwise_adagrad"
    table_placement: str = "round_robin"
    table_learning_rate: float = 0.1  # of the item table
    dense_learning_rate: float = 2e-3  # AdamW, everything else
    weight_decay: float = 0.0  # AdamW's, on matrices only
    seed: int = 1
    collective_timeout_s: int = 45  # a rank that waits longer than this ends with the reason
    device: str = "cpu"  # where ranks compute; ranks share the GPUs of their host in turn
    transport: str = "auto"  # how tensors travel; auto: what a start-up measurement prefers
    nccl_zero_cta: bool = False  # ask NCCL to use no compute units; comm/nccl.py says where it does
    link_mbit_per_s: float | None = None  # emulate a link this slow between the ranks; None: none
    refit_first_step: int = 0  # refit the cost model after this step; 0: keep the calibration
    refit_interval_steps: int = 0  # and again after so many more; 0: once
    record_collectives: bool = True  # a record for every wait of every step, beside the step's

    def __post_init__(self) -> None:
        _bounded("num_epochs", self.num_epochs, 1, 10_000)
        _bounded("global_batch_sequences", self.global_batch_sequences, 1, 10_000_000)
        _bounded("block_steps", self.block_steps, 1, 1_000_000)
        _bounded("lookahead_batches", self.lookahead_batches, 1, 1000)
        if self.max_tokens_per_rank is not None:
            _bounded("max_tokens_per_rank", self.max_tokens_per_rank, 2, 1_000_000_000)
        _bounded("num_negatives", self.num_negatives, 1, 1_000_000)
        _bounded("micro_batches", self.micro_batches, 1, 1024)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("device", self.device, DEVICES)
        _one_of("transport", self.transport, TRANSPORTS)
        if self.device == "cpu" and self.transport in ("nccl", "host_staged"):
            raise ConfigError(
                f"transport is '{self.transport}', which carries tensors of GPUs, and device is "
                "'cpu'. Leave --transport out, or add --device cuda."
            )
        if self.device == "cuda" and self.transport == "gloo":
            raise ConfigError(
                "transport is 'gloo', which carries CPU tensors only, and device is 'cuda'. Take "
                "'host_staged', which brings them to the host, or leave --transport out."
            )
        _one_of("table_optimizer", self.table_optimizer, TABLE_OPTIMIZERS)
        _one_of("table_placement", self.table_placement, ROW_PLACEMENTS[:2])
        if self.clip_norm is not None:
            _bounded("clip_norm", self.clip_norm, 1e-12, 1e12)
        if self.link_mbit_per_s is not None:
            _bounded("link_mbit_per_s", self.link_mbit_per_s, 0.1, 1e6)
        _bounded("refit_first_step", self.refit_first_step, 0, 1_000_000)
        _bounded("refit_interval_steps", self.refit_interval_steps, 0, 1_000_000)
        _bounded("table_learning_rate", self.table_learning_rate, 0.0, 100.0)
        _bounded("dense_learning_rate", self.dense_learning_rate, 0.0, 100.0)
        _bounded("weight_decay", self.weight_decay, 0.0, 10.0)
        _bounded("seed", self.seed, 0, 2**31 - 1)
        _bounded("collective_timeout_s", self.collective_timeout_s, 5, 3600)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmConfig:
    """One way to place and to schedule the same global batches."""

    name: str
    placement: str
    schedule: str

    def __post_init__(self) -> None:
        _one_of("placement", self.placement, PLACEMENTS)
        _one_of("schedule", self.schedule, SCHEDULES)


def schedule_refusal(schedule: str, *, needs_whole_gradient: bool) -> str | None:
    """Why a schedule cannot clip a gradient or leave a step out; None when nothing is asked of it.

    Both need the whole gradient in hand before any of it is applied.
    """
    if not needs_whole_gradient or schedule not in ("prioritised", "split"):
        return None
    return (
        f"The schedule '{schedule}' applies part of a step's gradient before the rest is known, so "
        "it can neither clip by the global norm nor leave out a step whose gradient is not finite. "
        "Take 'synchronous', 'ids_ahead' or 'auto', or drop clip_norm and skip_non_finite."
    )


BASELINE = ArmConfig(name="baseline", placement="random_equal", schedule="synchronous")
BALANCED = ArmConfig(name="balanced", placement="lpt_free", schedule="auto")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run: model, training, arms and ranks."""

    recipe: str
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    arms: tuple[ArmConfig, ...] = (BASELINE, BALANCED)
    num_ranks: int = 2
    min_history: int = 5  # users with fewer events are dropped: nothing to train or to test on

    def __post_init__(self) -> None:
        _bounded("num_ranks", self.num_ranks, 1, 4096)
        _bounded("min_history", self.min_history, 4, 1_000_000)
        if self.train.global_batch_sequences < self.num_ranks:
            raise ConfigError(
                f"global_batch_sequences is {self.train.global_batch_sequences}, fewer than the "
                f"{self.num_ranks} ranks, so some ranks would never work. Raise --batch to at "
                f"least {self.num_ranks} or lower --ranks."
            )
        whole = self.train.clip_norm is not None or self.train.skip_non_finite
        for arm in self.arms:
            reason = schedule_refusal(arm.schedule, needs_whole_gradient=whole)
            if reason is not None:
                raise ConfigError(f"Arm {arm.name}: {reason}")
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"arms are named {names}; at least one is needed, each name once.")

    def sha256(self) -> str:
        """Hash of the whole configuration; equal configurations have equal hashes."""
        return content_hash(to_json(self))

    def scaling_sha256(self) -> str:
        """Hash of all but ranks, global batch and seed: one for runs that differ in scale alone."""
        plain = dataclasses.asdict(self)
        del plain["num_ranks"], plain["train"]["global_batch_sequences"], plain["train"]["seed"]
        return content_hash(json.dumps(plain, sort_keys=True, allow_nan=False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainJob:
    """Everything the ranks of one attempt need, handed over as one JSON file.

    Folders are absolute paths. `device_hour_cost` is the price of one device of `instance_type`.
    """

    pipeline_id: str
    attempt: int
    config: RunConfig
    dataset_id: str
    store_dir: str
    plan_dir: str
    attempt_dir: str  # journal/, parameters and evaluations of this attempt
    instance_type: str
    device_hour_cost: float
    currency: str
    launched_unix_ns: int | None = None  # when the ranks were started, UTC; None: not told

    def run_id(self, arm: str) -> str:
        """The name of one arm of this pipeline."""
        return f"{self.pipeline_id}-{arm}"

    @property
    def journal_dir(self) -> Path:
        """Where ranks, sampler and evaluation write their records."""
        return Path(self.attempt_dir) / "journal"

    def parameters_path(self, arm: str) -> Path:
        """The safetensors file with the arm's trained parameters, whole item table included."""
        return Path(self.attempt_dir) / f"{arm}.safetensors"


def read_job(path: Path) -> TrainJob:
    """The job that a flow has written for its ranks.

    Raises ConfigError when the file is missing or not a job.
    """
    try:
        return from_json(TrainJob, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: the job cannot be read ({error.strerror}). Start it with 'seqscale run'."
        ) from error


def to_json(config: Any) -> str:
    """A configuration as JSON with sorted keys."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True, allow_nan=False)


def from_json(kind: type[Config], text: str) -> Config:
    """A configuration from its JSON.

    Raises ConfigError when a key is unknown or missing, or a value out of bounds.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"The configuration is not JSON: {error}.") from error
    built: Config = _build(kind, raw)
    return built


def content_hash(text: str) -> str:
    """SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _build(kind: Any, raw: Any) -> Any:
    """A dataclass from nested plain values, guided by its type hints."""
    hints = typing.get_type_hints(kind)
    if not isinstance(raw, dict):
        raise ConfigError(f"{kind.__name__}: expected named settings, found {raw!r}.")
    unknown = sorted(set(raw) - set(hints))
    if unknown:
        raise ConfigError(
            f"{kind.__name__}: unknown setting '{unknown[0]}'; known are {', '.join(hints)}."
        )
    values: dict[str, Any] = {}
    for name, value in raw.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _build(hint, value)
        elif typing.get_origin(hint) is tuple:
            member = typing.get_args(hint)[0]
            values[name] = tuple(_build(member, item) for item in value)
        else:
            values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{kind.__name__}: {error}.") from error
