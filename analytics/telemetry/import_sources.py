"""Finds what there is to import at a path, and which files belong together.

The traces or dumps of all ranks in a folder are one import, and so are the parts of a bill. Names
that begin with a dot and links to folders are not looked at, and it is said.

Before: a path a person typed.   After: importing.py imports each source.
Price: the first bytes of every file of a folder.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from analytics.errors import InputError
from analytics.sources.files import shown, unreadable
from analytics.telemetry import mlflow_system_metrics as mlflow_metrics
from analytics.telemetry.bounded_text import head
from analytics.telemetry.recognising import of_many_ranks, of_money

IRREGULAR, LEFT_OUT = "irregular", "left out"
_HIDDEN, _LINKED = "names that begin with a dot", "links to folders"
_MOST_FILES = 10_000
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSource:
    """What is imported at once: a file, an MLflow store, or the files of all ranks of a run.

    form: where the files' first bytes settle it, None where the whole file is to be looked at;
    LEFT_OUT: `files` of the folder `path` are not looked at, for `reason`.
    """

    path: Path
    form: str | None
    files: list[Path]
    reason: str | None = None


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
        listed, left_out = _listed(path)
        found = [one for one in listed if one.is_file()]
        odd = [one for one in listed if not one.is_file()]
    except OSError as error:
        raise unreadable(path, error) from error
    skipped = [
        ImportSource(path=path, form=LEFT_OUT, files=sorted(names), reason=reason)
        for reason, names in left_out.items()
        if names
    ]
    if not found and not odd:
        but = "".join(f"; {said(one)}" for one in skipped)
        raise InputError(f"{shown(path)}: the folder holds no file to import{but}.")
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
    whole += [ImportSource(path=one, form=IRREGULAR, files=[]) for one in odd]
    return whole + skipped


def _listed(path: Path) -> tuple[list[Path], dict[str, list[Path]]]:
    """What lies under a folder, folders apart, in the order of names; and what is not looked at.

    A link to a folder could lead anywhere, also back to where it stands.
    """
    listed: list[Path] = []
    left_out: dict[str, list[Path]] = {_HIDDEN: [], _LINKED: []}

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, onerror=fail):
        for name in [*folders, *names]:
            one = Path(folder, name)
            if name.startswith("."):
                left_out[_HIDDEN].append(one)
            elif name in folders and one.is_symlink():
                left_out[_LINKED].append(one)
            elif name not in folders:
                listed.append(one)
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(listed), left_out


def said(source: ImportSource) -> str:
    """What was left out of a folder and why, with the first names."""
    names = [shown(one.relative_to(source.path)) for one in source.files]
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return (
        f"not looked at, {source.reason}: {', '.join(names[:_MOST_NAMED])}{more}. Name a file or "
        "folder itself to import it"
    )


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
