"""The door: `seqscale`, one command for each thing a person does.

Before: a person or a script.   After: the room that does the work, imported inside its command, so
that `seqscale --help` answers at once.
Exit codes: 0 done; 1 an alert under `alerts --fail`; 2 a mistake of the user's, a file's or the
machine's, with one message on standard error; 130 interrupted; 143 told to end; anything else is a
fault of ours and shows its traceback.
Standard output holds the result alone, with --json exactly one JSON document.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from analytics.errors import SeqscaleError
from flows import advise_command, compare_command, data_commands, import_command, purge_command
from flows.analyzing import analyze_trace
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
    TrainFlags,
    given_options,
    print_result,
    with_options,
)
from flows.starting import quick_to_start

app = typer.Typer(
    name="seqscale",
    help="Find and remove the bubbles of distributed sequential-recommender training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
@with_options
def run(
    context: typer.Context,
    reading: ReadingFlags,
    rules: RuleFlags,
    training: TrainFlags,
    naming: NamingFlags,
    interactions: Annotated[
        str | None,
        typer.Option(help="Files, or a prepared store; MovieLens-100K when left out."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    recipe: Annotated[str, typer.Option(help="Complete configuration by name.")] = "demo_cpu",
    ranks: Annotated[int | None, typer.Option(help="Ranks (processes) to train on.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences in one global batch.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of plan, negatives and dropout.")] = None,
    lookahead: Annotated[
        int | None, typer.Option(help="Deal so many global batches out together; 1 is plain.")
    ] = None,
    cut_giants: Annotated[
        bool | None,
        typer.Option(
            "--cut-giants/--whole-histories",
            help="Cut a history that costs more than a rank's share of a batch; cut when left out.",
        ),
    ] = None,
    max_tokens_per_rank: Annotated[
        int | None, typer.Option(help="Events that a rank may hold in one step.")
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    region: Region = None,
    currency: Currency = "USD",
    rates: Rates = None,
    retries: Annotated[
        int, typer.Option(min=0, max=10, help="New attempts after a training that ended badly.")
    ] = 0,
    min_group: MinGroup = 10,
    pipeline_id: Annotated[
        str | None, typer.Option(help="Name of this start and its folder; made up when left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole pipeline: prepare, profile, plan, train, evaluate, register, load, export."""
    from flows.console import reporting
    from flows.receipt import show
    from flows.request import RunRequest, check_device, configure, new_pipeline_id, source_of
    from flows.run import run as run_pipeline
    from flows.steps import check_for_store
    from infra.prices import price
    from training.recipes import recipe as recipe_named

    config = configure(
        recipe_named(recipe),
        ranks=ranks,
        batch=batch,
        epochs=epochs,
        seed=seed,
        lookahead=lookahead,
        cut_giants=cut_giants,
        max_tokens_per_rank=max_tokens_per_rank,
        schedule=training.schedule,
        train=training.changes(),
    )
    check_device(config)
    name = new_pipeline_id() if pipeline_id is None else pipeline_id
    cost = price(instance, region=region, currency=currency, rates=rates, pipeline_id=name)
    files, named = rules.split_files(), naming.naming()
    if interactions is not None:
        given = given_options(context, ReadingFlags, RuleFlags, NamingFlags)
        check_for_store(interactions, given)
    with reporting():
        request = RunRequest(
            pipeline_id=name,
            runs_dir=str(runs_dir.resolve()),
            config=config,
            price=cost,
            num_train_retries=retries,
            min_group_users=min_group,
            preparation=rules.preparation(
                min_history=config.min_history, max_history=config.model.max_history
            ),
            validation_file=None if files is None else files.validation,
            test_file=None if files is None else files.test,
            purpose=named.purpose,
            lawful_basis=named.lawful_basis,
            **source_of(interactions, reading, naming),
        )
        receipt = run_pipeline(request)
    print_result(receipt, as_json, show)


app.command()(data_commands.prepare)
app.command()(data_commands.fetch)
app.command()(data_commands.profile)
app.command()(data_commands.forget)


