"""The options that several commands share, each defined once, and how a result is printed.

`with_options` spreads the fields of such a group over a command's own parameters, so that Typer
shows them one by one and the command receives them as one record.

Before: the command line.   After: flows/cli.py and the files of commands hand the records on.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

if typing.TYPE_CHECKING:  # imported inside, so that --help stays instant
    from analytics.interactions import Naming, SplitFiles
    from analytics.preparation import Preparation
    from analytics.sources.options import ReadingOptions

RUNS_DIR = Path("runs")
DEFAULT_INSTANCE = "p5.48xlarge"

RunsDir = Annotated[Path, typer.Option(help="Folder of warehouse, MLflow store and runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
MinGroup = Annotated[
    int, typer.Option(min=1, help="No published figure tells of fewer users than these.")
]
Instance = Annotated[str, typer.Option(help="Cloud instance whose price is applied.")]
Region = Annotated[
    str | None, typer.Option(help="Region of the price; the list's own if left out.")
]
Currency = Annotated[str, typer.Option(help="ISO 4217 code that every cost is given in.")]
Rates = Annotated[Path | None, typer.Option(help="CSV of dated rates for another currency.")]
Text = str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingFlags:
    """How a file is to be read; what is left out is found out and told."""

    format: Annotated[
        Text, typer.Option(help="csv, inter, json, json_sessions, lists or parquet.")
    ] = None
    user: Annotated[Text, typer.Option(help="Column of users, or its position from 1.")] = None
    item: Annotated[Text, typer.Option(help="Column of items, or its position from 1.")] = None
    time: Annotated[
        Text, typer.Option(help="Column of times; 'none': the file's order is that of time.")
    ] = None
    action: Annotated[Text, typer.Option(help="Column of actions to keep, or 'none'.")] = None
    rating: Annotated[Text, typer.Option(help="Column of ratings to keep, or 'none'.")] = None
    time_unit: Annotated[Text, typer.Option(help="s, ms, us, ns, iso or yyyymmdd.")] = None
    delimiter: Annotated[Text, typer.Option(help="Up to 4 bytes, or 'tab', 'space'.")] = None
    encoding: Annotated[Text, typer.Option(help="Such as utf-8, utf-16 or latin-1.")] = None
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether line 1 names columns.")
    ] = None

    def reading(self) -> ReadingOptions:
        """As the reader takes it."""
        from analytics.sources.options import ReadingOptions

        return ReadingOptions(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """How the ranks compute and communicate; what is left out is the recipe's."""

    schedule: Annotated[
        Text,
        typer.Option(
            help="Of the balanced arm: synchronous, ids_ahead, prioritised, split or auto, which "
            "tries all on the first steps."
        ),
    ] = None
    micro_batches: Annotated[
        int | None, typer.Option(help="Parts of a rank's batch inside one optimiser step.")
    ] = None
    precision: Annotated[Text, typer.Option(help="fp32 or bf16, of the dense part.")] = None
    clip_norm: Annotated[
        float | None,
        typer.Option(help="Greatest global norm of a gradient; synchronous and ids_ahead only."),
    ] = None
    skip_non_finite: Annotated[
        bool | None,
        typer.Option(
            "--skip-non-finite/--end-on-non-finite",
            help="Leave out a step whose gradient is not finite; synchronous and ids_ahead only.",
        ),
    ] = None
    table_optimizer: Annotated[
        Text, typer.Option(help="rowwise_adagrad, adagrad, lazy_adam or sgd.")
    ] = None
    table_placement: Annotated[Text, typer.Option(help="round_robin or hash.")] = None
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit/--no-refit",
            help="Refit the cost model from the run's own steps; without it a run repeats its "
            "figures to the bit.",
        ),
    ] = None
    transport: Annotated[
        Text, typer.Option(help="gloo, nccl, host_staged or auto, which measures them.")
    ] = None
    nccl_zero_cta: Annotated[
        bool | None,
        typer.Option("--nccl-zero-cta", help="Ask NCCL to take no compute units where it can."),
    ] = None
    link: Annotated[
        Text,
        typer.Option(help="Emulate a link between the ranks, such as 100mbit; figures say so."),
    ] = None
    device: Annotated[Text, typer.Option(help="cpu or cuda.")] = None
    record_collectives: Annotated[
        bool | None,
        typer.Option(
            "--record-collectives/--no-record-collectives",
            help="A record for every wait of every step; without it the steps' sums alone.",
        ),
    ] = None

    def changes(self) -> dict[str, Any]:
        """Settings of TrainConfig that were given.

        Raises ConfigError for a link that is no rate.
        """
        from training.links import parse_link
        from training.recipes import REFIT_STEPS

        given = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        given.pop("schedule", None)
        if "link" in given:
            given["link_mbit_per_s"] = parse_link(given.pop("link"))
        if "refit" in given:
            first, interval = REFIT_STEPS if given.pop("refit") else (0, 0)
            given |= {"refit_first_step": first, "refit_interval_steps": interval}
        return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleFlags:
    """Which rows and histories are kept, and how they are split."""

    drop_unparsable_times: Annotated[
        bool,
        typer.Option(
            "--drop-unparsable-times", help="Leave rows with unreadable times out and count."
        ),
    ] = False
    not_after: Annotated[
        Text, typer.Option(help="Later times are in the future and dropped; now when left out.")
    ] = None
    keep_days: Annotated[
        int | None, typer.Option(help="Retention: drop events older than so many days.")
    ] = None
    min_rating: Annotated[
        float | None, typer.Option(help="Drop rows rated lower (implicit feedback).")
    ] = None
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Drop rows equal in every column read.")
    ] = False
    repeats: Annotated[
        str, typer.Option(help="A user's events with one item: keep all, 'first' or 'last'.")
    ] = "keep"
    core: Annotated[int, typer.Option(help="k-core of users and items; 1 drops nothing.")] = 1
    min_history: Annotated[
        int | None, typer.Option(help="Drop users with fewer events; 5 when left out.")
    ] = None
    max_history: Annotated[
        int | None,
        typer.Option(
            help="Keep so many of a user's newest events; when left out 16,384, and in a run what "
            "the model reads."
        ),
    ] = None
    split: Annotated[
        str, typer.Option(help="'last' (leave one out), 'time', or 'given' by files.")
    ] = "last"
    validation_from: Annotated[Text, typer.Option(help="Split by time: ISO 8601.")] = None
    test_from: Annotated[Text, typer.Option(help="Split by time: ISO 8601.")] = None
    validation_share: Annotated[
        float | None, typer.Option(help="Split by time: share of events before the test's.")
    ] = None
    test_share: Annotated[
        float | None, typer.Option(help="Split by time: share of the newest events.")
    ] = None
    validation: Annotated[Path | None, typer.Option(help="Given split: validation rows.")] = None
    test: Annotated[Path | None, typer.Option(help="Given split: test rows.")] = None

    def preparation(self, *, min_history: int, max_history: int) -> Preparation:
        """As the preparation takes it; the two bounds are what holds where none was given.

        Raises ConfigError for values out of their bounds.
        """
        from analytics.preparation import Preparation, instant_us
        from analytics.rules import HistoryRules
        from analytics.splits import SplitRule

        instants = {
            f"{name}_from_us": None if text is None else instant_us(text, f"--{name}-from")
            for name, text in (("validation", self.validation_from), ("test", self.test_from))
        }
        given = self.validation is not None or self.test is not None
        return Preparation(
            history=HistoryRules(
                min_history=min_history if self.min_history is None else self.min_history,
                max_history=max_history if self.max_history is None else self.max_history,
                core=self.core,
                repeats=self.repeats,
                drop_exact_duplicates=self.drop_duplicates,
            ),
            split=SplitRule(
                kind="given" if given and self.split == "last" else self.split,
                validation_share=self.validation_share,
                test_share=self.test_share,
                **instants,
            ),
            drop_unparsable_times=self.drop_unparsable_times,
            not_after=self.not_after,
            keep_days=self.keep_days,
            min_rating=self.min_rating,
        )

    def split_files(self) -> SplitFiles | None:
        """The files of a given split, or None.

        Raises ConfigError when only one of them is named.
        """
        from analytics.errors import ConfigError
        from analytics.interactions import SplitFiles

        if self.validation is None and self.test is None:
            return None
        if self.validation is None or self.test is None:
            raise ConfigError(
                "A given split needs both --validation FILE and --test FILE, beside the training "
                "rows."
            )
        return SplitFiles(validation=str(self.validation.resolve()), test=str(self.test.resolve()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamingFlags:
    """What a store is called, and what its data sheet says."""

    name: Annotated[Text, typer.Option(help="Name of the data set; the file's if left out.")] = None
    terms: Annotated[str, typer.Option(help="Terms of use of the data.")] = "unknown"
    purpose: Annotated[Text, typer.Option(help="What the data is processed for.")] = None
    lawful_basis: Annotated[Text, typer.Option(help="On which lawful basis.")] = None
    keep_user_ids: Annotated[
        bool,
        typer.Option("--keep-user-ids", help="Keep user ids as they are, without pseudonyms."),
    ] = False

    def naming(self) -> Naming:
        """As the preparation takes it."""
        from analytics.interactions import TO_FILL, Naming

        return Naming(
            dataset_name=self.name,
            terms=self.terms,
            purpose=self.purpose or TO_FILL,
            lawful_basis=self.lawful_basis or TO_FILL,
        )


def given_options(context: typer.Context, *groups: type, but: tuple[str, ...] = ()) -> list[str]:
    """The options of these groups that were typed, as they are typed, whatever their values.

    but: fields that do not count.
    """
    fields = {field.name for group in groups for field in dataclasses.fields(group)} - set(but)
    given = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in fields and source is not None and source.name == "COMMANDLINE":
            is_off = option.secondary_opts and context.params.get(option.name) is False
            given.append((option.secondary_opts if is_off else option.opts)[0])
    return given


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameters of a group's type become one option for each of its fields."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    own = [p for p in inspect.signature(function).parameters.values() if p.name not in groups]
    spread: list[inspect.Parameter] = [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in own
    ]
    for group in groups.values():
        field_hints = typing.get_type_hints(group, include_extras=True)
        for field in dataclasses.fields(group):
            spread.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=field_hints[field.name],
                )
            )

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        for name, group in groups.items():
            fields = {field.name for field in dataclasses.fields(group)}
            given[name] = group(**{key: given.pop(key) for key in fields})
        return function(**given)

    command.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in spread}
    return command


def print_result(result: Any, as_json: bool, show: Callable[[Any], object]) -> None:
    """A command's result on standard output: as one JSON document, or as `show` writes it."""
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        show(result)
