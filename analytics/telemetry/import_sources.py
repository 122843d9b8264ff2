"""Finds what there is to import at a path, and which files belong together.

The traces or dumps of all ranks in a folder are one import, and so are the parts of a bill.

Before: a path a person typed.   After: importing.py imports each source.
Price: the first bytes of every file of a folder.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from analytics.errors import InputError
from analytics.sources.files import shown, unreadable
from analytics.telemetry import mlflow_system_metrics as mlflow_metrics
from analytics.telemetry.bounded_text import head
from analytics.telemetry.recognising import of_many_ranks, of_money

IRREGULAR = "irregular"
_MOST_FILES = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSource:
    """What is imported at once: a file, an MLflow store, or the files of all ranks of a run.

    form: where the files' first bytes settle it, None where the whole file is to be looked at.
    """

    path: Path
    form: str | None
    files: list[Path]


def sources_at(path: Path) -> list[ImportSource]:
    """What to import one by one: a file, a folder that is one import, or a folder's files.

    Raises InputError when there is nothing to import, or it is not for this command.
    """
    try:
        if path.is_file():
            return [ImportSource(path=path, form=of_money(path), files=[path])]
        if path.is_dir() and mlflow_metrics.looks_like_store(path):
            return [ImportSource(path=path, form="mlflow_store", files=[])]
        if not path.is_dir():
            if path.exists():
                raise irregular(path)
            raise InputError(f"{shown(path)}: there is no such file or folder. Check the path.")
        if any(path.glob("journal/*/*.jsonl")) or any(path.glob("*/*journal/*/*.jsonl")):
            raise InputError(
                f"{shown(path)}: these are journals of seqscale itself. 'seqscale load --runs-dir "
                f"{shown(path)}' loads them."
            )
        listed = sorted(one for one in path.rglob("*") if not one.name.startswith("."))
        found = [one for one in listed if one.is_file()]
        odd = [one for one in listed if not (one.is_file() or one.is_dir())]
    except OSError as error:
        raise unreadable(path, error) from error
    if not found:
        raise InputError(f"{shown(path)}: the folder holds no file.")
    if len(found) > _MOST_FILES:
        raise InputError(
            f"{shown(path)}: the folder holds {len(found):,} files, more than the {_MOST_FILES:,} "
            "of one command. Import its folders one by one."
        )
    # the ranks of a run are one import: a straggler shows between them alone; so are a bill's parts
    sources: dict[tuple[Path, str | None], list[Path]] = {}
    for one in found:
        form = of_many_ranks(head(one)) or of_money(one)
        sources.setdefault((one.parent if form else one, form), []).append(one)
    whole = [ImportSource(path=at, form=form, files=files) for (at, form), files in sources.items()]
    return whole + [ImportSource(path=one, form=IRREGULAR, files=[]) for one in odd]


def irregular(path: Path) -> InputError:
    """The answer to a path that is neither file nor folder."""
    return InputError(
        f"{shown(path)}: this is no regular file (a pipe, a device or a link to nothing). Give the "
        "file that holds the rows."
    )


def check_name(path: Path) -> None:
    """Raise InputError when a name cannot be kept: what was imported is known by it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{shown(path)}: this name is not UTF-8 and cannot be kept. Rename the file or folder."
        ) from None
