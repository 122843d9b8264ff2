"""`seqscale prepare`, `fetch`, `profile` and `forget`: what is done with interactions and stores.

Before: flows/cli.py registers them.   After: flows/preparing.py, profiling.py and forgetting.py and
the catalogue do the work; they are imported inside, so that --help stays instant.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.options import (
    DEFAULT_INSTANCE,
    RUNS_DIR,
    AsJson,
    Currency,
    Instance,
    MinGroup,
    NamingFlags,
    Rates,
    ReadingFlags,
    Region,
    RuleFlags,
    RunsDir,
    given_options,
    print_result,
    with_options,
)

DEFAULT_PROFILE_COST = "hstu-8x1024@h100"


@with_options
def prepare(
    context: typer.Context,
    reading: ReadingFlags,
    rules: RuleFlags,
    naming: NamingFlags,
    path: Annotated[str, typer.Argument(help="File, folder or pattern of interactions.")],
    out: Annotated[Path, typer.Option(help="Folder that becomes the sequence store.")],
    append: Annotated[
        bool, typer.Option("--append", help="Add the rows to the store that is there.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of another store at --out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn interactions into a sequence store, every dropped row counted."""
    from analytics.prepared import published
    from flows.console import reporting
    from flows.preparing import append_to, prepare_store, show

    with reporting():
        if append:
            fixed = given_options(
                context, RuleFlags, NamingFlags, but=("keep_user_ids", "drop_unparsable_times")
            )
            result = append_to(
                out,
                path,
                reading=reading.reading(),
                keep_user_ids=naming.keep_user_ids,
                drop_unparsable_times=rules.drop_unparsable_times,
                fixed=[*fixed, *(["--replace"] if replace else [])],
            )
        else:
            result = prepare_store(
                path,
                out,
                reading=reading.reading(),
                rules=rules,
                naming=naming.naming(),
                keep_user_ids=naming.keep_user_ids,
                replace=replace,
            )
    print_result(published(result), as_json, lambda _: show(result))


def fetch(
    name: Annotated[str, typer.Argument(help="Name of a public data set, such as ml-100k.")],
    as_json: AsJson = False,
) -> None:
    """Get a public data set into the cache, its checksum checked, and tell its terms."""
    from analytics.catalogue import CATALOGUE, default_cache_dir, download_note
    from analytics.catalogue import fetch as fetch_named

    path = fetch_named(name, default_cache_dir())
    entry = CATALOGUE[name]
    note = download_note(entry, path)
    result = {"name": name, "path": str(path), "title": entry.title, "terms": entry.terms}
    lines = f"{entry.title}\n{path}\n{note}\nterms: {entry.terms}"
    print_result({**result, "note": note}, as_json, lambda _: typer.echo(lines))


@with_options
def profile(
    context: typer.Context,
    reading: ReadingFlags,
    rules: RuleFlags,
    source: Annotated[
        str, typer.Argument(help="A sequence store's folder, or files of interactions.")
    ],
    gpus: Annotated[int, typer.Option(min=2, max=65_536, help="GPUs the forecast is for.")] = 64,
    instance: Instance = DEFAULT_INSTANCE,
    region: Region = None,
    currency: Currency = "USD",
    rates: Rates = None,
    sequences_per_rank: Annotated[
        int, typer.Option(min=1, max=4096, help="Mean sequences of a GPU in one global batch.")
    ] = 32,
    cost_model: Annotated[
        str, typer.Option(help="Stated cost coefficients: a model on a device.")
    ] = DEFAULT_PROFILE_COST,
    min_group: MinGroup = 10,
    runs_dir: Annotated[Path | None, typer.Option(help="Warehouse to record it in.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the batches drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Tell what imbalance would cost on many GPUs, from a store or a file, without torch."""
    from flows.console import reporting
    from flows.preparing import MAX_HISTORY, MIN_HISTORY
    from flows.profiling import profile_file, show
    from infra.prices import price

    with reporting():
        result = profile_file(
            source,
            reading=reading.reading(),
            preparation=rules.preparation(min_history=MIN_HISTORY, max_history=MAX_HISTORY),
            split_files=rules.split_files(),
            for_files=given_options(context, ReadingFlags, RuleFlags),
            price=price(instance, region=region, currency=currency, rates=rates),
            num_gpus=gpus,
            sequences_per_rank=sequences_per_rank,
            cost_name=cost_model,
            seed=seed,
            min_group_users=min_group,
            record_in=runs_dir,
        )
    print_result(result.plain(), as_json, lambda _: show(result))


def forget(
    user: Annotated[
        list[str] | None,
        typer.Option(help="User id as in the source file; '-' reads ids from standard input."),
    ] = None,
    expired: Annotated[
        bool, typer.Option("--expired", help="Erase what each store's retention forbids by now.")
    ] = False,
    store: Annotated[
        list[Path] | None,
        typer.Option(help="A store outside of the runs folder, or a folder of them; repeatable."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Erase people, or what is past its retention, from stores, plans and warehouse."""
    from flows.console import reporting
    from flows.forgetting import forget as erase
    from flows.forgetting import read_user_ids

    ids = None if expired and not user else read_user_ids(user or [], sys.stdin)
    with reporting():
        report = erase(runs_dir, ids, stores=store or (), expired=expired)
    print_result(report.plain(), as_json, lambda _: typer.echo("\n".join(report.lines())))
    report.check()