@app.command()
def load(
    pipeline_dir: Annotated[
        Path | None, typer.Argument(help="One run's folder, such as runs/r7; all when left out.")
    ] = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Runs folder; the run's parent, or 'runs', if left out.")
    ] = None,
    do_rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the warehouse anew from journals and imports.")
    ] = False,
    drop_gone: Annotated[
        bool,
        typer.Option("--drop-gone", help="With --rebuild: lose what has no source any more."),
    ] = False,
    time_zone: Annotated[
        str | None,
        typer.Option(help="Zone in which a day begins, kept for later loads; UTC if never set."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load journals and imports into the warehouse and publish it; twice changes nothing."""
    import dataclasses

    from analytics.date_zone import set_time_zone
    from analytics.errors import ConfigError
    from analytics.warehouse import load as load_sources
    from analytics.warehouse import publish, rebuild

    runs = runs_dir or (pipeline_dir.resolve().parent if pipeline_dir else RUNS_DIR)
    if do_rebuild and pipeline_dir is not None:
        raise ConfigError("--rebuild makes the whole warehouse anew; leave the run's folder out")
    if drop_gone and not do_rebuild:
        raise ConfigError("--drop-gone goes with --rebuild; a plain load never drops anything")
    if time_zone is not None:
        set_time_zone(runs, time_zone)
    if do_rebuild:
        report = rebuild(runs, drop_gone=drop_gone)
    else:
        report = load_sources(runs, [pipeline_dir.resolve().name] if pipeline_dir else None)
    path = publish(runs)
    result = {**dataclasses.asdict(report), "warehouse": str(path)}
    rows = "\n".join(f"{name}: {number:,} rows" for name, number in report.rows.items())
    torn = f"{report.num_torn_lines:,} half-written last lines were skipped"
    print_result(result, as_json, lambda _: typer.echo(f"{rows}\n{torn}\npublished: {path}"))


@app.command()
def export(
    runs_dir: RunsDir = RUNS_DIR,
    dialect: Annotated[
        str, typer.Option(help="powerbi (commas), or excel-es (semicolons, decimal commas, BOM).")
    ] = "powerbi",
    bom: Annotated[
        bool | None,
        typer.Option(help="Begin each file with a byte-order mark; as the dialect if left out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write every table and the measures by run, rank, device, pool and day as CSV."""
    import dataclasses

    from analytics.csv_dialects import dialect_of
    from analytics.export import export as export_tables

    report = export_tables(runs_dir, dialect_of(dialect, has_bom=bom))
    lines = [f"{name}: {number:,} rows" for name, number in report.rows.items()]
    text = "\n".join([*lines, f"manifest: {report.manifest}"])
    print_result(dataclasses.asdict(report), as_json, lambda _: typer.echo(text))


@app.command()
def dashboard(
    runs_dir: RunsDir = RUNS_DIR,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this host.")] = 8501,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Show the published warehouse in a browser, on this host only, until interrupted."""
    from flows.dashboard_child import serve

    raise typer.Exit(serve(runs_dir, port=port, open_browser=browser))


def main() -> None:
    """The console script: one message and a code for what is not a fault of ours; Typer answers an
    interrupt with 130, after the flow has loaded what was recorded.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _told_to_end)
    try:
        quick_to_start(app, sys.argv[1:2])()
    except SeqscaleError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(2)
    except RuntimeError as error:
        # what a signal's handler raises inside a query, DuckDB tells as this
        if str(error) != "Query interrupted":
            raise
        sys.exit(128 + (_told[0] if _told else signal.SIGINT))


_told: list[int] = []  # the signals that came


def _told_to_end(number: int, _frame: object) -> None:
    """End in order: what was begun is cleaned up, children are stopped, the reason is said."""
    _told.append(number)
    typer.echo(f"seqscale: ended by {signal.Signals(number).name}.", err=True)
    sys.exit(128 + number)


app.command("import-telemetry")(import_command.import_telemetry)
app.command("analyze-trace")(analyze_trace)
app.command("compare")(compare_command.compare)
app.command("alerts")(compare_command.alerts)
app.command("advise")(advise_command.advise)
app.command("purge")(purge_command.purge)


if __name__ == "__main__":
    main()
