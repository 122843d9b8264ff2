"""`seqscale prepare`: files become a sequence store in a folder of the user's choice, or join one.

Before: flows/cli.py, from options.   After: analytics/interactions.py and store_updates.py.
Needs the base install only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import typer

from analytics.errors import ConfigError, StoreError
from analytics.interactions import Naming, PreparedData
from analytics.interactions import prepare as prepare_files
from analytics.pseudonyms import (
    FILE_VARIABLE,
    KEY_VARIABLE,
    PseudonymKey,
    find_key,
    load_key,
)
from analytics.reasons import FORGOTTEN
from analytics.sources.options import ReadingOptions
from analytics.store import HEADER_NAME, StoreHeader, read_header
from analytics.store_updates import append
from flows.options import RuleFlags
from flows.steps import preparation_lines, writing_under
from training.config import RunConfig

LOGGER = logging.getLogger("seqscale.prepare")
_ANOTHER_PLACE = "choose another place with --out"
MIN_HISTORY = RunConfig.min_history
_MOST_NAME_BYTES = 200  # file systems take 255, and lock files need some beyond the name
MAX_HISTORY = 16_384  # events kept of a user; the longest training length that is in use today


def prepare_store(
    source: str,
    out: Path,
    *,
    reading: ReadingOptions,
    rules: RuleFlags,
    naming: Naming,
    keep_user_ids: bool,
    replace: bool = False,
) -> PreparedData:
    """Make `out` the sequence store of a file, folder or pattern.

    replace: a store of something else that is there may go.
    Raises InputError for what a file causes, ConfigError when `out` holds something else.
    """
    _check_place(out, replace=replace)

    def announce(_: Path, header: StoreHeader) -> None:
        if not replace:
            _check_same(out, header)

    LOGGER.info("prepare: reading %s", source)
    with writing_under(out, otherwise=_ANOTHER_PLACE):
        return prepare_files(
            source,
            out.resolve().parent,
            reading=reading,
            preparation=rules.preparation(min_history=MIN_HISTORY, max_history=MAX_HISTORY),
            key=_key(keep_user_ids),
            naming=naming,
            split_files=rules.split_files(),
            out=out,
            announce=announce,
        )


def append_to(
    store_dir: Path,
    source: str,
    *,
    reading: ReadingOptions,
    keep_user_ids: bool,
    drop_unparsable_times: bool = False,
    fixed: Sequence[str] = (),
) -> PreparedData:
    """Add the rows of new files to a store, by the rules it was made by.

    fixed: options that were given, although the store has settled what they say.
    Raises StoreError when there is no store, ConfigError for fixed options and when its pseudonyms
    need another key.
    """
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: --append goes by the rules and the names that {store_dir} was "
            "made with, which stand in its store.json. Leave these options out, or prepare all "
            "files again with them and --replace."
        )
    header = read_header(store_dir)
    LOGGER.info("prepare: appending %s to %s", source, store_dir)
    with writing_under(store_dir, otherwise=_ANOTHER_PLACE):
        key = _key_of(store_dir, header, keep_user_ids)
        return append(
            store_dir,
            source,
            reading=reading,
            key=key,
            drop_unparsable_times=drop_unparsable_times,
        )


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
        f"{prepared.tied_share:.1%} of the events share their user's time with another; such ties "
        "stand in the order of the files",
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


def _key_of(store_dir: Path, header: StoreHeader, keep_user_ids: bool) -> PseudonymKey | None:
    """The key that a store's pseudonyms were made with, as far as there is one; none is made."""
    if header.pseudonyms is None:
        return None
    key_id = header.pseudonyms["key_id"]
    if keep_user_ids:
        raise ConfigError(
            f"{store_dir}: holds pseudonyms, made with the key {key_id}, so user ids cannot be "
            "kept in it. Leave --keep-user-ids out."
        )
    key = find_key()
    if key is None:
        raise ConfigError(
            f"{store_dir}: holds pseudonyms, made with the key {key_id}, and no key was found. "
            f"Name a file that holds it (mode 0600) with {FILE_VARIABLE}, or give the key itself "
            f"with {KEY_VARIABLE}."
        )
    return key


def _check_place(out: Path, *, replace: bool) -> None:
    """Raise ConfigError when `out` holds something that is no store, StoreError for a store that
    cannot be read and is not to be replaced. An empty folder is as good as none.
    """
    if len(os.fsencode(out.name)) > _MOST_NAME_BYTES:
        raise ConfigError(
            f"--out {out.name[:40]}...: a folder's name of more than {_MOST_NAME_BYTES} bytes. "
            "Give a shorter one."
        )
    if (out / HEADER_NAME).is_file():
        _warn_of_erasures(out, replace=replace)
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: is there and holds no sequence store, so it is not replaced. Give --out a "
            "folder that does not exist yet."
        )


def _warn_of_erasures(out: Path, *, replace: bool) -> None:
    """Say that people were erased from the store which is made anew from its files."""
    try:
        header = read_header(out)
    except StoreError:
        if replace:
            return
        raise
    if header.dropped_rows.get(FORGOTTEN):
        LOGGER.warning(
            "prepare: %s: people were erased from the store that lies here; one made anew from the "
            "files has them again if the files still do. Take them out of the files first, or run "
            "'seqscale forget' for them again afterwards.",
            out,
        )


def _check_same(out: Path, made: StoreHeader) -> None:
    """Raise ConfigError when another store than the one that was made is in its place."""
    if not (out / HEADER_NAME).is_file():
        return
    there = read_header(out)
    if there.content_sha256 != made.content_sha256:
        raise ConfigError(
            f"{out}: holds the store of '{there.dataset_name}' ({there.dataset_id}), which differs "
            f"from the one just made of '{made.dataset_name}'. Give --replace to put this one in "
            "its place, --append to add the rows to it, or another folder with --out."
        )
