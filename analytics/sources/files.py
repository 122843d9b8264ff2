"""Says which files a path means: one file, a member of a zip, a folder's files or a pattern's.

Only regular files are opened; a pipe or a device would never end, and files are read twice.

Before: a path a person typed.   After: unpacked.py makes each of them readable.
Price: one stat a file; a folder is not entered deeper than its own files.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
import stat
from pathlib import Path

from analytics.errors import InputError

_NOT_DATA = (
    "readme", "license", "licence", "copying", "changelog", "notice", "citation", "manifest",
    "checksum", "metadata",
)  # fmt: skip
_NOT_DATA_ENDS = (
    ".md", ".pdf", ".html", ".htm", ".py", ".ipynb", ".sh", ".crc", ".sha256", ".md5", ".png",
    ".jpg", ".jpeg", ".log", ".yaml", ".yml", ".toml", ".bib", ".tex", ".svg",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """The files a path means, in the order in which they are read."""

    files: tuple[Path, ...]
    member: str | None  # of a zip, when PATH.zip:member was given
    is_many: bool  # a folder or a pattern, so files that do not qualify may be left out
    skipped: tuple[str, ...]  # names that were left out, for a person


def find_files(path: str | Path) -> FoundFiles:
    """The files that a path means.

    Raises InputError when there is none, or when it is not a regular file or folder.
    """
    if not str(path) or "\0" in str(path):
        raise InputError("the path is empty or holds a zero byte. Give the path of a file.")
    path = Path(path)
    kind = _kind(path)
    if kind == "file":
        return FoundFiles(files=(path,), member=None, is_many=False, skipped=())
    if kind == "folder":
        return _choose(path, _listed(path))
    archive, member = _zip_member(path)
    if archive is not None:
        return FoundFiles(files=(archive,), member=member, is_many=False, skipped=())
    if glob.has_magic(str(path)):
        return _choose(path, [Path(name) for name in sorted(glob.glob(str(path)))])  # noqa: PTH207
    raise InputError(f"{shown(path)}: there is no such file. Check the path.")


def shown(path: str | Path) -> str:
    """A path for a person, also one that is not UTF-8 or holds control characters."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_data_name(name: str) -> bool:
    """Whether a file's name could be that of interactions: not hidden, no README, no picture."""
    lowered = name.lower()
    is_hidden = lowered.startswith((".", "_"))
    return not (is_hidden or lowered.startswith(_NOT_DATA) or lowered.endswith(_NOT_DATA_ENDS))


def source_sha256(path: str | Path) -> str:
    """SHA-256 of what a path means, in hex.

    Of one file: of its bytes. Of several: of the lines 'name sha256', sorted by name.
    Raises InputError when a file cannot be read.
    """
    found = find_files(path)
    try:
        if not found.is_many:
            return file_sha256(found.files[0])
        pairs = sorted((os.fsencode(file.name), file_sha256(file)) for file in found.files)
    except OSError as error:
        raise unreadable(path, error) from error
    digest = hashlib.sha256()
    for name, sha256 in pairs:
        digest.update(name + b" " + sha256.encode() + b"\n")
    return digest.hexdigest()


def unreadable(path: str | Path, error: OSError) -> InputError:
    """What to tell a person whose file the system does not give."""
    return InputError(
        f"{shown(path)}: cannot be read ({error.strerror or 'read error'}). "
        "Check that the path exists and that you may read it."
    )


def _kind(path: Path) -> str:
    """'file', 'folder' or 'none'; links are followed."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "none"
    except NotADirectoryError:
        return "none"
    except (OSError, ValueError) as error:
        if glob.has_magic(str(path)) or not isinstance(error, OSError):
            return "none"
        raise unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{shown(path)}: is not a regular file, and it is read twice. Save it to disk first."
        )
    return "file"


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name))
    except OSError as error:
        raise unreadable(folder, error) from error


def _choose(path: Path, candidates: list[Path]) -> FoundFiles:
    """Those of a folder or a pattern that could hold interactions."""
    files: list[Path] = []
    skipped: list[Path] = []
    for candidate in candidates:
        usable = is_data_name(candidate.name) and candidate.is_file()
        (files if usable else skipped).append(candidate)
    if not files:
        raise InputError(
            f"{shown(path)}: holds no file that could be interactions "
            f"({len(skipped)} left out: hidden, README-like, folders or not regular files). "
            "Give the file itself."
        )
    names = tuple(shown(candidate.name) for candidate in skipped)
    return FoundFiles(files=tuple(files), member=None, is_many=True, skipped=names)


def _zip_member(path: Path) -> tuple[Path | None, str | None]:
    """Archive and member of PATH.zip:member."""
    text = str(path)
    at = text.lower().find(".zip:")
    if at < 0 or not Path(text[: at + 4]).is_file():
        return None, None
    return Path(text[: at + 4]), text[at + 5 :]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
