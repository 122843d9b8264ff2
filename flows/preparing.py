"""`seqscale prepare`: files become a sequence store in a folder of the user's choice, or join one.

Before: flows/cli.py, from options.   After: analytics/interactions.py and store_updates.py.
Needs the base install only.
"""

from __future__ import annotations

import logging
from pathlib import Path

import typer

from analytics.errors import ConfigError
from analytics.interactions import Naming, PreparedData
from analytics.interactions import prepare as prepare_files
from analytics.pseudonyms import PseudonymKey, load_key
from analytics.sources.options import ReadingOptions
from analytics.store import read_header
from analytics.store_updates import append
from flows.options import RuleFlags
from flows.steps import preparation_lines, writing_under
from training.config import RunConfig

LOGGER = logging.getLogger("seqscale.prepare")
MIN_HISTORY = RunConfig.min_history
MAX_HISTORY = 16_384  # events kept of a user; the longest training length that is in use today


def prepare_store(
    source: str,
    out: Path,
    *,
    reading: ReadingOptions,
    rules: RuleFlags,
    naming: Naming,
    keep_user_ids: bool,
) -> PreparedData:
    """Make `out` the sequence store of a file, folder or pattern.

    Raises InputError for what a file causes, ConfigError when `out` holds something else.
    """
    _check_place(out)
    LOGGER.info("prepare: reading %s", source)
    with writing_under(out):
        prepared = prepare_files(
            source,
            out.resolve().parent,
            reading=reading,
            preparation=rules.preparation(min_history=MIN_HISTORY, max_history=MAX_HISTORY),
            key=_key(keep_user_ids),
            naming=naming,
            split_files=rules.split_files(),
            out=out,
        )
    return prepared


def append_to(
    store_dir: Path, source: str, *, reading: ReadingOptions, keep_user_ids: bool
) -> PreparedData:
    """Add the rows of new files to a store, by the rules it was made by.

    Raises StoreError when there is no store, ConfigError when its pseudonyms need another key.
    """
    header = read_header(store_dir)
    LOGGER.info("prepare: appending %s to %s", source, store_dir)
    with writing_under(store_dir):
        has_pseudonyms = header.pseudonyms is not None and not keep_user_ids
        return append(store_dir, source, reading=reading, key=_key(not has_pseudonyms))


def show(prepared: PreparedData) -> None:
    """Print what was made on standard output."""
    for line in preparation_lines(prepared):
        typer.echo(line)
    for line in result_lines(prepared):
        typer.echo(line)


def result_lines(prepared: PreparedData) -> list[str]:
    """What became of the rows, for a person."""
    dropped = ", ".join(f"{n:,} {reason}" for reason, n in prepared.dropped_rows.items() if n)
    splits = ", ".join(f"{n:,} {name}" for name, n in prepared.num_in_split.items() if n)
    return [
        f"rows: {prepared.num_rows_read:,} read = {prepared.num_rows_kept:,} kept + "
        f"{prepared.num_rows_read - prepared.num_rows_kept:,} dropped ({dropped or 'none'})",
        f"{prepared.num_users:,} users, {prepared.num_items:,} items; events: {splits}",
        f"user ids: {'pseudonyms' if prepared.is_pseudonymised else 'as they came'}",
        f"store: {prepared.store_dir} ({prepared.dataset_id})",
    ]


def _key(keep_user_ids: bool) -> PseudonymKey | None:
    if keep_user_ids:
        return None
    found = load_key()
    made = "was made and lies in" if found.is_new else "is that of"
    LOGGER.info("pseudonyms: the key %s %s", made, found.key.where)
    return found.key


def _check_place(out: Path) -> None:
    """Raise ConfigError when `out` holds something that is no store."""
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()  # an empty folder is as good as none
    if out.exists() and not (out / "store.json").is_file():
        raise ConfigError(
            f"{out}: is there and holds no sequence store, so it is not replaced. Give --out a "
            "folder that does not exist yet."
        )
